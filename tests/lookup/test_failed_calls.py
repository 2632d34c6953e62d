"""G11: what a call that failed has used of a spend limit, and of a window, however it ended."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from asyncio_operator import Budget, BudgetExceeded, EnricherError, Hedge, Limit
from asyncio_operator.enricher import billed, settle
from asyncio_operator.errors import ConfigurationError, ResultError
from asyncio_operator.lookup import Lookup
from asyncio_operator.lookup.options import batching_of
from enrichers import FunctionEnricher
from tests.lookup.helpers import Recorded
from tests.operator.helpers import virtual

NUMBERS = itertools.count()

ESTIMATE = 0.5
TOKENS = 10.0


def budget(usd: float = 100.0) -> Budget:
    return Budget(f"failed {next(NUMBERS)}", Limit(1000, 60.0, "tokens"), spend={"usd": usd})


def weigh(keys: Sequence[Any]) -> dict[str, float]:
    return {"usd": ESTIMATE * len(keys), "tokens": TOKENS * len(keys)}


def paid(call: Any, **options: Any) -> FunctionEnricher:
    return FunctionEnricher(call, "x long", weigh=weigh, **options)


class Batched(Recorded):
    """The same for several keys in a call."""

    weigh = staticmethod(weigh)


def used(spec: Budget, unit: str = "usd") -> float:
    figures = spec.statistics().units[unit]
    assert unit != "usd" or figures.reserved == 0
    return figures.used


def raising(error: BaseException) -> Callable[[], Any]:
    def end() -> None:
        raise error

    return end


def settling(usd: float, then: Callable[[], Any]) -> Callable[[], Any]:
    def end() -> Any:
        settle({"usd": usd})
        return then()

    return end


def saying(*said: bool, then: Callable[[], Any] = lambda: None) -> Callable[[], Any]:
    def end() -> Any:
        for one in said:
            billed(one)
        return then()

    return end


def refusal() -> EnricherError:
    return EnricherError("no", billed=False)


ENDS: dict[str, tuple[Callable[[], Any], float]] = {
    "an answer": (lambda: {"x": 1}, ESTIMATE),
    "a miss": (lambda: None, ESTIMATE),
    "a miss that costs nothing": (saying(False), 0.0),
    "an answer after another request was refused": (saying(False, True, then=lambda: {"x": 1}), ESTIMATE),
    "a refusal after another request was answered": (saying(True, then=raising(refusal())), ESTIMATE),
    "two refused requests": (saying(False, False), 0.0),
    "an answer with its usage": (settling(0.2, lambda: {"x": 1}), 0.2),
    "an answer with a usage above the estimate": (settling(0.7, lambda: {"x": 1}), 0.7),
    "an error": (raising(refusal()), 0.0),
    "an error with its usage": (settling(0.2, raising(refusal())), 0.2),
    "an error with a usage above the estimate": (settling(0.9, raising(refusal())), 0.9),
    "overload": (raising(EnricherError("busy", overload=True)), 0.0),
    "asked to come later": (raising(EnricherError("later", retry_after=3.0)), 0.0),
    "asked to come at once": (raising(EnricherError("later", retry_after=0.0)), 0.0),
    "asked to come later, and billed": (raising(EnricherError("later", retry_after=3.0, billed=True)), ESTIMATE),
    "an error that says nothing": (raising(EnricherError("?")), ESTIMATE),
    "a lost connection": (raising(ConnectionResetError()), ESTIMATE),
    "a timeout of the client": (raising(TimeoutError()), ESTIMATE),
    "an error of the function": (raising(ValueError("a bug")), ESTIMATE),
    "an answer of the wrong shape": (raising(ResultError("wrong")), ESTIMATE),
    "refusals of several requests": (raising(ExceptionGroup("two", [refusal(), refusal()])), 0.0),
    "a refusal and a lost connection": (raising(ExceptionGroup("two", [refusal(), ConnectionError()])), ESTIMATE),
}


@pytest.mark.parametrize("end", ENDS)
@virtual
async def test_G11_what_a_call_has_used_follows_from_how_it_ended(end: str) -> None:
    ends, cost = ENDS[end]
    spec = budget()

    async def call(key: int) -> Any:
        await asyncio.sleep(0.1)
        return ends()

    async with Lookup(paid(call), budget=spec, retry=None) as lookup:
        await asyncio.gather(*(lookup.get(key) for key in range(3)), return_exceptions=True)
    assert used(spec) == pytest.approx(3 * cost)
    # A window keeps the estimate, whatever becomes of the call.
    assert used(spec, "tokens") == 3 * TOKENS


@virtual
async def test_G11_a_call_without_an_answer_keeps_its_estimate() -> None:
    spec = budget()

    async def call(key: int) -> Any:
        await asyncio.sleep(1000)

    async with Lookup(paid(call), budget=spec, retry=None, timeout=1.0) as lookup:
        with pytest.raises(TimeoutError):
            await lookup.get(1)
        waiting = asyncio.ensure_future(lookup.get(2))
        await asyncio.sleep(0.5)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert used(spec) == 2 * ESTIMATE


@virtual
async def test_G11_a_batch_and_its_halves_count_by_their_own_ends() -> None:
    spec = budget()

    async def call(keys: Any) -> Any:
        asked = keys if isinstance(keys, list) else [keys]
        if 3 in asked:
            raise EnricherError("not 3", retryable=False, billed=False)
        found = [{"x": key} for key in asked]
        return found if isinstance(keys, list) else found[0]

    source = Batched(call, max_batch=4)
    async with Lookup(source, budget=spec, batching=batching_of(source, None)) as lookup:
        found = await asyncio.gather(*(lookup.get(key) for key in range(4)), return_exceptions=True)
    assert found[:3] == [{"x": 0}, {"x": 1}, {"x": 2}]
    assert used(spec) == 3 * ESTIMATE
    # [0, 1, 2, 3], [0, 1], [2, 3], [2], [3]
    assert used(spec, "tokens") == 10 * TOKENS


@virtual
async def test_G11_a_copy_counts_by_its_own_end_and_a_call_that_is_cancelled_keeps_its_estimate() -> None:
    spec = budget()
    second: set[int] = set()

    async def call(key: int) -> Any:
        if key >= 10 and key not in second:
            second.add(key)
            await asyncio.sleep(5)
        elif key == 10:
            raise refusal()
        return {"x": key}

    async with Lookup(paid(call), budget=spec, hedge=Hedge(after=0.5, extra=0.5)) as lookup:
        for key in range(8):
            await lookup.get(key)
        # The copy is refused, and the first call answers.
        assert await lookup.get(10) == {"x": 10}
        # The copy answers, and the first call is cancelled.
        assert await lookup.get(11) == {"x": 11}
    assert used(spec) == 11 * ESTIMATE
    assert used(spec, "tokens") == 12 * TOKENS


@virtual
async def test_G11_what_is_given_back_can_be_spent() -> None:
    """With money for three calls, thirty refused ones leave it all."""
    spec = budget(3 * ESTIMATE)

    async def call(key: int) -> Any:
        if key < 30:
            raise refusal()
        return {"x": key}

    async with Lookup(paid(call), budget=spec, retry=None) as lookup:
        refused = await asyncio.gather(*(lookup.get(key) for key in range(30)), return_exceptions=True)
        assert {type(error) for error in refused} == {EnricherError}
        for key in (30, 31, 32):
            assert await lookup.get(key) == {"x": key}
        with pytest.raises(BudgetExceeded):
            await lookup.get(33)
    assert used(spec) == 3 * ESTIMATE


@given(st.lists(st.sampled_from(sorted(ENDS)), min_size=1, max_size=20), st.floats(1.0, 5.0))
def test_G11_no_more_is_used_than_is_billed_and_no_more_than_may_be_spent(ends: list[str], usd: float) -> None:
    spec, billed_usd = budget(usd), [0.0]

    async def call(key: int) -> Any:
        end, cost = ENDS[ends[key]]
        billed_usd[0] += cost
        await asyncio.sleep(0.01 * (key % 3))
        return end()

    @virtual
    async def run() -> None:
        async with Lookup(paid(call), budget=spec, retry=None) as lookup:
            await asyncio.gather(*(lookup.get(key) for key in range(len(ends))), return_exceptions=True)

    run()
    assert used(spec) == pytest.approx(billed_usd[0])


def test_G11_what_is_said_is_checked() -> None:
    billed(False)  # Outside of a call, nothing happens.
    with pytest.raises(ConfigurationError, match="whether is 'no'"):
        billed("no")  # type: ignore[arg-type]
    assert EnricherError("x").billed is None


@pytest.mark.parametrize("weighed", [False, True])
@virtual
async def test_G5_all_runs_of_a_budget_wait_as_long_as_an_error_of_one_asks_to(weighed: bool) -> None:
    spec, loop = Budget(f"failed {next(NUMBERS)}", Limit(100, 1.0)), asyncio.get_running_loop()
    started: list[float] = []
    reported = EnricherError("busy", retry_after=50.0)
    reported.reported = True
    errors = [EnricherError("busy", retry_after=5.0, overload=True), reported]

    async def call(key: int) -> Any:
        started.append(loop.time())
        if key < 2:
            raise errors[key]

    async with (
        Lookup(FunctionEnricher(call, "x long", weigh=weigh if weighed else None), budget=spec) as refused,
        Lookup(FunctionEnricher(call, "x long"), budget=spec) as waits,
    ):
        for key, expected in ((1, 0.0), (0, 5.0)):
            await asyncio.gather(waits.get(2), refused.get(key), return_exceptions=True)
            await asyncio.gather(*(waits.get(key) for key in range(3, 6)))
            assert started[-1] - started[-4] == pytest.approx(expected, abs=0.1)
