"""G12: with ``on_spent="null"`` what a spend limit refuses ends only its own rows and elements."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from asyncio_operator import AsyncFunction, AsyncWaitOperator, Budget, BudgetExceeded, Cache, FixedBackoff, Limit, Retry
from asyncio_operator.lookup import Lookup
from asyncio_operator.lookup.key_batch import Failure, KeyBatch
from asyncio_operator.quota.share import shares
from tests.lookup import helpers
from tests.lookup.helpers import Recorded, at_once, forever, now, outcomes_of
from tests.operator.helpers import collect, virtual

NUMBERS = itertools.count()


def budget(on_spent: Any = "null", *limits: Limit, usd: float = 10.0) -> Budget:
    return Budget(f"spent {next(NUMBERS)}", *limits, spend={"usd": usd}, on_spent=on_spent)


class Paid(Recorded):
    """Answers with the key, which is what a call for it costs."""

    def __init__(self, max_batch: int = 1) -> None:
        super().__init__(at_once, max_batch)

    def weigh(self, keys: Sequence[Any]) -> Mapping[str, float]:
        return {"usd": sum(keys)}


async def look_up(spec: Budget, keys: Sequence[Sequence[Any]], max_batch: int = 1, **options: Any) -> list[KeyBatch]:
    reservation = shares.allowance(spec)
    done = await helpers.look_up(Paid(max_batch), keys, every=0.0, meter=reservation, capacity=1, **options)
    await reservation.settled()
    return done.batches


def shown(batch: KeyBatch) -> list[Any]:
    return [
        type(outcome.error).__name__ if type(outcome) is Failure else outcome["x"]
        for outcome in outcomes_of(batch)[: len(batch.keys)]
    ]


NO = "BudgetExceeded"


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("retry", [None, Retry(5, FixedBackoff(1.0), on=Exception)])
@virtual
async def test_G12_keys_that_would_pass_the_limit_fail_alone_and_lighter_ones_still_start(fail, retry):
    spec = budget()
    (batch,) = await look_up(spec, [[4, 5, 3, 2, 1]], fail=fail, retry=retry)
    assert shown(batch) == [4, 5, NO, NO, 1]
    figures = spec.statistics().units["usd"]
    assert (figures.used, figures.refused) == (10, 2)


@virtual
async def test_G12_a_batch_is_divided_until_what_fits_is_paid():
    (batch,) = await look_up(budget(), [[4, 9, 3, 2]], max_batch=4)
    assert shown(batch) == [4, NO, 3, 2]


@virtual
async def test_G12_once_the_money_is_spent_nothing_waits():
    """Not even for a round trip to the coordinator."""
    spec = budget()
    async with Lookup(Paid(), budget=spec) as lookup:
        await lookup.get(10)
        with pytest.raises(BudgetExceeded) as raised:
            await lookup.get(9)
        assert raised.value.on_spent == "null"
        began = now()
        for key in range(1, 500):
            with pytest.raises(BudgetExceeded):
                await lookup.get(key)
        assert now() == began
    assert spec.statistics().units["usd"].refused == 500


@virtual
async def test_G12_a_call_that_no_window_can_hold_still_ends_the_run():
    spec = budget("null", Limit(3, 1.0, "usd"))
    with pytest.raises(BudgetExceeded, match="it can never start"):
        await look_up(spec, [[1, 4]])


@virtual
async def test_G12_without_the_option_the_run_ends():
    with pytest.raises(BudgetExceeded, match='on_spent="null"'):
        await look_up(budget("fail"), [[4, 5, 3]], fail=False)


@virtual
async def test_G12_what_is_refused_is_not_remembered_or_cached():
    spec, enricher = budget(usd=1.0), Paid()
    cache = Cache()
    async with Lookup(enricher, budget=spec, cache=cache) as lookup:
        assert await lookup.get(1) == {"x": 1}
        for _ in range(2):
            with pytest.raises(BudgetExceeded):
                await lookup.get(2)
        assert await lookup.get(1) == {"x": 1}
    first, again = await look_up(budget(usd=3.0), [[3], [3]], remember=60.0)
    assert (shown(first), shown(again)) == ([3], [3])
    refused, again = await look_up(budget(usd=2.0), [[3], [3]], remember=60.0)
    assert (shown(refused), shown(again)) == ([NO], [NO])


class Halved(Paid):
    """A call with several keys fails, with an error that each of them may be the cause of."""

    async def lookup_many(self, keys: Sequence[Any]) -> Any:
        if len(keys) > 1:
            raise ValueError("too many keys")
        return await super().lookup_many(keys)


class Weighs(Paid):
    def weigh(self, keys: Sequence[Any]) -> Mapping[str, float]:
        return {"usd": 1 / (5 - max(keys))}


LATE = {"attempt_timeout": 1.0, "retry": Retry(3, FixedBackoff(1.0))}


@pytest.mark.parametrize(
    ("enricher", "spend", "options", "expected"),
    [
        # A call that the budget refuses is not made.
        (Paid(), {"usd": 10}, {}, [1, 1, 0, 1]),
        (Paid(4), {"usd": 10}, {}, [1, 1, 0, 1]),
        # A batch and its halves are one attempt: of [4, 5] and [4, 5, 3, 1], which were called, halves are refused.
        (Halved(2), {"usd": 10}, {}, [1, 1, 0, 1]),
        (Halved(4), {"usd": 20}, {}, [1, 1, 1, 1]),
        # The first call had no result in time, and the budget has nothing for the second one.
        (Recorded(lambda key: forever()), {"calls": 6}, LATE, [2, 2, 1, 1]),
        # What cannot be weighed is not called for.
        (Weighs(), {"usd": 10}, {}, [1, 0, 1, 1]),
    ],
)
@virtual
async def test_R5_a_status_counts_the_calls_that_were_made_and_not_the_one_that_was_refused(
    enricher: Recorded, spend: dict[str, float], options: dict[str, Any], expected: list[int]
) -> None:
    reservation = shares.allowance(Budget(f"spent {next(NUMBERS)}", spend=spend, on_spent="null"))
    done = await helpers.look_up(enricher, [[4, 5, 3, 1]], meter=reservation, timed=True, **options)
    await reservation.settled()
    assert [outcome.attempts for outcome in done.batches[0].outcomes] == expected


@virtual
async def test_R5_an_expired_answer_for_want_of_money_took_no_attempt() -> None:
    cache = Cache(expire_after_write=5.0, stale_if_error=True)
    reservation = shares.allowance(budget(usd=1.0))
    done = await helpers.look_up(Paid(), [[1], [1]], every=10.0, meter=reservation, cache=cache, timed=True)
    await reservation.settled()
    told = [outcomes_of(batch)[0] for batch in done.batches]
    assert [(one.answer, one.source, one.attempts) for one in told] == [({"x": 1}, "call", 1), ({"x": 1}, "stale", 0)]


class Costs(AsyncFunction[Any, Any]):
    def weigh(self, values: Sequence[Any]) -> Mapping[str, float]:
        return {"usd": sum(values)}

    async def invoke(self, value: Any) -> Any:
        return [value]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[4], [5], None, [1]]),
        ({"on_error": "skip"}, [[4], [5], [1]]),
        ({"on_error": lambda value, error: (value, type(error).__name__)}, [[4], [5], (3, NO), [1]]),
        ({"flatten": True}, [4, 5, 1]),
        ({"flatten": True, "on_error": lambda value, error: [-value]}, [4, 5, -3, 1]),
        ({"retry": Retry(4, FixedBackoff(1.0), on=Exception)}, [[4], [5], None, [1]]),
    ],
)
@virtual
async def test_G12_an_element_of_the_operator_ends_by_on_error(options, expected):
    operator = AsyncWaitOperator(Costs(), budget=budget(), capacity=1, **options)
    assert await collect(operator.process([4, 5, 3, 1])) == expected
    assert now() < 1
