"""Limits in front of the calls for single keys: what may start, what is refused, and what is known of its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncio_operator import (
    Budget,
    CircuitBreaker,
    CircuitOpenError,
    EnricherError,
    FixedBackoff,
    Limit,
    RateLimit,
    Retry,
)
from asyncio_operator.enricher import hint
from asyncio_operator.quota.share import own_allowance
from tests.lookup.helpers import Recorded, batch_of, look_up, lookups_of, now, outcomes_of
from tests.lookup.test_budget_laws import Weighing
from tests.lookup.test_budget_laws import look_up as look_up_under
from tests.lookup.test_known import Elsewhere
from tests.operator.helpers import virtual
from tests.operator.meter import Meter


class Timed(Recorded):
    """Answers with the key after `seconds`; the first `failing` calls of a key fail. Notes when calls start."""

    def __init__(self, seconds: float = 0.0, failing: dict[Any, int] | None = None) -> None:
        super().__init__(self._answer)
        self.times: list[float] = []
        self._seconds = seconds
        self._failing = dict(failing or {})

    async def _answer(self, key: Any) -> Any:
        self.times.append(now())
        await asyncio.sleep(self._seconds)
        if self._failing.get(key, 0) > 0:
            self._failing[key] -= 1
            raise ConnectionError
        return {"x": key}


def pipeline_of(enricher: Recorded, keys: Any, meter: Any = None, **options: Any) -> Any:
    """A pipeline for one batch."""
    return lookups_of(enricher, [keys], meter=meter, **options).pipeline


@virtual
async def test_R10_no_start_is_counted_for_a_key_that_does_not_come():
    pipeline = pipeline_of(Timed(), range(7), rate_limit=RateLimit(8, per=100.0))
    gate = pipeline.attempts.gate
    await pipeline.run()
    assert gate.next_start(now()) == now()
    assert gate.take(now()) == now()
    assert gate.next_start(now()) == 100


@virtual
async def test_R8_the_next_attempt_of_a_key_goes_before_new_keys_under_a_limit():
    enricher = Timed(failing={0: 1})
    batches = [batch_of(range(4))]
    await look_up(enricher, batches, rate_limit=RateLimit(1), retry=Retry(3, FixedBackoff(0.5)))
    assert enricher.calls == [0, 0, 1, 2, 3]
    assert enricher.times == [0, 1, 2, 3, 4]


@virtual
async def test_R8_a_light_key_does_not_overtake_a_heavy_one_that_is_due_and_waits_for_the_budget():
    class Heavy(Timed):
        def weigh(self, keys: Any) -> Any:
            return {"tokens": sum(keys)}

    meter, enricher = Meter(per=1.0, tokens=10), Heavy(0.2, failing={6: 1})
    await look_up_under(enricher, meter, [[6, 2, 1]], capacity=1, retry=Retry(2, FixedBackoff(0.1)))
    assert enricher.calls == [6, 2, 6, 1]
    assert enricher.times == pytest.approx([0, 0.2, 1, 1.2])


@virtual
async def test_R10_an_open_circuit_refuses_keys_and_lets_one_try_it():
    enricher = Timed(0.1, failing={0: 1, 1: 1})
    (batch,) = batches = [batch_of(range(9))]
    breaker = CircuitBreaker(failure_ratio=0.5, minimum_calls=2, open_for=10.0)
    consumer = await look_up(enricher, batches, circuit_breaker=breaker, capacity=1, buffer=100)
    assert enricher.calls == [0, 1]
    kinds = [type(outcome.error) for outcome in outcomes_of(batch)]
    assert kinds == [ConnectionError] * 2 + [CircuitOpenError] * 7
    assert consumer.pipeline.figures.calls == 2


@virtual
async def test_J3_a_place_that_keeps_answers_learns_what_a_call_for_one_key_weighed():
    class Keeping(Elsewhere):
        def learn(self, keys: Any, answers: Any, attempts: int, latencies: Any, weights: Any = None) -> None:
            weighed.update(zip(keys, weights, strict=True))

    weighed: dict[Any, Any] = {}
    await look_up(Weighing(), [[3, 4]], meter=Meter(tokens=10), known=(Keeping({}),))
    assert weighed == {3: {"tokens": 3}, 4: {"tokens": 4}}


class Stormy(Timed):
    """Refuses all calls for one second in three."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    async def _answer(self, key: Any) -> Any:
        self.times.append(now())
        await asyncio.sleep(0.01)
        if 1 <= self.times[-1] % 3 < 2:
            self.refused += 1
            hint(retry_after=1.0)
            raise EnricherError("too many", retry_after=1.0, overload=True)
        return {"x": key}


class StormyAndWeighing(Stormy):
    def weigh(self, keys: Any) -> Any:
        return {"tokens": 1.0}


@pytest.mark.parametrize("kind", [Stormy, StormyAndWeighing])
@virtual
async def test_G5_G3_few_keys_are_refused_in_a_storm_whether_limits_hear_of_the_ends_of_calls_or_not(kind):
    enricher, budget = kind(), Budget(f"storm of {kind.__name__}", Limit(200, 1.1))
    allowance = own_allowance(budget, "the lookup", enricher.weigh)
    pipeline = pipeline_of(enricher, range(600), allowance, budget=budget, retry=Retry(20), capacity=100)
    assert pipeline.attempts.gate.listens is (kind is StormyAndWeighing)
    await pipeline.run()
    assert pipeline.figures.calls == 600 + enricher.refused
    assert 1 <= enricher.refused <= 0.05 * 600
    assert now() < 3.8


@virtual
async def test_G8_a_lane_whose_call_had_to_wait_for_a_budget_makes_the_next_ones_at_the_same_price():
    class Looking(Timed):
        async def _answer(self, key: Any) -> Any:
            apart.update(lane.apart for lane in pipeline.attempts.lanes._lanes)
            return await super()._answer(key)

    apart: set[bool] = set()
    enricher, budget = Looking(), Budget("held", Limit(100, 1.0))
    allowance = own_allowance(budget, "the lookup", None)
    pipeline = pipeline_of(enricher, range(300), allowance, budget=budget, capacity=5)
    await pipeline.run()
    assert pipeline.figures.budget_seconds > 1
    assert apart == {False}
