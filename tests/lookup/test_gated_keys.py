"""Limits in front of the calls for single keys: what may start, what is refused, and what is known of its end."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from itertools import count
from typing import Any

import pytest

from asyncio_operator import (
    AdaptiveCapacity,
    Budget,
    CircuitBreaker,
    CircuitOpenError,
    EnricherError,
    FixedBackoff,
    Limit,
    RateLimit,
    Retry,
)
from asyncio_operator.engine.gate import REFUSALS
from asyncio_operator.engine.share import own_allowance
from asyncio_operator.enricher import hint, settle
from asyncio_operator.lookup.key_batch import Answer, Failure
from tests.lookup.helpers import Recorded, batch_of, look_up, lookups_of, now
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
    kinds = [type(outcome.error) for outcome in batch.outcomes]
    assert kinds == [ConnectionError] * 2 + [CircuitOpenError] * 7
    assert consumer.pipeline.figures.calls == 2


def test_R10_refused_keys_let_the_loop_turn():
    async def main() -> None:
        turns = count()

        async def turning() -> None:
            while True:
                await asyncio.sleep(0)
                next(turns)

        task = asyncio.ensure_future(turning())
        breaker = CircuitBreaker(failure_ratio=0.5, minimum_calls=1, open_for=1e6)
        (batch,) = batches = [batch_of(range(2_000))]
        await look_up(Timed(failing={0: 1}), batches, circuit_breaker=breaker, capacity=1)
        task.cancel()
        assert [type(outcome.error) for outcome in batch.outcomes[1:]] == [CircuitOpenError] * 1_999
        assert next(turns) >= 2_000 // REFUSALS

    asyncio.run(main())


@virtual
async def test_R11_an_adaptive_capacity_holds_for_keys_and_hears_of_their_ends():
    class OverloadedError(TimeoutError):
        overload = True

    async def answer(key: Any) -> Any:
        await asyncio.sleep(1.0)
        if key % 2:
            raise OverloadedError
        return {"x": key}

    enricher = Recorded(answer)
    capacity = AdaptiveCapacity(initial=8, minimum=2, maximum=8)
    await look_up(enricher, [batch_of(range(60))], capacity=capacity)
    assert enricher.most == 8
    assert now() > 60 / 8 * 2


@pytest.mark.parametrize("retry", [None, Retry(2, FixedBackoff(1.0))])
@virtual
async def test_O12_a_call_that_was_cut_holds_its_slot_of_a_budget_until_it_returns(retry):
    async def deaf(key: Any) -> Any:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            settle({"tokens": 5})
            await asyncio.sleep(20)
        return {"x": key}

    meter, enricher = Meter(in_flight=1), Recorded(deaf)
    (batch,) = await look_up_under(enricher, meter, [[1, 2]], timeout=3.0, retry=retry, grace_period=100.0)
    assert meter.times == [0, 23]
    assert [type(outcome) for outcome in batch.outcomes] == [Failure, Failure]
    assert [(at, settled) for at, _, settled in meter.returns] == [(23, {"tokens": 5}), (46, {"tokens": 5})]


@virtual
async def test_O17_each_key_settles_its_own_call_also_where_calls_set_variables():
    variable: ContextVar[Any] = ContextVar("variable", default=0)
    tasks = []

    async def late(key: Any) -> None:
        await asyncio.sleep(2.5)
        settle({"tokens": 1000})

    async def answer(key: Any) -> Any:
        assert variable.get() == 0
        if key % 3 == 0:
            variable.set(key)
        tasks.append(asyncio.ensure_future(late(key)))
        await asyncio.sleep(1)
        settle({"tokens": key})
        return {"x": key}

    meter = Meter()
    await look_up_under(Recorded(answer), meter, [range(1, 13)], capacity=2)
    assert sorted(settled["tokens"] for *_, settled in meter.returns if settled) == list(range(1, 13))
    await asyncio.gather(*tasks)


@virtual
async def test_G4_keys_are_weighed_one_by_one_and_each_is_weighed_once():
    class Counted(Weighing):
        weighed: list[Any] = []  # noqa: RUF012

        def weigh(self, keys: Any) -> Any:
            self.weighed += keys
            return super().weigh(keys)

    meter, enricher = Meter(tokens=10), Counted()
    batches = await look_up_under(enricher, meter, [[3, 4, 5, 6]], timed=True)
    assert meter.weighed("tokens") == [3, 4, 5, 6]
    assert meter.times == [0, 0, 10, 20]
    assert enricher.weighed == [3, 4, 5, 6]
    assert [type(outcome) for outcome in batches[0].outcomes] == [Answer] * 4


@pytest.mark.parametrize("turns", range(40))
def test_G1_a_run_that_is_cancelled_at_any_turn_has_started_and_returned_the_same_calls(turns):
    @virtual
    async def check() -> None:
        async def answer(key: Any) -> Any:
            await asyncio.sleep(0)
            settle({"tokens": 1})
            await asyncio.sleep(key % 2)
            return {"x": key}

        meter, enricher = Meter(per=2.0, calls=2, in_flight=2), Recorded(answer)
        running = asyncio.ensure_future(pipeline_of(enricher, range(6), meter, capacity=3).run())
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        assert meter.joined == meter.running == 0
        assert len(meter.starts) == len(meter.returns) == len(enricher.calls)

    check()


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
async def test_R10_a_storm_refuses_the_keys_in_flight_and_few_more_under_a_rate_limit_too():
    enricher = Stormy()
    pipeline = pipeline_of(enricher, range(600), rate_limit=RateLimit(200, 1.1), retry=Retry(20), capacity=20)
    await pipeline.run()
    assert pipeline.figures.calls == 600 + enricher.refused
    assert 1 <= enricher.refused <= 20 + 0.01 * 600
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
