"""G for lookups: keys are weighed and counted, and no option of a lookup hides what a budget refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from asyncio_operator import (
    Batching,
    Budget,
    BudgetExceeded,
    Cache,
    CoordinatorError,
    FixedBackoff,
    FunctionError,
    Limit,
    ResultError,
    Retry,
)
from asyncio_operator.lookup import Lookup
from asyncio_operator.lookup.key_batch import Failure, KeyBatch
from tests.lookup import helpers
from tests.lookup.helpers import Recorded, at_once, now, outcomes_of
from tests.operator.helpers import virtual
from tests.operator.meter import Meter


class Weighing(Recorded):
    """Answers with the key after `seconds`, and weighs the sum of the keys in tokens."""

    def __init__(self, max_batch: int = 1, seconds: float = 0.0) -> None:
        super().__init__(self._answer, max_batch)
        self.seconds = seconds

    async def _answer(self, keys: Any) -> Any:
        await asyncio.sleep(self.seconds)
        return await at_once(keys)

    def weigh(self, keys: Sequence[Any]) -> Mapping[str, float]:
        return {"tokens": sum(keys)}


async def look_up(enricher: Recorded, meter: Any, keys: Sequence[Sequence[Any]], **options: Any) -> list[KeyBatch]:
    """Run batches of keys through a pipeline whose calls take what they need of the meter."""
    done = await helpers.look_up(enricher, keys, meter=meter, **{"every": 0.0} | options)
    return done.batches


@virtual
async def test_G1_keys_of_calls_count_and_those_that_are_shared_do_not():
    meter, enricher = Meter(keys=5), Weighing()
    batches = await look_up(enricher, meter, [[1, 2, 3], [3, 2, 1, None], [4, 5, 6]], remember=60.0)
    assert enricher.calls == [1, 2, 3, 4, 5, 6]
    assert meter.times == [0, 0, 0, 0, 0, 10]
    assert outcomes_of(batches[1])[:3] == [{"x": 3}, {"x": 2}, {"x": 1}]


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("options", [{}, {"retry": Retry(5, FixedBackoff(1.0))}, {"batching": Batching(3, linger=1.0)}])
@virtual
async def test_G6_no_option_hides_it(fail, options):
    meter, enricher = Meter(tokens=12), Weighing(max_batch=3)
    with pytest.raises(BudgetExceeded):
        await look_up(enricher, meter, [[1, 2, 13]], fail=fail, **options)
    assert now() <= 1


@pytest.mark.parametrize("error", [BudgetExceeded("25 usd were spent"), CoordinatorError("redis://x: refused")])
@pytest.mark.parametrize("stale", [False, True])
@virtual
async def test_G6_it_ends_the_run_also_where_an_answer_is_only_refreshed(error, stale):
    meter, enricher = Meter(), Weighing()
    cache = Cache(refresh_after=1.0, expire_after_write=100.0, stale_if_error=stale)

    def spent(weights: Any, now: float) -> float:
        raise error

    async def spend() -> None:
        await asyncio.sleep(2.5)
        meter.next_start = spent  # type: ignore[method-assign]

    spending = asyncio.ensure_future(spend())
    with pytest.raises(type(error), match=str(error)):
        await look_up(enricher, meter, [[1]] * 5, cache=cache, every=2.0)
    # Batches come every 2 s, from 2 s on. The second finds an old answer.
    assert now() == 4
    await spending


@pytest.mark.parametrize("error", [ZeroDivisionError(), asyncio.CancelledError()])
@virtual
async def test_G4_a_key_that_cannot_be_weighed_fails_alone(error):
    class Picky(Weighing):
        def weigh(self, keys: Sequence[Any]) -> Mapping[str, float]:
            if min(keys) == 0:
                raise error
            return {"tokens": 1}

    enricher = Picky(max_batch=4)
    (batch,) = await look_up(enricher, Meter(), [[1, 0, 2, 3]])
    outcomes = dict(zip(batch.keys, outcomes_of(batch), strict=True))
    assert type(outcomes.pop(0)) is Failure
    assert outcomes == {1: {"x": 1}, 2: {"x": 2}, 3: {"x": 3}}
    async with Lookup(enricher, budget=Budget("picky", Limit(9, unit="tokens"))) as lookup:
        with pytest.raises(ResultError, match=rf"weigh failed for .* with {type(error).__name__}"):
            await lookup.get(0)
        assert await lookup.get(1) == {"x": 1}
        error = SystemExit(3)
        with pytest.raises(FunctionError, match=r"weigh failed for \[0\] with SystemExit: 3") as raised:
            await lookup.get(0)
        assert raised.value.__cause__ is error, "X5: it ends the run, with a name"


@virtual
async def test_G1_a_waiting_lookup_that_is_cancelled_takes_nothing():
    enricher = Weighing()
    async with Lookup(enricher, budget=Budget("cancelled", Limit(1, per=10.0))) as lookup:
        assert await lookup.get(1) == {"x": 1}
        waiting = [asyncio.ensure_future(lookup.get(key)) for key in (2, 3)]
        await asyncio.sleep(5)
        waiting[0].cancel()
        assert await waiting[1] == {"x": 3}
        assert 10 <= now() < 10.2
    assert enricher.calls == [1, 3]


@pytest.mark.parametrize("max_batch", [1, 4])
@virtual
async def test_L6_refreshes_leave_a_scarce_budget_to_calls_that_callers_wait_for(max_batch):
    """At two calls a second, twenty hits each ask for a refresh. A miss waits for the next call, not for theirs."""
    enricher, cache = Weighing(max_batch, seconds=0.1), Cache(refresh_after=0.1, expire_after_write=1000.0)
    name = f"refreshes {max_batch}"
    async with Lookup(enricher, cache=cache, budget=Budget(name, Limit(2, 1.0)), capacity=4) as lookup:
        for key in range(20):
            await lookup.get(key)
        for key in range(20):
            await lookup.get(key)
        await asyncio.sleep(0.3)
        for key in (99, 100):
            began = now()
            await lookup.get(key)
            assert now() - began <= 1.2
        calls = len(enricher.calls)
        await asyncio.sleep(12)
        assert len(enricher.calls) > calls, "refreshes go on"
