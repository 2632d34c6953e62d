"""R10, R12: the rate limit delays starts, the circuit breaker refuses them, and what follows a given clock."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from asyncio_operator import (
    AdaptiveCapacity,
    AsyncWaitOperator,
    BatchAsyncFunction,
    Batching,
    Cache,
    CircuitBreaker,
    CircuitOpenError,
    EnricherError,
    FunctionError,
    RateLimit,
    ResultError,
    Retry,
    Watermark,
)
from asyncio_operator.engine.gate import REFUSALS
from asyncio_operator.errors import ConfigurationError
from asyncio_operator.lookup import Lookup
from asyncio_operator.testing import ManualClock, VirtualTimeLoop
from asyncio_operator.trace import Trace
from tests.lookup.helpers import Recorded
from tests.operator.attempts import BAD, MODES, OK, Act, Batches, Script, retry
from tests.operator.helpers import (
    Source,
    block,
    collect,
    collect_timed,
    forever,
    late,
    now,
    process,
    run_on,
    same,
    turns_during,
    virtual,
)

# -- rate limit


@virtual
async def test_R10_it_holds_though_reading_the_input_takes_time():
    def slow():
        for value in range(6):
            block(1.0 if value % 2 == 0 else 0.05)
            yield value

    starts: list[float] = []

    async def call(value):
        starts.append(now())

    operator = AsyncWaitOperator(call, rate_limit=RateLimit(1, per=0.5))
    await collect(operator.process(slow()))
    assert min(later - start for start, later in itertools.pairwise(starts)) >= 0.5


@virtual
async def test_R10_the_deadline_of_an_element_that_waits_for_its_first_start_has_not_begun(mode):
    operator = AsyncWaitOperator(same, mode=mode, rate_limit=RateLimit(1, per=100.0), timeout=1.0, on_timeout=late)
    assert await collect_timed(operator.process(range(3))) == [(0, 0), (1, 100), (2, 200)]


@virtual
async def test_R10_a_run_does_not_wait_for_a_start_that_nobody_needs(mode):
    assert await process(same, [1], mode=mode, rate_limit=RateLimit(1, per=3600.0)) == [1]
    assert await process(Batches(), [1], mode=mode, rate_limit=RateLimit(1, per=3600.0)) == [1]
    assert now() == 0


@virtual
async def test_R10_a_watermark_needs_no_start(mode):
    operator = AsyncWaitOperator(same, mode=mode, rate_limit=RateLimit(1, per=10.0))
    got = await collect_timed(operator.process([1, Watermark(1), 2, Watermark(2)]))
    assert got == [(1, 0), (Watermark(1), 0), (2, 10), (Watermark(2), 10)]


@virtual
async def test_O2_behind_the_rate_limit_one_element_is_read(mode):
    source = Source(iter(range(10)))
    run = AsyncWaitOperator(same, mode=mode, rate_limit=RateLimit(1, per=10.0)).process(source)
    assert await anext(run) == 0
    await asyncio.sleep(5)
    assert source.read == 2
    await run.aclose()


@pytest.mark.parametrize("linger", [0.0, 5.0])
@virtual
async def test_B1_linger_and_rate_limit_together(mode, linger):
    """Nothing turns the loop while the rate limit is what is waited for."""
    batches = Batches()

    async def source():
        for value in (0, 2, 4):
            yield value
            yield value + 1
            await asyncio.sleep(6)

    operator = AsyncWaitOperator(
        batches, mode=mode, batching=Batching(max_size=10, linger=linger), rate_limit=RateLimit(1, per=100.0)
    )
    assert await collect(operator.process(source())) == list(range(6))
    assert batches.calls == [[0, 1], [2, 3, 4, 5]]
    assert batches.times == [linger, linger + 100]


@pytest.mark.parametrize(("storm", "end"), [(0, 4.6), (1, 4.6), (2.5, 4.6)])
@pytest.mark.parametrize("batched", [False, True])
@virtual
async def test_R10_a_storm_refuses_the_calls_in_flight_and_few_more_and_the_rhythm_is_found_again(batched, storm, end):
    """Of a source that refuses all calls for a second in three, from this time on, and answers after 10 ms."""
    refused, calls = 0, 0

    async def ask(value):
        nonlocal refused, calls
        calls, begun = calls + 1, now()
        await asyncio.sleep(0.01)
        if 0 <= (begun - storm) % 3 < 1:
            refused += 1
            raise EnricherError("too many requests", retry_after=1.0, overload=True)
        return value

    class Batched(BatchAsyncFunction):
        async def invoke_batch(self, values):
            return [await ask(value) for value in values]

    function = Batched() if batched else ask
    batching = Batching(1) if batched else None
    operator = AsyncWaitOperator(
        function, capacity=20, retry=Retry(20), rate_limit=RateLimit(200, per=1.1), batching=batching
    )
    assert await collect(operator.process(range(600))) == list(range(600))
    assert calls == 600 + refused
    storms = 2
    assert refused <= storms * 20 + 0.01 * 600
    assert now() < end


@virtual
async def test_R10_a_window_has_room_at_once_until_the_source_refuses_a_call():
    starts: list[float] = []

    async def call(seconds):
        starts.append(now())
        await asyncio.sleep(seconds)

    operator = AsyncWaitOperator(call, rate_limit=RateLimit(100, per=10.0))
    await collect(operator.process([0.03] * 100 + [5.0] * 100))
    assert starts == [0.0] * 100 + [10.0] * 100


@virtual
async def test_R10_nothing_starts_while_the_source_wants_no_calls():
    starts: list[float] = []

    async def call(value):
        starts.append(now())
        await asyncio.sleep(0.1)
        if len(starts) == 1:
            raise EnricherError("too many requests", retry_after=7)
        if len(starts) == 2:
            raise EnricherError("too many requests", retry_after=7200)
        return value

    operator = AsyncWaitOperator(
        call, rate_limit=RateLimit(10, per=10.0), capacity=1, on_error=lambda error, value: None
    )
    await collect(operator.process(range(4)))
    assert starts == pytest.approx([0.0, 7.1, 7.6, 7.7])


@pytest.mark.parametrize("asked", [None, 0.0, 0.05, -1.0, float("inf"), 1e300])
@virtual
async def test_R10_calls_that_are_refused_at_once_start_evenly(asked):
    starts: list[float] = []

    async def call(value):
        starts.append(now())
        await asyncio.sleep(0.01)
        raise EnricherError("too many requests", retry_after=asked, overload=True)

    operator = AsyncWaitOperator(
        call, rate_limit=RateLimit(100, per=10.0), capacity=5, on_error=lambda error, value: None
    )
    await collect(operator.process(range(12)))
    first = 0.01 + (asked if asked == 0.05 else 0.0)
    assert starts == pytest.approx([0.0] * 5 + [first + 0.1 * i for i in range(7)])


@pytest.mark.parametrize("beside", [{}, {"circuit_breaker": CircuitBreaker()}])
@virtual
async def test_R10_the_first_answer_after_a_refusal_ends_the_even_starts_also_beside_other_limits(beside):
    starts: list[float] = []

    async def call(value):
        starts.append(now())
        await asyncio.sleep(0.1)
        if value == 0:
            raise EnricherError("too many requests", retry_after=1)

    async def source():
        yield 0
        await asyncio.sleep(1.5)
        for value in range(1, 4):
            yield value

    operator = AsyncWaitOperator(
        call, rate_limit=RateLimit(10, per=100.0), on_error=lambda error, value: None, **beside
    )
    await collect(operator.process(source()))
    assert starts == pytest.approx([0.0, 1.5, 1.6, 1.6])


# -- circuit breaker

BREAKER = CircuitBreaker(failure_ratio=0.5, window=100.0, minimum_calls=4, open_for=10.0)


def errors_of(got: list[Any]) -> list[str]:
    return [type(output).__name__ for output in got]


def give_error(value: Any, error: BaseException) -> Any:
    return error


@virtual
async def test_R10_an_open_breaker_fails_elements_with_CircuitOpenError(mode):
    script = Script(lambda value, attempt: BAD)
    operator = AsyncWaitOperator(script, mode=mode, capacity=1, circuit_breaker=BREAKER, on_error=give_error)
    got = await collect(operator.process(range(7)))
    assert errors_of(got) == ["ValueError"] * 4 + ["CircuitOpenError"] * 3
    assert len(script.starts) == 4
    assert operator.metrics.failures == 7
    with pytest.raises(FunctionError, match="in attempt 1 with ValueError"):
        await process(script, range(7), mode=mode, circuit_breaker=BREAKER)


@virtual
async def test_R10_a_refusal_that_fails_the_run_names_the_element(mode):
    script = Script(lambda value, attempt: BAD)

    def only_errors_of_calls(value: Any, error: BaseException) -> Any:
        if isinstance(error, CircuitOpenError):
            raise error
        return None

    with pytest.raises(FunctionError, match="element 4 in attempt 1 with CircuitOpenError: the circuit breaker"):
        await process(script, range(9), mode=mode, capacity=1, circuit_breaker=BREAKER, on_error=only_errors_of_calls)


@virtual
async def test_R10_a_refusal_is_retried_and_may_succeed_when_the_breaker_has_closed(mode):
    script = Script({1: [BAD, BAD, OK]})
    breaker = CircuitBreaker(failure_ratio=0.5, window=100.0, minimum_calls=2, open_for=3.0)
    operator = AsyncWaitOperator(script, mode=mode, circuit_breaker=breaker, retry=retry(9))
    assert await collect_timed(operator.process([1])) == [(1, 4.0)]
    assert script.times(1) == [0, 1, 4]
    assert operator.metrics.retries == 4, "two were refused"


@virtual
async def test_R10_after_open_for_one_call_tries_it():
    script = Script(lambda value, attempt: Act(2.0, error=ValueError() if value < 4 else None))

    async def source():
        for value in range(4):
            yield value
        await asyncio.sleep(12.5)
        for value in range(4, 10):
            yield value
        await asyncio.sleep(3)
        for value in range(10, 13):
            yield value

    operator = AsyncWaitOperator(script, capacity=9, circuit_breaker=BREAKER, on_error=give_error)
    got = await collect(operator.process(source()))
    assert errors_of(got[:4]) == ["ValueError"] * 4
    assert got[4] == 4
    assert errors_of(got[5:10]) == ["CircuitOpenError"] * 5
    assert got[10:] == [10, 11, 12]


@virtual
async def test_R10_a_probe_that_passes_its_limit_fails(mode):
    script = Script(lambda value, attempt: Act(100.0))

    async def source():
        for value in range(20):
            yield value
            await asyncio.sleep(1)

    operator = AsyncWaitOperator(
        script, mode=mode, capacity=9, circuit_breaker=BREAKER, attempt_timeout=0.5, on_error=give_error
    )
    await collect(operator.process(source()))
    assert [at for _, at in script.starts] == [0, 1, 2, 3, 14]


@virtual
async def test_R10_errors_and_timeouts_of_calls_are_failures_and_results_that_will_not_do_are_not(mode):
    policy = retry(1, if_result=lambda result: True)
    options: dict[str, Any] = {"mode": mode, "capacity": 1, "circuit_breaker": BREAKER, "on_error": give_error}
    assert await process(same, range(9), retry=policy, **options) == list(range(9))
    script = Script(lambda value, attempt: Act(5.0))
    await process(script, range(9), timeout=1.0, on_timeout=late, **options)
    assert len(script.starts) == 4
    batches = Batches(lambda values, number: [])
    await process(batches, range(9), **options)
    assert len(batches.calls) == 1
    script = Script(lambda value, attempt: Act(error=ResultError("a row of wrong types, found by the function")))
    await process(script, range(9), **options)
    assert len(script.starts) == 9


@virtual
async def test_B4_a_refusal_fails_all_elements_of_a_batch_at_once(mode):
    batches = Batches(lambda values, number: 1 / 0)
    breaker = CircuitBreaker(minimum_calls=1, open_for=100.0)
    operator = AsyncWaitOperator(batches, mode=mode, circuit_breaker=breaker, on_error=give_error)
    got = await collect(operator.process(range(4)))
    assert errors_of(got) == ["CircuitOpenError"] * 4
    assert len(batches.calls) == 1


def test_R10_refusals_without_a_back_off_let_the_loop_turn():
    async def main() -> None:
        script = Script(lambda value, attempt: BAD)
        operator = AsyncWaitOperator(
            script,
            on_error="skip",
            retry=retry(2000, delay=0),
            circuit_breaker=CircuitBreaker(minimum_calls=1, open_for=1e6),
        )
        assert await turns_during(collect(operator.process([0]))) >= 2000 // REFUSALS

    run_on(asyncio.new_event_loop, main())


@virtual
async def test_R10_a_refusal_is_no_start_and_waits_for_no_rate_limit():
    script = Script({0: [BAD]})
    operator = AsyncWaitOperator(
        script,
        capacity=1,
        on_error="skip",
        rate_limit=RateLimit(1, per=10.0),
        circuit_breaker=CircuitBreaker(minimum_calls=1, open_for=1000.0),
    )
    assert await collect(operator.process(range(50))) == []
    assert (script.starts, now()) == ([(0, 0)], 0)
    assert operator.metrics.failures == 50


# -- R12


WAITS: dict[str, Any] = {
    "timeout": st.just(5.0),
    "attempt_timeout": st.just(2.0),
    "retry": st.just(retry(3, 1.0)),
    "rate_limit": st.sampled_from([RateLimit(1, per=2.0), RateLimit(2, per=1.0, burst=1)]),
    "capacity": st.sampled_from([1, 3, AdaptiveCapacity(2, 1, 4)]),
}

ACTS = st.lists(
    st.sampled_from([Act(), Act(0.5), Act(3.0), Act(100.0), BAD, Act(1.0, error=OSError("bad"))]), max_size=3
)


CACHED = st.just(Cache(refresh_after=1e6, expire_after_write=1e7))


@given(
    mode=st.none() | st.sampled_from(list(MODES)),
    acts=st.lists(ACTS, min_size=1, max_size=6),
    batching=st.none() | st.builds(Batching, st.just(3), linger=st.sampled_from([0, 0.7])),
    waits=st.fixed_dictionaries({}, optional=WAITS),
    cache=st.none() | CACHED,
)
def test_R12_an_operator_or_a_Lookup_waits_as_long_with_a_clock_that_stands_still_as_with_none(
    mode, acts, batching, waits, cache
):
    async def run(**clock: Any) -> Any:
        script = Script(dict(enumerate(acts)))

        async def many(values: list[Any], _: int) -> list[Any]:
            return [await script(value) for value in values]

        async def answer(asked: Any) -> Any:
            several = [{"x": await script(key)} for key in (asked if isinstance(asked, list) else [asked])]
            return several if isinstance(asked, list) else several[0]

        async with asyncio.timeout(1e6):
            if mode is None:
                enricher = Recorded(answer, max_batch=3 if batching else 1)
                async with Lookup(enricher, batching=batching, cache=cache, **waits, **clock) as lookup:
                    keys = [*range(len(acts)), *range(len(acts))]
                    got = await asyncio.gather(*[lookup.get(key) for key in keys], return_exceptions=True)
                    return list(map(str, got)), script.starts, now()
            operator = AsyncWaitOperator(
                Batches(many) if batching else script,
                batching=batching,
                on_error=lambda value, error: (value, type(error).__name__),
                trace=Trace(),
                **MODES[mode],
                **waits,
                **clock,
            )
            return await collect(operator.process(range(len(acts)))), script.starts, now()

    assert run_on(VirtualTimeLoop, run(clock=ManualClock(1e9))) == run_on(VirtualTimeLoop, run())


@virtual
async def test_R12_a_deadline_comes_by_the_loop_whatever_the_clock_shows(mode):
    clock = ManualClock(1000.0)
    operator = AsyncWaitOperator(forever, mode=mode, timeout=10.0, clock=clock, on_timeout=late)
    running = asyncio.ensure_future(collect(operator.process([1])))
    await asyncio.sleep(9.0)
    clock.advance(100.0)
    await asyncio.sleep(0.9)
    assert not running.done()
    assert await running == [("late", 1)]
    assert now() == 10.0


async def get(lookup: Lookup) -> str:
    try:
        return str(await lookup.get(1))
    except (ValueError, CircuitOpenError) as error:
        return type(error).__name__


@virtual
async def test_R12_how_old_failures_are_and_how_long_a_circuit_is_open_is_told_by_the_clock():
    down, clock = True, ManualClock()

    async def answer(key: Any) -> Any:
        if down:
            raise ValueError
        return {"x": key}

    breaker = CircuitBreaker(minimum_calls=2, window=30.0, open_for=10.0)
    async with Lookup(Recorded(answer), circuit_breaker=breaker, clock=clock) as lookup:
        assert await get(lookup) == "ValueError"
        clock.advance(31.0)
        assert await get(lookup) == "ValueError", "the first failure is forgotten"
        await asyncio.sleep(100.0)
        assert await get(lookup) == "ValueError", "the second one is not"
        await asyncio.sleep(100.0)
        assert await get(lookup) == "CircuitOpenError"
        clock.advance(9.5)
        assert await get(lookup) == "CircuitOpenError"
        clock.advance(0.5)
        down = False
        assert [await get(lookup), await get(lookup)] == ["{'x': 1}"] * 2


@pytest.mark.parametrize("begun", [0.0, 1000.0])
@virtual
async def test_R12_with_a_rate_limit_too_the_clock_tells_whether_a_circuit_is_open(begun: float):
    down, clock = True, ManualClock(begun)

    async def answer(key: Any) -> Any:
        if down:
            raise ValueError
        return {"x": key}

    breaker = CircuitBreaker(minimum_calls=1, window=30.0, open_for=10.0)
    options: dict[str, Any] = {"circuit_breaker": breaker, "rate_limit": RateLimit(1, per=100.0), "retry": None}
    async with Lookup(Recorded(answer), clock=clock, **options) as lookup:
        assert (await get(lookup), now()) == ("ValueError", 0.0)
        await asyncio.sleep(20.0)
        assert (await get(lookup), now()) == ("CircuitOpenError", 20.0), "a refused call waits for no token"
        clock.advance(10.0)
        down = False
        assert (await get(lookup), now()) == ("{'x': 1}", 100.0), "no longer open: the call takes a token"


@virtual
async def test_time_that_a_virtual_loop_advances_by_is_time_in_which_it_was_blocked():
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    times: list[float] = []
    for at in (1.0, 2.0, 9.0):
        loop.call_later(at, lambda: times.append(now()))
    await asyncio.sleep(0.5)
    loop.advance(5.0)
    assert (now(), times) == (5.5, [])
    await asyncio.sleep(10.0)
    assert (now(), times) == (15.5, [5.5, 5.5, 9.0])
    with pytest.raises(ConfigurationError, match="seconds is -1; it must be"):
        loop.advance(-1)
