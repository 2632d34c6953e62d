"""G of the engine's side, on virtual time: calls are weighed, held, split, settled, and reported when they return."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from math import inf
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from asyncio_operator import (
    AsyncFunction,
    AsyncWaitOperator,
    BatchAsyncFunction,
    Batching,
    BlockingFunction,
    BudgetExceeded,
    CircuitBreaker,
    CircuitOpenError,
    FixedBackoff,
    FunctionError,
    RateLimit,
    ResultError,
    Retry,
)
from asyncio_operator.enricher import Hint, hint, settle
from asyncio_operator.errors import ConfigurationError, EnricherError
from asyncio_operator.testing import VirtualTimeLoop
from tests.operator.attempts import BAD, OK, Batches, Script, retry
from tests.operator.helpers import collect, collect_timed, fail, forever, late, now, run_on, same, virtual
from tests.operator.meter import Meter, metered


def under(meter: Meter, function: Any, **options: Any) -> AsyncWaitOperator:
    """An operator whose runs take what they need of the meter."""
    return AsyncWaitOperator(function, budget=metered(meter), **options)


class Weighing(AsyncFunction[Any, Any]):
    """Weighs tokens: the value itself, unless `weigh` says otherwise."""

    def __init__(self, call: Callable[[Any], Any] = same, weigh: Callable[[Sequence[Any]], Any] | None = None) -> None:
        self.call = call
        self.weighed: list[list[Any]] = []
        self._weigh = weigh or (lambda values: {"tokens": sum(values)})

    def weigh(self, values: Sequence[Any]) -> Mapping[str, float]:
        self.weighed.append(list(values))
        return self._weigh(values)

    async def invoke(self, value: Any) -> Any:
        return await self.call(value)


class WeighingBatches(Batches):
    """The same for batches."""

    def weigh(self, values: Sequence[Any]) -> Mapping[str, float]:
        return {"tokens": sum(values)}


# -- when calls start


@virtual
async def test_G2_calls_start_as_the_budget_admits_them_in_their_order(mode):
    meter = Meter(calls=2)
    got = await collect_timed(under(meter, same, mode=mode).process(range(5)))
    assert got == [(0, 0), (1, 0), (2, 10), (3, 10), (4, 20)]
    assert meter.starts[0][1] == {"calls": 1, "keys": 1}
    assert [at for at, *_ in meter.returns] == meter.times
    assert meter.running == 0
    assert meter.joined == 0


@virtual
async def test_G1_a_call_weighs_what_the_function_says_and_its_values(mode):
    meter, function = Meter(tokens=10), Weighing()
    assert await collect_timed(under(meter, function, mode=mode).process([6, 5, 5])) == [(6, 0), (5, 10), (5, 10)]
    assert meter.starts[0][1] == {"calls": 1, "keys": 1, "tokens": 6}
    # Once each, however often they were asked for.
    assert function.weighed == [[6], [5], [5]]

    meter = Meter(keys=4)
    batches = WeighingBatches()
    await collect(under(meter, batches, mode=mode, batching=Batching(3)).process(range(6)))
    assert batches.calls == [[0, 1, 2], [3, 4, 5]]
    assert meter.starts == [(10, {"calls": 1, "keys": 3, "tokens": 3}), (20, {"calls": 1, "keys": 3, "tokens": 12})]


@virtual
async def test_G1_a_plain_function_may_weigh_too(mode):
    async def call(value: Any) -> Any:
        return value

    meter = Meter(tokens=10)
    call.weigh = lambda values: {"tokens": sum(values)}  # type: ignore[attr-defined]
    assert await collect_timed(under(meter, call, mode=mode).process([6, 5])) == [(6, 0), (5, 10)]
    call.weigh = 7  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match=r"call\.weigh is 7"):
        under(meter, call, mode=mode)


@virtual
async def test_G2_budget_and_rate_limit_hold_both(mode):
    meter = Meter(calls=2)
    await collect(under(meter, same, mode=mode, rate_limit=RateLimit(1, per=3.0)).process(range(5)))
    assert meter.times == [0, 3, 10, 13, 20]


@virtual
async def test_G2_what_is_admitted_later_is_started_at_the_news(mode):
    meter = Meter()
    meter.set_closed(True)
    running = asyncio.ensure_future(collect_timed(under(meter, same, mode=mode).process(range(3))))
    await asyncio.sleep(7)
    assert meter.starts == []
    meter.set_closed(False)
    assert await running == [(0, 7), (1, 7), (2, 7)]


# -- elements of a call that waits


@virtual
async def test_R2_an_element_that_waits_for_the_budget_ends_at_its_deadline(mode):
    meter, script = Meter(calls=1), Script({1: [BAD, OK]})
    operator = under(meter, script, mode=mode, retry=retry(), timeout=5.0, on_timeout=late)
    assert await collect_timed(operator.process([1, 2])) == [(("late", 1), 5.0), (2, 10.0)]
    assert script.times(1) == [0]
    assert meter.times == [0, 10]


@virtual
async def test_G4_a_call_that_an_element_has_left_weighs_less(mode):
    """The second attempts of 1 and 2 form one batch; 1 reaches its deadline before the budget admits it."""
    meter = Meter(per=100.0, calls=2)

    def act(values, number):
        if number < 2:
            raise ConnectionError
        return values

    batches = WeighingBatches(act)

    async def source():
        yield 1
        await asyncio.sleep(30)
        yield 2

    operator = under(
        meter, batches, mode=mode, batching=Batching(2, linger=1.0), retry=retry(delay=40.0), timeout=90.0,
        on_timeout=late,
    )  # fmt: skip
    assert sorted(await collect_timed(operator.process(source())), key=str) == [(("late", 1), 91), (2, 100)]
    assert [tuple(call) for call in batches.calls][-1] == (2,)
    assert meter.starts[-1][1] == {"calls": 1, "keys": 1, "tokens": 2}


# -- calls that can never fit


@virtual
async def test_G6_a_batch_that_can_never_fit_is_split_at_once(mode):
    meter, batches = Meter(tokens=10), WeighingBatches()
    operator = under(meter, batches, mode=mode, batching=Batching(8), timeout=5.0)
    got = await collect_timed(operator.process([3, 3, 3, 3, 1, 1, 1, 1]))
    assert [value for value, _ in got] == [3, 3, 3, 3, 1, 1, 1, 1]
    assert batches.calls == [[3, 3], [3, 3], [1, 1, 1, 1]]
    assert batches.times == [0, 10, 10]
    assert operator.metrics.retries == 0


@pytest.mark.parametrize("on_error", ["skip", lambda value, error: None])
@virtual
async def test_G6_one_element_that_can_never_fit_ends_the_run_at_once_whatever_on_error_says(mode, on_error):
    meter = Meter(tokens=10)
    operator = under(meter, Weighing(), mode=mode, on_error=on_error, retry=retry())
    with pytest.raises(BudgetExceeded, match=r"11.* tokens are more than 10"):
        await collect(operator.process([1, 11, 2]))
    assert now() == 0
    assert meter.joined == meter.running == 0


@virtual
async def test_G6_the_budget_may_end_the_run_at_any_moment(mode):
    meter = Meter(in_flight=2)
    run = asyncio.ensure_future(collect(under(meter, forever, mode=mode, on_error="skip").process(range(5))))
    await asyncio.sleep(3)
    meter.fail(BudgetExceeded("25 usd were spent", unit="usd"))
    with pytest.raises(BudgetExceeded, match="25 usd were spent"):
        await run
    assert meter.running == meter.joined == 0


@pytest.mark.parametrize(
    ("weigh", "message"),
    [
        (lambda values: 1 / 0, "failed for .* with ZeroDivisionError"),
        (lambda values: None, "its result is None; it must be a mapping"),
        (lambda values: {"tokens": -1}, "tokens.* is -1; it must be a number from 0 to 1e.15"),
        (lambda values: {"tokens": float("nan")}, "is nan"),
        (lambda values: {"tokens": "12"}, "is '12'"),
        (lambda values: {"calls": 2}, "has the unit 'calls', which is counted"),
        (lambda values: {3: 2}, "has the unit 3; a unit is a word"),
    ],
)
@virtual
async def test_G4_a_weigh_that_fails_fails_its_elements(mode, weigh, message):
    def only_odd_ones(values):
        return weigh(values) if any(value % 2 for value in values) else {}

    meter, seen = Meter(), []

    def on_error(value, error):
        seen.append(error)
        return value, type(error)

    got = await collect(under(meter, Weighing(weigh=only_odd_ones), mode=mode, on_error=on_error).process(range(4)))
    assert sorted(got, key=str) == sorted([0, (1, ResultError), 2, (3, ResultError)], key=str)
    assert len(meter.starts) == 2
    with pytest.raises(ResultError, match=message):
        raise seen[0]
    with pytest.raises(FunctionError, match=message):
        await collect(under(meter, Weighing(weigh=only_odd_ones), mode=mode, retry=retry()).process(range(4)))
    assert now() == 0


def test_G4_weigh_is_an_ordinary_method():
    class Wrong(Weighing):
        async def weigh(self, values):  # type: ignore[override]
            return {}

    with pytest.raises(ConfigurationError, match=r"Wrong\.weigh"):
        AsyncWaitOperator(Wrong())


# -- calls in flight


@pytest.mark.parametrize("listens", [True, False])
@virtual
async def test_G1_a_slot_comes_back_when_the_call_has_returned(mode, listens):
    meter = Meter(in_flight=2, listens=listens)
    operator = under(meter, Script(lambda value, attempt: OK), mode=mode)
    await collect(operator.process(range(10)))
    assert meter.most <= 2

    async def slow(value):
        await asyncio.sleep(3)
        return value

    meter = Meter(in_flight=2, listens=listens)
    assert await collect(under(meter, slow, mode=mode).process(range(5))) == list(range(5))
    assert meter.times == [0, 0, 3, 3, 6]
    assert meter.most == 2


@pytest.mark.parametrize("listens", [True, False])
@virtual
async def test_O12_a_call_that_ignores_its_cancellation_keeps_its_slot_until_it_returns(mode, listens):
    async def deaf(value):
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            settle({"tokens": 5})
            await asyncio.sleep(20)
        return value

    meter = Meter(in_flight=1, listens=listens)
    operator = under(meter, deaf, mode=mode, timeout=3.0, on_timeout=late)
    assert await collect_timed(operator.process([1, 2])) == [(("late", 1), 3), (("late", 2), 26)]
    assert meter.times == [0, 23]
    # What the late call says counts too: it was paid.
    told = [(at, settled) for at, _, settled in meter.returns]
    # A call that does not have to wait for its slot needs no report of its own, where none can say anything.
    assert told == [(23, {"tokens": 5}), (46, {"tokens": 5})][not listens :]


@virtual
async def test_G2_a_refusal_of_the_circuit_breaker_takes_nothing_and_waits_for_nothing(mode):
    breaker = CircuitBreaker(failure_ratio=0.5, window=100.0, minimum_calls=2, open_for=1000.0)
    meter = Meter(calls=2)
    operator = under(
        meter, fail, mode=mode, capacity=1, circuit_breaker=breaker, on_error=lambda value, error: type(error)
    )
    got = await collect_timed(operator.process(range(4)))
    assert got == [(ValueError, 0), (ValueError, 0), (CircuitOpenError, 0), (CircuitOpenError, 0)]
    assert len(meter.starts) == 2


# -- what calls say


@virtual
async def test_G4_settle_tells_the_true_weight_of_its_call(mode):
    async def call(value):
        await asyncio.sleep(1)
        settle({"tokens": value})
        await asyncio.create_task(settle_in_a_task(value))
        return value

    async def settle_in_a_task(value):
        settle({"tokens": 0.5, "usd": value})

    meter = Meter()
    await collect(under(meter, Weighing(call), mode=mode).process([3, 4]))
    settled = sorted((weights["tokens"], settled) for _, weights, settled in meter.returns)
    assert settled == [(3, {"tokens": 3.5, "usd": 3}), (4, {"tokens": 4.5, "usd": 4})]


@virtual
async def test_O17_each_call_settles_its_own_also_where_calls_set_variables(mode):
    variable = ContextVar("variable", default=0)

    async def call(value):
        assert variable.get() == 0
        variable.set(value)
        settle({"tokens": value})
        await asyncio.sleep(1)
        settle({"tokens": 0.5})
        assert variable.get() == value
        return value

    meter = Meter()
    await collect(under(meter, Weighing(call), mode=mode, capacity=2).process(range(1, 7)))
    settled = sorted((weights["tokens"], settled["tokens"]) for _, weights, settled in meter.returns if settled)
    assert settled == [(value, value + 0.5) for value in range(1, 7)]


@virtual
async def test_G11_the_error_of_a_call_that_returns_late_says_whether_it_is_billed(mode):
    async def deaf(value):
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(20)
        raise EnricherError("no such key", billed=False)

    class Bills(Meter):
        billed: list[bool]

        def returned(self, weights, settled, started, now, billed=True):
            self.billed = [*getattr(self, "billed", []), billed]
            super().returned(weights, settled, started, now)

    meter = Bills()
    await collect(under(meter, deaf, mode=mode, timeout=3.0, on_timeout=late).process([1, 2]))
    assert meter.billed == [False, False]


@virtual
async def test_G4_a_task_that_outlives_its_call_settles_no_other(mode):
    tasks = []

    async def call(value):
        if value == 0:
            tasks.append(asyncio.ensure_future(settle_late()))
        else:
            await asyncio.sleep(10)
        return value

    async def settle_late():
        await asyncio.sleep(5)
        settle({"tokens": 7})

    meter = Meter()
    await collect(under(meter, call, mode=mode, capacity=1).process(range(3)))
    assert [settled for *_, settled in meter.returns] == [None, None, None]
    await asyncio.gather(*tasks)


def test_G4_a_thread_settles_the_call_that_started_it():
    threads = []

    def call(value: int) -> int:
        settle({"tokens": value})
        hint({"tokens": Hint(remaining=value)})
        threads.append(threading.get_ident())
        return value

    async def main() -> None:
        meter = Meter()
        assert await collect(under(meter, BlockingFunction(call)).process(range(20))) == list(range(20))
        assert sorted(settled["tokens"] for *_, settled in meter.returns if settled) == list(range(20))
        assert len(meter.hints) == 20
        assert threading.get_ident() not in threads

    asyncio.run(main())


@virtual
async def test_G5_hint_tells_the_budget_what_the_source_says(mode):
    async def call(value):
        await asyncio.sleep(2)
        hint({"tokens": {"remaining": 10, "reset_after": 3.5}, "calls": Hint(limit=5)}, retry_after=4)
        hint()
        return value

    meter = Meter()
    await collect(under(meter, call, mode=mode).process([1]))
    assert meter.hints == [({"tokens": Hint(remaining=10, reset_after=3.5), "calls": Hint(limit=5)}, 4, 2)]


@virtual
async def test_G4_settle_and_hint_do_nothing_without_a_budget_or_a_call(mode):
    async def call(value):
        settle({"tokens": 1})
        hint(retry_after=1)
        return value

    settle({"tokens": 1})
    hint({"tokens": Hint(remaining=0)})
    assert await collect(AsyncWaitOperator(call, mode=mode).process(range(3))) == [0, 1, 2]
    assert await collect(AsyncWaitOperator(call, mode=mode, retry=retry()).process(range(3))) == [0, 1, 2]


@pytest.mark.parametrize(
    ("say", "message"),
    [
        (lambda: settle(3), "settle.weights. is 3; it must be a mapping of units to amounts"),  # type: ignore[arg-type]
        (lambda: settle({"keys": 3}), "has the unit 'keys', which is counted"),
        (lambda: settle({"tokens": inf}), "it must be a number from 0 to 1e.15"),
        (lambda: settle({"tokens": 1e308}), "it must be a number from 0 to 1e.15"),
        (lambda: settle({"tokens": True}), "is True"),
        (lambda: hint(5), "limits is 5; it must be a mapping of units to hints"),  # type: ignore[arg-type]
        (lambda: hint({"tokens": 5}), "the hint for 'tokens' is 5; it must be a Hint, or a mapping"),  # type: ignore[dict-item]
        (lambda: hint({"tokens": {"left": 5}}), "limit, remaining, reset_after, refills, per"),
        (lambda: hint({"tokens": {"remaining": "5"}}), "remaining is '5'; it must be a number, or None"),
        (lambda: hint({"tokens": {"refills": 1}}), "refills is 1"),
        (lambda: hint(retry_after="3"), "retry_after is '3'"),  # type: ignore[arg-type]
    ],
)
def test_G4_settle_and_hint_check_their_arguments(say, message):
    with pytest.raises(ConfigurationError, match=message):
        say()


# -- all together

ACTS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 1.0, 4.0]),
        st.sampled_from(["result", "error", "deaf", "settles"]),
        st.integers(0, 12),
    ),
    max_size=12,
)


@settings(max_examples=80, deadline=None)
@given(
    acts=ACTS,
    batched=st.booleans(),
    rates=st.fixed_dictionaries({"calls": st.integers(1, 4), "tokens": st.integers(12, 30)}),
    in_flight=st.integers(1, 4),
    listens=st.booleans(),
    options=st.fixed_dictionaries(
        {
            "mode": st.sampled_from(["ordered", "unordered"]),
            "capacity": st.integers(1, 5),
            "timeout": st.sampled_from([None, 3.0, 25.0]),
            "attempt_timeout": st.sampled_from([None, 2.0]),
            "retry": st.sampled_from([None, Retry(3, FixedBackoff(1.0))]),
        }
    ),
)
def test_G2_G4_in_any_run_limits_hold_and_every_call_is_reported_once(
    acts, batched, rates, in_flight, listens, options
):
    """Whatever calls do. Every element ends once, and every call gives back what it took, also late ones."""
    if not listens:
        del rates["tokens"]
    meter = Meter(per=5.0, in_flight=in_flight, listens=listens, **rates)

    class Mixed(BatchAsyncFunction[Any, Any]):
        def weigh(self, values: Sequence[Any]) -> Mapping[str, float]:
            return {"tokens": sum(acts[value][2] for value in values)}

        async def invoke_batch(self, values: Sequence[Any]) -> Sequence[Any]:
            for value in values:
                seconds, what, _ = acts[value]
                if what == "settles":
                    settle({"tokens": 1})
                try:
                    await asyncio.sleep(seconds)
                except asyncio.CancelledError:
                    if what != "deaf":
                        raise
                    await asyncio.sleep(1)
                if what == "error":
                    raise ValueError(value)
            return values

    class One(AsyncFunction[Any, Any]):
        if listens:
            weigh = Mixed.weigh

        async def invoke(self, value: Any) -> Any:
            return (await Mixed().invoke_batch([value]))[0]

    async def main() -> None:
        function, more = (Mixed(), {"batching": Batching(3)}) if batched else (One(), {})
        operator = under(meter, function, on_error=lambda value, error: value, grace_period=100.0, **options, **more)
        got = await collect(operator.process(range(len(acts))))
        assert sorted(got) == list(range(len(acts)))

    run_on(VirtualTimeLoop, main())
    assert meter.joined == meter.running == 0
    assert meter.most <= in_flight
    assert len(meter.starts) == len(meter.returns) or not listens
    for window in {int(at // 5) for at in meter.times}:
        inside = [weights for at, weights in meter.starts if int(at // 5) == window]
        for unit, rate in rates.items():
            assert sum(weights[unit] for weights in inside) <= rate
