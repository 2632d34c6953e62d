"""R12: waits take the loop's time; a clock that is given tells ages, and stops nothing by standing still."""

from __future__ import annotations

import asyncio
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from asyncio_operator import (
    AdaptiveCapacity,
    AsyncWaitOperator,
    Batching,
    Cache,
    CircuitBreaker,
    CircuitOpenError,
    RateLimit,
)
from asyncio_operator.errors import ConfigurationError
from asyncio_operator.lookup import Lookup
from asyncio_operator.testing import ManualClock, VirtualTimeLoop
from asyncio_operator.trace import Trace
from tests.lookup.helpers import Recorded
from tests.operator.attempts import BAD, MODES, Act, Batches, Script, retry
from tests.operator.helpers import collect, forever, late, now, run_on, virtual

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
