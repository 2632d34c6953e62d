"""Ways to handle calls that hang or fail: deadline, fallback, attempt timeout, retry, back-off, circuit breaker.

    python -m examples.timeout_demo

Ten calls of one to three milliseconds, three at once, in six ways. Some calls hang for 15 ms, some fail. The program
prints the time of the last element and the order of the elements, and draws all runs side by side. Then it prints the
error that ends a run by default. Only the failures are simulated: the times are those of this machine, the fastest of
ten runs each.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from asyncio_operator import AsyncWaitOperator, CircuitBreaker, ExponentialBackoff, FixedBackoff, FunctionError, Retry
from asyncio_operator.trace import Trace
from examples import pictures

NAME = "timeout_demo"
TITLE = "Calls that hang or fail, and what is done about them"
CALLS_AT_ONCE = 3
MILLISECONDS = (1, 2, 1, 3, 1, 2, 1, 3, 1, 2)
"""The duration of the call for each of the elements 0 to 9."""

HANGING = 15
"""The duration in milliseconds of a call that hangs."""

Troubles = Mapping[int, tuple[str, ...]]
"""The failures of the first calls for an element: each "hangs" or "fails"."""

HANGS: Troubles = {1: ("hangs",), 6: ("hangs",)}
FAILS: Troubles = {1: ("fails",) * 3, 4: ("fails",), 6: ("fails",) * 2}
DOWN: Troubles = dict.fromkeys(range(5), ("fails",))


def service(troubles: Troubles) -> Callable[[int], Awaitable[str]]:
    """A service that has these troubles."""
    ahead = {element: list(what) for element, what in troubles.items()}

    async def ask(element: int) -> str:
        trouble = ahead[element].pop(0) if ahead.get(element) else None
        await asyncio.sleep((HANGING if trouble == "hangs" else MILLISECONDS[element]) / 1e3)
        if trouble == "fails":
            raise ConnectionError(f"no answer for {element}")
        return str(element)

    return ask


def operator(trace: Trace, troubles: Troubles, on_error: Any = "skip", **options: Any) -> list[str]:
    """The asynchronous wait operator over the ten elements."""

    async def outputs() -> list[str]:
        wait_operator = AsyncWaitOperator(
            service(troubles), capacity=CALLS_AT_ONCE, on_error=on_error, trace=trace, **options
        )
        return [output async for output in wait_operator.process(range(10))]

    return asyncio.run(outputs())


def fallback(element: int) -> str:
    """The result of an element without an answer in time."""
    return f"({element})"


WAYS: dict[str, pictures.Way] = {
    "no deadline": partial(operator, troubles=HANGS),
    "deadline of 5 ms, skipped": partial(operator, troubles=HANGS, timeout=0.005),
    "deadline of 5 ms, fallback": partial(operator, troubles=HANGS, timeout=0.005, on_timeout=fallback),
    "attempt timeout of 5 ms": partial(
        operator,
        troubles=HANGS,
        mode="unordered",
        attempt_timeout=0.005,
        retry=Retry(max_attempts=2, backoff=FixedBackoff(0.001)),
    ),
    "retry with back-off": partial(
        operator,
        troubles=FAILS,
        mode="unordered",
        retry=Retry(max_attempts=4, backoff=ExponentialBackoff(initial=0.001, jitter=False)),
    ),
    "circuit breaker": partial(
        operator,
        troubles=DOWN,
        mode="unordered",
        retry=Retry(max_attempts=9, backoff=FixedBackoff(0.004)),
        circuit_breaker=CircuitBreaker(minimum_calls=3, open_for=0.006),
    ),
}


def demo(path: Path) -> dict[str, pictures.Run]:
    """Run all ways, and show the results. Then show that by default the first timeout ends the run."""
    runs = pictures.show(WAYS, path, TITLE, "(n) is the fallback for n; who is missing was skipped")
    try:
        operator(Trace(), HANGS, timeout=0.005, on_error="fail")
    except FunctionError as error:
        print(f"By default the first timeout ends the run: {error}")
    return runs


if __name__ == "__main__":
    sys.exit(pictures.main(NAME, "Calls that hang or fail, and what is done about them, in one picture.", demo))
