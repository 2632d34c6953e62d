"""One budget for 16 Python workers of Spark, through the driver: how much of it is used, and whether it is exceeded.

The load is skewed: one task has work until the end, the others have a sixteenth of it. Each call writes two times to a
file, by the monotonic clock that all processes of a machine share: when the budget let it start, and when it ran. The
first must hold the law exactly. The second is what a source sees, which is later by the journey: on a busy machine a
process may be off the processor for more than half a second between the two.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import struct
import time
from bisect import bisect_right
from pathlib import Path
from typing import Any

from asyncio_operator import Budget, Limit
from asyncio_operator.quota.account import answer
from asyncio_operator.quota.permits import Permits
from asyncio_operator.quota.usage import running
from asyncio_operator.spark import enrich
from benchmarks import Row, Rows
from benchmarks.measuring import passed, seconds_of
from enrichers import FunctionEnricher
from examples.stage import local_spark, workspace

WORKERS = 16
RATE, PER = 400, 1.0
CALLS = 400 * 12
"""Of the task that has most. The others have a sixteenth of that each: the work of some 23 seconds in all."""

LATENCY = 0.02

START = struct.Struct("dd")
"""When the budget let a call start, and when it ran."""

Starts = list[tuple[float, float]]


def s16() -> Rows:
    """A budget of 400 calls a second for 16 workers, of which one has half of the work."""
    with workspace("benchmark") as directory, local_spark(directory, spark__master=f"local[{WORKERS}]") as spark:
        seconds_of(spark.range(0, WORKERS, 1, WORKERS).mapInArrow(passed, "id long"))  # The workers start.
        log = directory / "starts"
        few = CALLS // WORKERS
        keys = spark.range(0, CALLS + (WORKERS - 1) * few).rdd.map(
            lambda row: (max(0, 1 + (row.id - CALLS) // few), row.id)
        )
        frame = spark.createDataFrame(keys.partitionBy(WORKERS, int), "part int, id long")
        lookup = FunctionEnricher(functools.partial(_logged, str(log)), "answer long")
        budget = Budget("S16", Limit(RATE, PER, "calls"))
        seconds_of(enrich(frame, lookup, on="id", budget=budget, remember=None))
        starts = _starts(log)
    started, ran = sorted(start for start, _ in starts), sorted(ran for _, ran in starts)
    used, above, seen = _used(started), _windows_above(started), _windows_above(ran)
    yield (
        "S16",
        f"{WORKERS} workers, skewed: calls started / allowed",
        f"{used * RATE / PER:.0f}/s",
        f"{RATE / PER:.0f}/s",
        used,
        ">= 0.97",
    )
    yield "S16", "windows above the limit / windows", f"{above:,}", f"{len(starts):,}", above / len(starts), "= 0"
    yield "S16", "the same by the time when calls ran", f"{seen:,}", f"{len(starts):,}", seen / len(starts), ""
    latest = max(ran - start for start, ran in starts)
    yield "S16", "longest time until a call ran / window", f"{latest * 1e3:.0f} ms", f"{PER:.0f} s", latest / PER, ""
    yield _between_grants()


async def _logged(path: str, key: int) -> dict[str, Any]:
    call: Any = running.get()
    os.write(_opened(path), START.pack(call.started, time.monotonic()))
    await asyncio.sleep(LATENCY)
    return {"answer": key}


@functools.cache
def _opened(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _starts(log: Path) -> Starts:
    return [(started, ran) for started, ran in START.iter_unpack(log.read_bytes())]


def _used(starts: list[float]) -> float:
    """The part of the allowed rate that is used from a second after the first start to the last start."""
    begin = starts[0] + 1.0
    counted = len(starts) - bisect_right(starts, begin)
    return counted / ((starts[-1] - begin) * RATE / PER)


def _windows_above(starts: list[float]) -> int:
    """The number of windows, one for each start, in which more calls start than are allowed."""
    return sum(later - earlier < PER for earlier, later in zip(starts, starts[RATE:], strict=False))


def _between_grants() -> Row:
    """A call under a budget, between two grants: the two questions that the engine asks."""
    permits, weights = Permits(Budget("S16", Limit(1_000_000, 1.0, "calls")), "worker"), {"calls": 1.0, "keys": 1.0}
    state: Any = {}
    each, now = math.inf, 0.0
    while now < 2.0:
        state, reply = answer(state, permits.message(now), now)
        permits.answered(reply, now, now)
        calls, begun = 0, time.perf_counter()
        while permits.take(weights, now) == now:
            calls += 1
        if calls > 1000:
            each = min(each, (time.perf_counter() - begun) / calls * 1e9)
        now += 0.01
    return "S16", "a call between two grants / 1 us", f"{each:.0f} ns", "1,000 ns", each / 1000, "<= 1"
