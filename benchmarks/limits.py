"""What limits cost: the CPU of a key under each of them, and the two questions to a budget that has permits.

Each lookup asks for keys that are new to it, of an enricher that answers at once, and no limit holds a call back. So
what a key costs more than in a lookup without options is the price of the limit. Law G8: under a budget it is less than
a microsecond.
"""

from __future__ import annotations

import asyncio
import gc
import timeit
from collections.abc import Iterator
from statistics import median
from time import process_time
from typing import Any

import pyarrow as pa

from asyncio_operator import AdaptiveCapacity, CircuitBreaker, Enricher, RateLimit
from asyncio_operator.arrow.key_index import ArrowKeys
from asyncio_operator.engine.gate import Limited
from asyncio_operator.engine.inputs import as_input
from asyncio_operator.figures import Figures
from asyncio_operator.lookup.answers import AnswerCheck
from asyncio_operator.lookup.column_places import ColumnPlaces
from asyncio_operator.lookup.key_batch import KeyBatch
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.lookup.pipeline import LookupPipeline
from asyncio_operator.quota.account import answer
from asyncio_operator.quota.permits import Permits
from asyncio_operator.quota.share import own_allowance
from asyncio_operator.quota.spec import Budget, Limit
from benchmarks import Rows
from benchmarks.measuring import worker_loop

KEYS, BATCH, WARM = 50_000, 1_000, 30
TURNS = 9
CALLS = 100_000
ROUNDS = 7

OPTIONS: dict[str, tuple[dict[str, Any], float | None]] = {
    "no limit": ({}, None),
    "a rate limit": ({"rate_limit": RateLimit(10**7)}, 0.25),
    "a circuit breaker": ({"circuit_breaker": CircuitBreaker()}, None),
    "an adaptive capacity": ({"capacity": AdaptiveCapacity(initial=100)}, None),
    "a budget": ({"budget": Budget("G8", Limit(10**7, 60.0))}, 1.0),
    "a budget of calls in flight": ({"budget": Budget("slots", in_flight=1_000)}, None),
    "a budget in tokens": ({"budget": Budget("tokens", Limit(10**7, 60.0), Limit(1e10, 60.0, "tokens"))}, None),
}
"""The options of each lookup, and the microseconds that a key may cost more than without them."""


def limits() -> Rows:
    """A key under a limit that holds no call back, and law G8: calls between grants."""
    # Each limit takes turns with a lookup that has none: a machine is not always equally busy.
    turns = [{what: (_key({}), _key(options)) for what, (options, _) in OPTIONS.items()} for _ in range(1 + TURNS)][1:]
    each = {what: median(turn[what][1] for turn in turns) for what in OPTIONS}
    plain = each["no limit"]
    for what, (_, most) in OPTIONS.items():
        yield (
            "G8",
            f"a key under {what} / under none",
            f"{each[what]:.2f} us",
            f"{plain:.2f} us",
            each[what] / plain,
            "",
        )
        if most is not None:
            more = median(limited - free for free, limited in (turn[what] for turn in turns))
            yield "G8", "what it costs more / aim", f"{more:.2f} us", f"{most:.2f} us", more / most, "<= 1"
    yield from _permits()


class _Echo(Enricher):
    def schema(self) -> pa.Schema:
        return pa.schema([("x", pa.int64())])

    async def lookup(self, key: int) -> dict[str, int]:
        return {"x": key}


class _Weighing(_Echo):
    def weigh(self, keys: Any) -> dict[str, float]:
        return {"tokens": 1300.0}


def _key(options: dict[str, Any]) -> float:
    """Microseconds of CPU for a key of a lookup with these options."""
    budget = options.get("budget")
    enricher = _Weighing() if budget is not None and len(budget.limits) > 1 else _Echo()
    batches = [
        KeyBatch(ArrowKeys(pa.array(range(at, at + BATCH))), BATCH, None, True)
        for at in range(0, WARM * BATCH + KEYS, BATCH)
    ]
    gc.collect()
    with worker_loop() as runner:
        return runner.run(_looked_up(enricher, batches, LookupOptions(remember=60.0, **options))) / KEYS * 1e6


async def _looked_up(enricher: Enricher, batches: list[KeyBatch], options: LookupOptions) -> float:
    """Seconds of CPU for the lookup of all batches but the first ones, with which what a budget grants has grown."""
    loop = asyncio.get_running_loop()
    given: dict[KeyBatch, int] = {}

    def deliver(batch: KeyBatch, ready: int) -> None:
        loop.call_soon(pipeline.emitted, ready - given.get(batch, 0), batch if batch.ended else None)
        given[batch] = ready

    started = 0.0

    def read() -> Iterator[KeyBatch]:
        nonlocal started
        yield from batches[:WARM]
        started = process_time()
        yield from batches[WARM:]

    allowance = own_allowance(options.budget, "the lookup", enricher.weigh)
    check = AnswerCheck(enricher.schema(), in_columns=True)
    places = ColumnPlaces(Figures(), check, remember=options.remember, clock=loop.time)
    pipeline = LookupPipeline(enricher, as_input(read()), deliver, options, places, Limited(allowance=allowance))
    await pipeline.run()
    passed = process_time() - started
    assert batches[-1].found()[-1].answer() == {"x": pipeline.figures.calls - 1}
    if allowance is not None:
        await allowance.settled()
    return passed


def _permits() -> Rows:
    """A call under a budget between two messages: to ask whether it may start, and to start it."""
    calls = Limit(10**8, 60.0)
    tokens = Limit(1e12, 60.0, "tokens")
    for what, budget, weights in (
        ("one limit", Budget("b", calls), {"calls": 1.0, "keys": 1.0}),
        (
            "two limits, calls in flight, dollars",
            Budget("b", calls, tokens, in_flight=10**8, spend={"usd": 1e9}),
            {"calls": 1.0, "keys": 1.0, "tokens": 1300.0, "usd": 0.01},
        ),
    ):
        seconds = _seconds(budget, weights)
        yield "G8", f"a call under a budget of {what}", f"{seconds * 1e9:.0f} ns", "1000 ns", seconds / 1e-6, "<= 1"


def _seconds(budget: Budget, weights: dict[str, float]) -> float:
    """For `take` and `returned` of one call, while permits last."""
    held, now = Permits(budget, "worker"), 0.0
    state: Any = {}
    heavy = {unit: amount * CALLS * ROUNDS for unit, amount in weights.items()}
    while held.next_start(heavy, now) > now:
        state, reply = answer(state, held.message(now), now + 1.0)
        held.answered(reply, now, now)
        now += 0.01

    if held._slots is not None:
        # Its share grows with use, which would take long here.
        held._slots.ready = CALLS * ROUNDS

    def call() -> None:
        assert held.take(weights, now) == now
        held.returned(weights, None, now, now)

    return min(timeit.repeat(call, timer=process_time, number=CALLS, repeat=ROUNDS)) / CALLS
