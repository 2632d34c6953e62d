"""The effect of `buffer` on ordered output under skew: the figures of docs/choosing.md."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from asyncio_operator import AsyncWaitOperator
from benchmarks import Rows

ELEMENTS = 6_000
CAPACITY = 100


def buffers() -> Rows:
    """The skewed workload, in order, with buffers from 1 to 64 times the capacity, against unordered."""
    for factor in (1, 4, 16, 64):
        ours, theirs = _rate(buffer=factor * CAPACITY), _rate(mode="unordered")
        what = f"skew in order, buffer {factor:2} x capacity / unordered"
        yield "", what, f"{ours:,.0f}/s", f"{theirs:,.0f}/s", ours / theirs, ""


def _rate(**options: Any) -> float:
    operator = AsyncWaitOperator(_call, capacity=CAPACITY, **options)
    started = time.perf_counter()
    assert sum(1 for _ in operator(range(ELEMENTS))) == ELEMENTS
    return ELEMENTS / (time.perf_counter() - started)


async def _call(element: int) -> int:
    await asyncio.sleep(0.2 if element % 200 == 199 else 0.002)
    return element
