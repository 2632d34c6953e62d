"""The rules for an enricher's life, as plain checks. They are one part of `check_enricher`.

They cover cancellation, closing and opening again (also on another loop), the content of a pickle, secrets in logs and
reprs, and what is left behind after `close`.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import pickle
import stat
import threading
from collections.abc import Callable
from typing import Any

from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import describe, describe_error
from asyncio_operator.fingerprint import fingerprint
from asyncio_operator.testing.enricher_contract.rules import Check, asynchronous

TURNS = 12
"""A lookup is cancelled after 0, 1, ... turns of the loop, below this number: most of its awaits lie within them."""

ATTEMPTS = 3
"""Something left behind counts only if it is left behind in each of this many attempts."""

SETTLING = 2.0
"""Seconds that closed things may take to go: transports close in a later turn of the loop, threads end on their own."""


@asynchronous
async def rule_cancellation(check: Check) -> None:
    """a lookup that is cancelled raises CancelledError soon, and the enricher answers as before"""
    keys = list(check.expected)
    if not keys:
        return
    async with check.opened() as enricher:
        loop = asyncio.get_running_loop()
        started = loop.time()
        await check.expect(enricher, keys[:1])
        duration = loop.time() - started
        for turns in range(TURNS):
            await _cancel(check, enricher, keys[turns % len(keys)], turns, 0.0)
            await check.expect(enricher)
        for part in (0.2, 0.5, 0.8):
            await _cancel(check, enricher, keys[0], 0, duration * part)
            await check.expect(enricher)


async def _cancel(check: Check, enricher: Enricher, key: Any, turns: int, delay: float) -> None:
    batch = list(check.expected)[: enricher.max_batch]
    for call in (lambda: enricher.lookup(key), lambda: enricher.lookup_many(batch)):
        task: asyncio.Task[Any] = asyncio.ensure_future(call())
        for _ in range(turns):
            await asyncio.sleep(0)
        if delay:
            await asyncio.sleep(delay)
        cancelled = task.cancel()
        done, _ = await asyncio.wait([task], timeout=check.patience)
        assert done, f"it did not end within {check.patience} s after its cancellation"
        if cancelled and not task.cancelled():
            error = task.exception()
            raise AssertionError(
                f"it was cancelled, but {'returned an answer' if error is None else f'raised {describe_error(error)}'}"
            ) from error


@asynchronous
async def rule_close(check: Check) -> None:
    """open() and close() end soon; close() may be called twice, and without open()"""
    enricher = check.make()
    await check.within("close() without open()", enricher.close())
    async with check.opened(enricher):
        pass
    await check.within("a second close()", enricher.close())


@asynchronous
async def rule_reopen(check: Check) -> None:
    """an enricher that was closed can be opened again"""
    enricher = check.make()
    for _ in range(3):
        async with check.opened(enricher):
            await check.expect(enricher)


def rule_another_loop(check: Check) -> None:
    """an enricher that was closed can be opened on another loop"""
    enricher = check.make()

    async def use() -> None:
        async with check.opened(enricher):
            await check.expect(enricher)

    check.run(use)
    check.run(use)


def rule_pickle(check: Check) -> None:
    """a pickle, made before or after open(), gives an equal enricher that works"""
    dumps = _dumps()
    closed = check.make()
    copies = [_copy(dumps, closed, closed, "a pickle of a new one")]
    closed.schema()
    copies.append(_copy(dumps, closed, closed, "a pickle made after schema()"))

    async def while_open() -> None:
        async with check.opened() as opened:
            await check.expect(opened)
            copies.append(_copy(dumps, opened, opened, "a pickle made while it is open"))
            await check.expect(opened)

    async def use(copy: Enricher) -> None:
        async with check.opened(copy):
            await check.expect(copy)

    check.run(while_open)
    for copy in copies:
        check.run(lambda copy=copy: use(copy))  # type: ignore[misc]


def _dumps() -> Callable[[Any], bytes]:
    """The function with which Spark pickles, if it is installed."""
    for name in ("cloudpickle", "pyspark.cloudpickle"):
        try:
            dumps: Callable[[Any], bytes] = importlib.import_module(name).dumps
        except ImportError:
            continue
        return dumps
    return pickle.dumps


def _copy(dumps: Callable[[Any], bytes], enricher: Enricher, original: Enricher, what: str) -> Enricher:
    try:
        copy: Enricher = pickle.loads(dumps(enricher))
    except Exception as error:
        raise AssertionError(
            f"{what} cannot be made: {describe_error(error)}. __getstate__ must leave out what open() makes"
        ) from error
    assert isinstance(copy, type(original)) or type(copy).__qualname__ == type(original).__qualname__, (
        f"{what} gave {describe(copy)}"
    )
    assert copy.schema().equals(original.schema()), f"{what} has another schema"
    assert copy.max_batch == original.max_batch, f"{what} has another max_batch"
    assert fingerprint(copy) == fingerprint(original), (
        f"{what} is not equal: asyncio_operator.fingerprint.fingerprint gives another digest, so workers could not "
        "share its clients. __getstate__ must leave out what is no part of the specification"
    )
    return copy


def rule_equal(check: Check) -> None:
    """two enrichers from make() are equal, and stay equal while one is open"""
    first, second = check.make(), check.make()
    first.schema()
    second.schema()
    before = fingerprint(first)
    assert fingerprint(second) == before, "their fingerprints differ, so workers could not share clients"

    async def use() -> None:
        async with check.opened(first):
            await check.expect(first)
            assert fingerprint(first) == before, "the fingerprint changes with open()"
        assert fingerprint(first) == before, "the fingerprint changes with close()"

    check.run(use)


def rule_secrets(check: Check) -> None:
    """no secret is in a repr or in a log"""
    shown: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            shown.append(f"a record of the logger {record.name!r}: {logging.Formatter().format(record)}")

    def listen(enricher: Enricher) -> None:
        shown.extend(f"the repr: {text}" for text in (repr(enricher), str(enricher), f"{enricher}"))

    async def use() -> None:
        enricher = check.make()
        listen(enricher)
        async with check.opened(enricher):
            listen(enricher)
            await check.expect(enricher)
            listen(enricher)
        listen(enricher)

    root, listener = logging.getLogger(), Listener(logging.DEBUG)
    level = root.level
    root.addHandler(listener)
    root.setLevel(logging.DEBUG)
    try:
        check.run(use)
    finally:
        root.removeHandler(listener)
        root.setLevel(level)
    for text in shown:
        assert not any(secret in text for secret in check.secrets), check.without_secrets(text)


def rule_nothing_left(check: Check) -> None:
    """close() leaves no task, no socket and no thread behind"""
    # Other code in this process may open something meanwhile, but hardly in each attempt.
    left = _left_behind(check)
    for _ in range(ATTEMPTS - 1):
        left = left and _left_behind(check)
    assert not left, left


def _left_behind(check: Check) -> str:
    """What exists after an enricher was used and closed, and did not exist before; "" for nothing."""
    threads = set(threading.enumerate())

    async def use() -> str:
        tasks, sockets = asyncio.all_tasks(), _sockets()
        async with check.opened() as enricher:
            await check.expect(enricher)
            lookups = [asyncio.ensure_future(enricher.lookup(key)) for key in check.expected]
            await check.within("all lookups at once", asyncio.gather(*lookups))
        await _until(lambda: not asyncio.all_tasks() - tasks and not _sockets() - sockets)
        running, open_ones = asyncio.all_tasks() - tasks, _sockets() - sockets
        if running:
            return f"tasks: {', '.join(sorted(describe(task.get_coro()) for task in running))}"
        return f"{len(open_ones)} sockets" if open_ones else ""

    async def wait() -> None:
        await _until(lambda: not _alive(threads))

    left = check.run(use)
    # Checked after the loop has closed: the threads of a loop's own pool end with the loop.
    check.run(wait)
    return left or ", ".join(f"thread {name}" for name in sorted(thread.name for thread in _alive(threads)))


def _alive(before: set[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread not in before and thread.is_alive()]


async def _until(done: Callable[[], bool]) -> None:
    """Wait until `done` in real time, also on virtual time: sockets and threads belong to the system."""
    pause = threading.Event()
    for _ in range(round(SETTLING / 0.01)):
        if done():
            return
        await asyncio.sleep(0)
        pause.wait(0.01)
        await asyncio.sleep(0)


def _sockets() -> set[tuple[int, int]]:
    """The sockets of this process, on systems that list open files in /dev/fd."""
    found = set()
    for name in os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else ():
        try:
            status = os.fstat(int(name))
        except OSError:
            continue
        if stat.S_ISSOCK(status.st_mode):
            found.add((status.st_dev, status.st_ino))
    return found


RULES: tuple[Callable[[Check], None], ...] = (
    rule_cancellation,
    rule_reopen,
    rule_another_loop,
    rule_pickle,
    rule_equal,
    rule_secrets,
    rule_nothing_left,
)
