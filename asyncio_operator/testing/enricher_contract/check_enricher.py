"""The contract of enrichers, as a plain check: for the enrichers of users, and for those of this package.

    check_enricher(lambda: MyEnricher(url), known={"JFK": {"city": "New York"}}, missing=["XXX"], secrets=[password])

It raises AssertionError unless the enrichers that the function gives keep the contract. The error names the rule and
what is wrong. It needs no test framework. The rules for answers are in `rules`. Here are those for an enricher's life:
cancellation, closing and opening again (also on another loop), the content of a pickle, secrets in logs and reprs, and
what is left behind after `close`.

To see whether a lookup blocks the event loop, every task of the loop is timed from each await to the next, as in
asyncio's debug mode. The time is real time, so the rule works on any loop, also on virtual time. A call that blocks
(``time.sleep``, requests, a JDBC driver) blocks every time. So each key is looked up several times and the shortest
counts: an import, a first connection or a busy machine is not mistaken for a blocking call.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import pickle
import stat
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from math import inf
from typing import Any

from asyncio_operator.clock import monotonic
from asyncio_operator.enricher import Enricher, Found
from asyncio_operator.errors import describe, describe_error
from asyncio_operator.fingerprint import fingerprint
from asyncio_operator.testing.enricher_contract import rules
from asyncio_operator.testing.enricher_contract.rules import Check, Make
from asyncio_operator.testing.time import require_no_loop

HELD = 0.05
"""Seconds. A lookup that holds its loop this long in one step is blocking.

It is half of what asyncio calls slow (`slow_callback_duration`). A lookup that awaits holds its loop for microseconds,
and for some milliseconds while it reads a large answer. With three processes waiting for each processor, the longest of
3,000 steps took 1 ms. A loop that is held for longer makes fewer than twenty lookups a second, at any capacity.
"""

ATTEMPTS = 5
"""A key's lookups must hold the loop this many times in a row. A good lookup would have to be stalled by the machine
each time, within the microseconds in which it runs."""

TURNS = 12
"""A lookup is cancelled after 0, 1, ... turns of the loop, below this number: most of its awaits lie within them."""

LEFT_ATTEMPTS = 3  # Something left behind counts only if it is left behind in each of this many attempts.

SETTLING = 2.0
"""Seconds that closed things may take to go: transports close in a later turn of the loop, threads end on their own."""


def check_enricher(
    make: Make,
    *,
    known: Mapping[Any, Found] | Iterable[Any] | None = None,
    missing: Iterable[Any] | None = None,
    poison: Iterable[Any] | None = None,
    secrets: Iterable[str] = (),
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    patience: float = 10.0,
) -> None:
    """Check that an enricher keeps the contract. It runs its own loops and makes some dozens of lookups.

    Without `known` and `missing` it looks nothing up, and checks the rules that need no key: schema, life and pickles.

    Args:
        make: returns a new enricher at each call. All of them must be equal and use the same source.
        known: keys that are found: a mapping to the expected row or rows, or only the keys; at least one. None: none is
            known.
        missing: keys of the same type that are not found; at least one. None: none is known.
        poison: keys of the same type whose lookup alone fails, such as one whose row cannot be converted. Each is put
            into a batch of 200 keys, or of `max_batch`, and must cost one row. None: none is known.
        secrets: texts that must appear nowhere, such as a password that `make` uses.
        loop_factory: makes the loops; by default asyncio's own. `VirtualTimeLoop` suits enrichers without sockets.
        patience: the maximum seconds for one call, for the end of a cancelled call, and for `close`.

    Raises:
        ConfigurationError: an argument is wrong. Nothing was checked.
        AssertionError: a rule is broken. The message begins with the rule's name.
    """
    require_no_loop("check_enricher", "check")
    check = Check(make, known, missing, secrets, loop_factory, patience, poison)
    for rule in (*RULES, rules.rule_poison) if check.poison else RULES:
        try:
            if iscoroutinefunction(rule):
                check.run(partial(rule, check))
            else:
                rule(check)
        except Exception as error:
            what = str(error) if isinstance(error, AssertionError) else describe_error(error)
            raise AssertionError(f"{rule.__name__} ({rule.__doc__}): {check.without_secrets(what)}") from error


async def rule_loop_is_free(check: Check) -> None:
    """a lookup awaits what it waits for: it does not block the loop, on which all other lookups run"""
    batch = list(check.expected)
    if not batch:
        return
    async with check.opened() as enricher:
        for key in batch:
            await _expect_short_steps(check, f"lookup({describe(key)})", lambda key=key: enricher.lookup(key))  # type: ignore[misc]
        await _expect_short_steps(check, "lookup_many()", lambda: enricher.lookup_many(batch[: enricher.max_batch]))


async def _expect_short_steps(check: Check, what: str, call: Callable[[], Awaitable[Any]]) -> None:
    async def ask() -> None:
        with suppress(Exception):  # Errors are the business of other rules.
            await call()

    def task(steps: list[float], loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(_Timed(coroutine, steps), loop=loop, **options)

    loop = asyncio.get_running_loop()
    before, shortest = loop.get_task_factory(), inf
    for _ in range(ATTEMPTS):
        steps: list[float] = []  # The seconds from one await to the next, of tasks that this attempt makes.
        loop.set_task_factory(partial(task, steps))
        try:
            await check.within(what, ask())
        finally:
            loop.set_task_factory(before)
        shortest = min(shortest, max(steps, default=0.0))
        if shortest < HELD:
            return
    raise AssertionError(
        f"{what} held the event loop for {shortest:.2f} s at a time, in which no other lookup could run: use an "
        "asynchronous client and await it (asyncio.sleep, not time.sleep), or make the enricher a BlockingEnricher, "
        "which calls an ordinary function in threads"
    )


class _Timed(Coroutine[Any, Any, Any]):
    """A coroutine that adds the seconds of each of its steps to a list."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], steps: list[float]) -> None:
        self._coroutine = coroutine
        self._steps = steps

    def send(self, value: Any) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._coroutine.throw, *error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    def _step(self, step: Callable[..., Any], *arguments: Any) -> Any:
        started = monotonic()
        try:
            return step(*arguments)
        finally:
            self._steps.append(monotonic() - started)


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
        moments = [(turns, 0.0) for turns in range(TURNS)] + [(0, duration * part) for part in (0.2, 0.5, 0.8)]
        for turns, delay in moments:
            one = partial(enricher.lookup, keys[turns % len(keys)])
            for call in (one, partial(enricher.lookup_many, keys[: enricher.max_batch])):
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
                    did = "returned an answer" if error is None else f"raised {describe_error(error)}"
                    raise AssertionError(f"it was cancelled, but {did}") from error
            await check.expect(enricher)


async def rule_close(check: Check) -> None:
    """open() and close() end soon; close() may be called twice, and without open()"""
    enricher = check.make()
    await check.within("close() without open()", enricher.close())
    async with check.opened(enricher):
        pass
    await check.within("a second close()", enricher.close())


async def rule_reopen(check: Check) -> None:
    """an enricher that was closed can be opened again"""
    enricher = check.make()
    for _ in range(3):
        await check.use(enricher)


def rule_another_loop(check: Check) -> None:
    """an enricher that was closed can be opened on another loop"""
    enricher = check.make()
    for _ in range(2):
        check.run(lambda: check.use(enricher))


def rule_pickle(check: Check) -> None:
    """a pickle, made before or after open(), gives an equal enricher that works"""
    closed = check.make()
    copies = [_copy(closed, "a pickle of a new one")]
    closed.schema()
    copies.append(_copy(closed, "a pickle made after schema()"))

    async def while_open() -> None:
        async with check.opened() as opened:
            await check.expect(opened)
            copies.append(_copy(opened, "a pickle made while it is open"))
            await check.expect(opened)

    check.run(while_open)
    for copy in copies:
        check.run(lambda copy=copy: check.use(copy))  # type: ignore[misc]


def _copy(original: Enricher, what: str) -> Enricher:
    dumps: Callable[[Any], bytes] = pickle.dumps
    for name in ("cloudpickle", "pyspark.cloudpickle"):
        with suppress(ImportError):
            dumps = importlib.import_module(name).dumps  # Spark's own pickle.
            break
    try:
        copy: Enricher = pickle.loads(dumps(original))
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
    for _ in range(LEFT_ATTEMPTS - 1):
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

    left = check.run(use)
    # Checked after the loop has closed: the threads of a loop's own pool end with the loop.
    check.run(lambda: _until(lambda: not _alive(threads)))
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


RULES: tuple[Callable[[Check], Any], ...] = (
    # First come the rules on which all others rest: without them every other rule would fail, or take long.
    rule_close,
    rule_loop_is_free,
    rules.rule_schema,
    rules.rule_key_schema,
    rules.rule_max_batch,
    rules.rule_weigh,
    # Before the rules of lookup(), whose default may call it.
    rules.rule_lookup_columns,
    rules.rule_found,
    rules.rule_missing,
    rules.rule_types,
    rules.rule_lookup_many,
    rules.rule_concurrent,
    rule_cancellation,
    rule_reopen,
    rule_another_loop,
    rule_pickle,
    rule_equal,
    rule_secrets,
    rule_nothing_left,
)
