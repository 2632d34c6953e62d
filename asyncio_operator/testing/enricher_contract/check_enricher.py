"""The contract of enrichers, as a plain check: for the enrichers of users, and for those of this package.

    check_enricher(lambda: MyEnricher(url), known={"JFK": {"city": "New York"}}, missing=["XXX"], secrets=[password])

It raises AssertionError unless the enrichers that the function gives keep the contract. The error names the rule and
what is wrong. It needs no test framework.

To see whether a lookup blocks the event loop, every task of the loop is timed from each await to the next, as in
asyncio's debug mode. The time is real time, so the rule works on any loop, also on virtual time. A call that blocks
(``time.sleep``, requests, a JDBC driver) blocks every time. So each key is looked up several times and the shortest
counts: an import, a first connection or a busy machine is not mistaken for a blocking call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import inf
from typing import Any

from asyncio_operator.clock import monotonic
from asyncio_operator.enricher import Found
from asyncio_operator.errors import describe, describe_error
from asyncio_operator.testing.enricher_contract import lifecycle, rules
from asyncio_operator.testing.enricher_contract.rules import Check, Make, asynchronous
from asyncio_operator.testing.own_loops import require_no_loop

HELD = 0.05
"""Seconds. A lookup that holds its loop this long in one step is blocking.

It is half of what asyncio calls slow (`slow_callback_duration`). A lookup that awaits holds its loop for microseconds,
and for some milliseconds while it reads a large answer. With three processes waiting for each processor, the longest of
3,000 steps took 1 ms. A loop that is held for longer makes fewer than twenty lookups a second, at any capacity.
"""

ATTEMPTS = 5
"""A key's lookups must hold the loop this many times in a row. A good lookup would have to be stalled by the machine
each time, within the microseconds in which it runs."""


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
            rule(check)
        except Exception as error:
            what = str(error) if isinstance(error, AssertionError) else describe_error(error)
            raise AssertionError(f"{rule.__name__} ({rule.__doc__}): {check.without_secrets(what)}") from error


@asynchronous
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

    shortest = inf
    for _ in range(ATTEMPTS):
        with _timed() as steps:
            await check.within(what, ask())
        shortest = min(shortest, steps.longest)
        if shortest < HELD:
            return
    raise AssertionError(
        f"{what} held the event loop for {shortest:.2f} s at a time, in which no other lookup could run: use an "
        "asynchronous client and await it (asyncio.sleep, not time.sleep), or make the enricher a BlockingEnricher, "
        "which calls an ordinary function in threads"
    )


class _Steps:
    """Makes tasks whose steps are timed.

    Attributes:
        longest: the longest time in seconds from one await of such a task to its next.
    """

    def __init__(self) -> None:
        self.longest = 0.0

    def task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        """A task factory."""
        return asyncio.Task(_Timed(coroutine, self), loop=loop, **options)


class _Timed(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are timed."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], steps: _Steps) -> None:
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
            self._steps.longest = max(self._steps.longest, monotonic() - started)


@contextmanager
def _timed() -> Iterator[_Steps]:
    """Times the tasks that are made inside of the `with` block."""
    loop = asyncio.get_running_loop()
    before, steps = loop.get_task_factory(), _Steps()
    loop.set_task_factory(steps.task)
    try:
        yield steps
    finally:
        loop.set_task_factory(before)


# First come the rules on which all others rest: without them every other rule would fail, or take long.
RULES = (
    lifecycle.rule_close,
    rule_loop_is_free,
    *rules.RULES,
    *lifecycle.RULES,
)
