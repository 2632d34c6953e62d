"""The cost of retries: for elements that do not need them, and per element if retries are configured but never used.

Law R8: an element in back-off holds no call slot. In one run a fifth of the elements is refused at once, backs off for
a second and is called again. In the other run no element is refused. Both have the same elements and the same time in
calls, and the throughput of the other elements must be the same. It is counted in the middle of the runs: after the
first back-offs, and before the end of input.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any

from asyncio_operator import AsyncWaitOperator, FixedBackoff, Retry
from benchmarks import Rows

CAPACITY = 100
LATENCY = 0.005
BACKOFF = 1.0
SETTLED, END = 1.5, 4.5
"""Seconds from the start of a run between which results are counted."""

WIDE = 400 * CAPACITY
"""A buffer for `calls per second x back-off`: in ordered mode, that many results wait behind an element in back-off."""

ROUNDS = 3
ELEMENTS = 50_000

Function = Callable[[int], Awaitable[int]]


def retries() -> Rows:
    """A fifth of the elements in back-off for a second, compared with none; and the price of an unused retry."""
    yield _back_off("unordered", ">= 0.9")
    yield _back_off("ordered", ">= 0.9", buffer=WIDE)
    yield _back_off("ordered", "")
    yield _price("returns at once", _at_once)
    yield _price("suspends once", _suspends)


def _back_off(mode: str, target: str, **options: Any) -> tuple[str | float, ...]:
    rounds = [[_rate(refusing, mode, options) for refusing in (True, False)] for _ in range(ROUNDS)]
    ours, theirs = (median(rates) for rates in zip(*rounds, strict=True))
    buffer = f", buffer {WIDE:,}" if options else ""
    what = f"a fifth backs off for {BACKOFF:g} s / none does, {mode}{buffer}: the others"
    return "R8", what, f"{ours:,.0f}/s", f"{theirs:,.0f}/s", ours / theirs, target


def _rate(refusing: bool, mode: Any, options: dict[str, Any]) -> float:
    """Results per second of the four fifths that are never refused."""
    retry = Retry(max_attempts=2, backoff=FixedBackoff(BACKOFF))
    operator = AsyncWaitOperator(_service(refusing), mode=mode, capacity=CAPACITY, retry=retry, **options)
    gc.collect()
    return asyncio.run(_counted(operator.process(count()))) / (END - SETTLED)


def _service(refusing: bool) -> Function:
    refused = set()

    async def call(element: int) -> int:
        if refusing and element % 5 == 0 and element not in refused:
            refused.add(element)
            raise ConnectionRefusedError
        await asyncio.sleep(LATENCY)
        return element

    return call


async def _counted(outputs: AsyncIterator[int]) -> int:
    started, others = perf_counter(), 0
    async with aclosing(outputs):  # type: ignore[type-var]
        async for element in outputs:
            passed = perf_counter() - started
            if passed > END:
                break
            others += passed > SETTLED and element % 5 != 0
    return others


def _price(what: str, function: Function) -> tuple[str | float, ...]:
    options: tuple[dict[str, Any], ...] = ({"retry": Retry()}, {})
    rounds = [[asyncio.run(_seconds(function, one)) for one in options] for _ in range(ROUNDS)]
    ours, theirs = (median(seconds) for seconds in zip(*rounds, strict=True))
    figures = (f"{ours / ELEMENTS * 1e6:.2f} us", f"{theirs / ELEMENTS * 1e6:.2f} us")
    return "", f"{what}, with a retry that never comes / plain", *figures, ours / theirs, ""


async def _seconds(function: Function, options: dict[str, Any]) -> float:
    gc.collect()
    started, outputs = perf_counter(), 0
    async for _ in AsyncWaitOperator(function, **options).process(range(ELEMENTS)):
        outputs += 1
    assert outputs == ELEMENTS
    return perf_counter() - started


async def _at_once(value: int) -> int:
    return value


async def _suspends(value: int) -> int:
    await asyncio.sleep(0)
    return value
