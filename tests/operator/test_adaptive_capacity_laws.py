"""R11 and O1: a capacity that adapts bounds the calls at once, at every moment, and never stalls."""

from __future__ import annotations

import asyncio
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from asyncio_operator import AdaptiveCapacity, AsyncWaitOperator, Batching, BlockingFunction, EnricherError
from tests.operator.attempts import Act, Batches, Script, retry, stop
from tests.operator.helpers import Source, collect, forever, late, now, virtual

OVERLOAD = EnricherError("too much to do", overload=True)


class Watched(Script):
    """Fails if a call starts while as many are running as the operator's limit of now allows."""

    operator: AsyncWaitOperator

    async def __call__(self, value: Any) -> Any:
        if self.running.total() >= self.limit:
            # No error that `on_error` would be asked about.
            pytest.fail("O1")
        return await super().__call__(value)

    @property
    def limit(self) -> int:
        run: Any = self.operator._run
        limit: int = run.lanes._capacity
        return limit


def watched(acts: Any, capacity: AdaptiveCapacity, **options: Any) -> tuple[AsyncWaitOperator, Watched]:
    script = Watched(acts)
    defaults: dict[str, Any] = {"mode": "unordered", "on_error": "skip", "on_timeout": late, "timeout": 0}
    script.operator = AsyncWaitOperator(script, capacity=capacity, **defaults | options)
    return script.operator, script


async def slowly(values: Any, seconds: float) -> Any:
    for value in values:
        yield value
        await asyncio.sleep(seconds)


@virtual
async def test_R11_it_rises_while_latency_stays_the_same_and_never_beyond_maximum(mode):
    operator, script = watched(lambda *_: Act(1.0), AdaptiveCapacity(initial=2, maximum=50), mode=mode)
    assert sorted(await collect(operator.process(range(2000)))) == list(range(2000))
    assert script.most == 50
    assert now() < 100


@virtual
async def test_R11_it_rises_while_calls_run():
    """Places are made for elements that wait though the call that made them has not been followed by another."""
    operator, script = watched(
        lambda value, attempt: Act(1.0 if value % 2 else 500.0), AdaptiveCapacity(initial=4, maximum=100)
    )
    assert len(await collect(operator.process(range(300)))) == 300
    assert script.most > 50


@pytest.mark.parametrize(
    ("act", "options", "limit"),
    [
        (Act(1.0, error=OVERLOAD), {}, 2),
        (Act(1.0, error=EnricherError("later", retry_after=0)), {}, 2),
        (Act(1.0, error=EnricherError("later", retry_after=2.5)), {}, 2),
        (Act(9.0), {"timeout": 1.0}, 2),
        (Act(9.0), {"attempt_timeout": 1.0}, 2),
        (Act(1.0, error=ValueError()), {}, 20),
    ],
)
@virtual
async def test_R11_it_falls_on_overload_and_timeouts_to_the_minimum_and_not_on_ordinary_errors(
    mode, act, options, limit
):
    operator, script = watched(lambda *_: act, AdaptiveCapacity(20, 2, 50), mode=mode, **options)
    await collect(operator.process(range(500)))
    assert script.limit == limit
    assert script.most == 20


@virtual
async def test_O1_after_a_fall_no_call_starts_until_enough_have_ended():
    """Ten places, nine calls, and one lane that waits for input: at the fall to 8 that lane is one too many."""
    operator, script = watched(
        lambda value, attempt: Act(0.85, error=OVERLOAD) if value == 0 else Act(100.0), AdaptiveCapacity(initial=10)
    )
    task = asyncio.ensure_future(collect(operator.process(slowly(range(12), 0.1))))
    await asyncio.sleep(50)
    assert script.limit == 8
    assert operator.metrics.in_flight == 8
    assert await task == list(range(1, 12))


@virtual
async def test_R11_linger_0_and_a_limit_that_has_fallen_do_not_keep_the_loop_busy():
    """A batch that waits for the loop to be idle must not turn it while no call may start."""

    async def act(values: list[Any], number: int) -> list[Any]:
        await asyncio.sleep(100.0 if number in (0, 1) else 1.0)
        if number == 2:
            raise OVERLOAD
        return values

    batches = Batches(act)
    operator = AsyncWaitOperator(
        batches, mode="unordered", capacity=AdaptiveCapacity(initial=4, minimum=1, maximum=4), on_error="skip",
        batching=Batching(max_size=5, linger=0),
    )  # fmt: skip
    got = await collect(operator.process(slowly(range(30), 0.25)))
    assert len(got) >= 25


@virtual
async def test_R11_the_default_buffer_is_64_times_maximum():
    source = Source(iter(range(1000)))

    async def first_for_ever(value: Any) -> Any:
        return await forever() if value == 0 else value

    operator = AsyncWaitOperator(first_for_ever, capacity=AdaptiveCapacity(initial=2, maximum=2))
    first = asyncio.ensure_future(anext(run := operator.process(source)))
    await asyncio.sleep(1)
    assert source.read == 128
    await stop(run, first)


@virtual
async def test_R11_batches_are_calls(mode):
    batches = Batches(seconds=1.0)
    operator = AsyncWaitOperator(
        batches, mode=mode, capacity=AdaptiveCapacity(initial=2, maximum=6), batching=Batching(max_size=3)
    )
    assert sorted(await collect(operator.process(range(900)))) == list(range(900))
    assert batches.most == 6


ACTS = st.builds(
    Act,
    seconds=st.sampled_from([0.0, 0.3, 1.0, 1.0, 5.0]),
    error=st.sampled_from([None, None, None, OVERLOAD, ValueError("bad")]),
    deaf=st.sampled_from([0.0, 0.0, 3.0]),
)


@given(
    acts=st.lists(st.lists(ACTS, min_size=1, max_size=2), max_size=60),
    minimum=st.integers(1, 3),
    more=st.integers(0, 9),
    initial=st.integers(0, 9),
    gap=st.sampled_from([None, 0.0, 0.2]),
    deadline=st.sampled_from([0, 2.0]),
    attempt_timeout=st.sampled_from([None, 1.0, 4.0]),
)
@virtual
async def test_R11_on_random_schedules(acts, minimum, more, initial, gap, deadline, attempt_timeout):
    capacity = AdaptiveCapacity(min(minimum + initial, minimum + more), minimum, minimum + more)
    operator, script = watched(
        dict(enumerate(acts)), capacity, retry=retry(2, 0.5), timeout=deadline, attempt_timeout=attempt_timeout,
        on_error=lambda v, e: v, on_timeout=lambda v: v,
    )  # fmt: skip
    values = range(len(acts))
    got = await collect(operator.process(values if gap is None else slowly(values, gap)))
    assert sorted(got) == list(values)
    assert script.most <= minimum + more


@pytest.mark.parametrize("capacity", [AdaptiveCapacity(), AdaptiveCapacity(20, 10, 1000)])
def test_O11_a_blocking_function_bounds_a_capacity_that_adapts(capacity: AdaptiveCapacity) -> None:
    """More calls would wait inside of its pool, and their latency mislead the capacity."""
    operator = AsyncWaitOperator(BlockingFunction(str, max_workers=3), capacity=capacity)
    assert list(operator(range(200))) == [str(value) for value in range(200)]
    run: Any = operator._run
    assert run.lanes._capacity <= 3


@virtual
async def test_R11_no_element_waits_while_fewer_calls_run_than_the_minimum():
    """The limit is halved while a lane waits for input, so that lane has to hear of each call that ends."""
    steps: list[tuple[float, int]] = []
    waits: list[tuple[float, float]] = []

    async def call(arrival: tuple[float, float]) -> None:
        came, latency = arrival
        waits.append((came, now()))
        steps.append((now(), 1))
        await asyncio.sleep(latency)
        steps.append((now(), -1))

    async def arrivals() -> Any:
        # Two or three calls at a time, of four. After a while each takes three times as long.
        for number in range(120):
            latency = 1.0 if number < 40 else 3.0
            yield now(), latency
            await asyncio.sleep(0.34 * latency)

    capacity = AdaptiveCapacity(initial=4, minimum=2, maximum=4)
    operator = AsyncWaitOperator(call, mode="unordered", capacity=capacity)
    assert len(await collect(operator.process(arrivals()))) == 120
    late_starts = [(came, began) for came, began in waits if began > came]
    assert late_starts
    for came, began in late_starts:
        moments = {came, *(moment for moment, _ in steps if came <= moment < began)}
        assert all(sum(change for at, change in steps if at <= moment) >= 2 for moment in moments), (came, began)
