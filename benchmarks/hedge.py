"""What hedged calls bring where some answers are slow, and cost where all are.

Law H1, on a real loop with the elements of one run after the other. In the first pair of runs 2 % of the answers take
ten times as long, at random. In the second pair a service with few workers, and a queue before them, takes ten times as
long for every answer from the middle of the run on: a copy can only lengthen its queue. Latencies are those of
elements, from the start of the first call to the answer.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from asyncio_operator import AsyncWaitOperator, Hedge
from benchmarks import Rows
from benchmarks.measuring import worker_loop

CAPACITY = 50
LATENCY = 0.01
SLOWER = 10
SLOW_SHARE = 0.02
ELEMENTS = 10_000

WORKERS = 25
"""Of the service with a queue: half of the calls wait in it."""
QUEUED = 3_000

ROUNDS = 3

Service = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Measured:
    """A run: the percentiles of its latencies in seconds, its calls per element, and its elements per second."""

    p50: float
    p99: float
    calls: float
    rate: float


def hedge() -> Rows:
    """2 % of the answers ten times slower; then all of them."""
    more = Hedge("p95", extra=0.05)
    for spec, name, target, most in (
        (Hedge(), "Hedge()", "<= 0.8", 0.02),
        (more, 'Hedge("p95", extra=0.05)', "<= 0.5", 0.05),
    ):
        ours, theirs = _compared(spec, _some_slow, ELEMENTS)
        what = f"{SLOW_SHARE:.0%} of the answers {SLOWER} times slower, {name} / without:"
        yield "H1", f"{what} p99", *_times(ours.p99, theirs.p99), target
        yield "", f"{what} p50", *_times(ours.p50, theirs.p50), "<= 1.05"
        yield "", f"{what} calls per element", ours.calls, theirs.calls, ours.calls, f"<= {1 / (1 - most):.5f}"
    ours, theirs = _compared(Hedge(), _all_slow, QUEUED)
    what = f"all answers {SLOWER} times slower from the middle on, {WORKERS} workers, Hedge() / without:"
    yield "H1", f"{what} elements per second", ours.rate, theirs.rate, ours.rate / theirs.rate, ">= 0.95"
    yield "", f"{what} p99", *_times(ours.p99, theirs.p99), "<= 1.1"
    yield "", f"{what} calls per element", ours.calls, theirs.calls, ours.calls, f"<= {1 / 0.98:.5f}"


def _times(ours: float, theirs: float) -> tuple[str, str, float]:
    return f"{ours * 1e3:.1f} ms", f"{theirs * 1e3:.1f} ms", ours / theirs


def _compared(spec: Hedge, make: Callable[[int, random.Random], Service], elements: int) -> tuple[Measured, Measured]:
    """With and without hedge: of each figure the median of the rounds, in which the two take turns."""
    rounds = [
        [_run(make(elements, random.Random(seed)), elements, one) for one in (spec, None)] for seed in range(ROUNDS)
    ]
    ours, theirs = (
        Measured(*(median(getattr(one, name) for one in side) for name in ("p50", "p99", "calls", "rate")))
        for side in zip(*rounds, strict=True)
    )
    return ours, theirs


def _run(service: Service, elements: int, hedge: Hedge | None) -> Measured:
    gc.collect()
    with worker_loop() as runner:
        return runner.run(_measured(service, elements, hedge))


async def _measured(service: Service, elements: int, hedge: Hedge | None) -> Measured:
    started: dict[int, float] = {}
    calls = 0

    async def call(element: int) -> int:
        nonlocal calls
        calls += 1
        started.setdefault(element, perf_counter())
        await service(element)
        return element

    begun = perf_counter()
    outputs = AsyncWaitOperator(call, mode="unordered", capacity=CAPACITY, hedge=hedge).process(range(elements))
    latencies = [perf_counter() - started.pop(element) async for element in outputs]
    rate = elements / (perf_counter() - begun)
    latencies.sort()
    return Measured(latencies[elements // 2], latencies[elements * 99 // 100], calls / elements, rate)


def _some_slow(_elements: int, chance: random.Random) -> Service:
    async def answer(_element: int) -> None:
        slow = chance.random() < SLOW_SHARE
        await asyncio.sleep(LATENCY * chance.uniform(0.8, 1.2) * (SLOWER if slow else 1))

    return answer


def _all_slow(elements: int, chance: random.Random) -> Service:
    workers = asyncio.Semaphore(WORKERS)

    async def answer(element: int) -> None:
        async with workers:
            await asyncio.sleep(LATENCY * chance.uniform(0.8, 1.2) * (SLOWER if element > elements // 2 else 1))

    return answer
