"""H1 to H3: a slow call is made a second time, and the first answer wins."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from asyncio_operator import (
    AdaptiveCapacity,
    AsyncFunction,
    AsyncWaitOperator,
    Batching,
    BlockingFunction,
    CircuitBreaker,
    ConfigurationError,
    FunctionError,
    Hedge,
)
from asyncio_operator.errors import BudgetExceeded, CoordinatorError, EnricherError
from asyncio_operator.trace import Trace
from tests.operator.attempts import Act, Batches, Script, retry
from tests.operator.helpers import REAL_LOOPS, block, collect, collect_timed, now, run_on, virtual
from tests.operator.meter import Meter, metered

ALL = Hedge(2.0, extra=0.5)
"""Every second call may be a copy, after two seconds."""

BAD = ValueError("bad")


class LostError(Exception):
    """What the copy raises, so that it differs from that of the other call."""


def hedged(script: Any, **options: Any) -> AsyncWaitOperator:
    return AsyncWaitOperator(script, **{"mode": "unordered", "hedge": ALL, **options})


def figures(operator: AsyncWaitOperator) -> tuple[int, int]:
    return operator.metrics.hedged, operator.metrics.hedges_won


# -- the first answer wins


@virtual
async def test_H1_a_slow_call_is_made_a_second_time_and_the_first_answer_wins():
    script = Script({0: [Act(100.0, result="slow"), Act(1.0, result="fast")]})
    operator = hedged(script)
    assert await collect_timed(operator.process([0])) == [("fast", 3.0)]
    assert script.starts == [(0, 0.0), (0, 2.0)]
    assert script.ends == [(0, 3.0), (0, 3.0)]
    assert figures(operator) == (1, 1)


@pytest.mark.parametrize("new_loop", REAL_LOOPS)
def test_O11_the_thread_of_the_call_that_lost_holds_its_place(new_loop):
    asked: list[int] = []
    free = threading.Event()

    def blocked_at_first(value):
        asked.append(value)
        if len(asked) == 1:
            assert free.wait(20.0)
        return value

    async def main():
        function = BlockingFunction(blocked_at_first, max_workers=2)
        operator = hedged(function, hedge=Hedge(0.02, extra=0.5))
        run = operator.process(range(4))
        # The other thread serves the copy, and then all others.
        got = [await anext(run) for _ in range(4)]
        assert sorted(got) == [0, 1, 2, 3]
        assert operator.metrics.in_flight == 1
        free.set()
        assert await collect(run) == []

    run_on(new_loop, main())


@virtual
async def test_H2_an_error_of_the_copy_alone_is_not_reported():
    script = Script({0: [Act(9.0), Act(1.0, error=LostError())]})
    operator = hedged(script)
    assert await collect_timed(operator.process([0])) == [(0, 9.0)]
    assert figures(operator) == (1, 0)


@pytest.mark.parametrize(("first", "copy", "at"), [(3.0, 5.0, 7.0), (9.0, 2.0, 9.0)])
@virtual
async def test_H1_if_both_fail_the_error_is_that_of_the_first(first, copy, at):
    script = Script({0: [Act(first, error=BAD), Act(copy, error=LostError())]})
    with pytest.raises(FunctionError) as caught:
        await collect(hedged(script).process([0]))
    assert caught.value.__cause__ is BAD
    assert caught.value.attempts == 1
    assert now() == at


# -- how errors count


@pytest.mark.parametrize("acts", [[Act(3.0, error=SystemExit()), Act(9.0)], [Act(9.0), Act(1.0, error=SystemExit())]])
@virtual
async def test_H1_an_error_that_asks_the_process_to_end_is_not_awaited(acts):
    with pytest.raises(FunctionError) as caught:
        await collect(hedged(Script({0: acts})).process([0]))
    assert isinstance(caught.value.__cause__, SystemExit)
    assert now() == 3.0


@virtual
async def test_H2_a_failed_call_is_not_hedged():
    """Neither the one that has failed, nor those that are made for its element later."""
    script = Script({0: [Act(1.0, error=BAD), Act(30.0)], 1: [Act(9.0)]})
    operator = hedged(script, retry=retry(delay=5.0))
    assert await collect_timed(operator.process(range(2))) == [(1, 9.0 - 7.0), (0, 36.0)]
    assert script.times(0) == [0.0, 6.0]
    assert script.times(1) == [0.0, 2.0]


@virtual
async def test_H2_a_source_that_throttles_gets_no_copies_meanwhile():
    class BusyError(Exception):
        retry_after = 20.0

    script = Script({0: [Act(1.0, error=BusyError())], 1: [Act(50.0), Act(1.0)], 2: [Act(1.0)], 3: [Act(1.0)]})
    operator = hedged(script, on_error="skip")
    assert await collect_timed(operator.process(range(4))) == [(2, 1.0), (3, 1.0), (1, 22.0)]
    assert script.times(1) == [0.0, 21.0]


# -- deadlines


@virtual
async def test_H1_a_call_that_ends_at_its_deadline_is_not_cancelled_twice():
    """Cleaning up takes a while, which a second cancellation would cut."""
    cleaned = []

    async def call(value):
        try:
            await asyncio.sleep(100.0)
        finally:
            await asyncio.sleep(0.5)
            cleaned.append(now())

    operator = hedged(call, timeout=5.0, on_error="skip")
    assert await collect(operator.process([0])) == []
    assert cleaned == [5.5, 5.5]


# -- limits: a copy is a call like any other


@virtual
async def test_H3_a_copy_needs_a_slot_and_holds_it_until_it_has_returned():
    script = Script({0: [Act(20.0), Act(1.0)], 1: [Act(5.0)], 2: [Act(1.0)]})
    operator = hedged(script, capacity=2)
    # At 2 both slots are taken; at 5 one is free, for the copy before anything else.
    assert await collect_timed(operator.process(range(3))) == [(1, 5.0), (0, 6.0), (2, 7.0)]
    assert script.times(0) == [0.0, 5.0]
    assert script.most == 2


@virtual
async def test_H2_no_copy_is_made_while_the_circuit_is_not_closed():
    breaker = CircuitBreaker(minimum_calls=1, open_for=10.0)
    script = Script({0: [Act(1.0, error=BAD)], 1: [Act(40.0), Act(1.0)], 2: [Act(3.0)]})

    async def elements():
        yield 0
        yield 1
        await asyncio.sleep(15.0)
        yield 2

    operator = hedged(script, circuit_breaker=breaker, on_error="skip")
    # 2 is the call that tries, from 15 to 18. Then the circuit is closed.
    assert await collect_timed(operator.process(elements())) == [(2, 18.0), (1, 19.0)]
    assert script.times(1) == [0.0, 18.0]


def under(meter: Meter, script: Any, **options: Any) -> AsyncWaitOperator:
    return hedged(script, budget=metered(meter), **options)


@virtual
async def test_H3_copies_count_for_the_budget():
    meter = Meter(per=10.0, calls=1)
    script = Script({0: [Act(50.0), Act(1.0)]})
    assert await collect_timed(under(meter, script).process([0])) == [(0, 11.0)]
    assert meter.times == script.times(0) == [0.0, 10.0]
    assert meter.running == meter.joined == 0


@pytest.mark.parametrize("error", [BudgetExceeded("spent"), CoordinatorError("no answer")])
@virtual
async def test_H1_a_copy_that_the_budget_refuses_is_not_made(error):
    class Weighing(AsyncFunction[Any, Any]):
        def weigh(self, values):
            return {"tokens": 6}

        async def invoke(self, value):
            return await script(value)

    class Spent(Meter):
        def next_start(self, weights, now):
            if self.starts:
                raise error
            return super().next_start(weights, now)

        def started(self, weights, now):
            self.starts.append((now, weights))

    script = Script({0: [Act(9.0), Act(1.0)]})
    meter = Spent()
    operator = under(meter, Weighing())
    assert await collect_timed(operator.process([0])) == [(0, 9.0)]
    assert figures(operator) == (0, 0)
    assert meter.starts == [(0.0, {"calls": 1.0, "keys": 1.0, "tokens": 6})]


@virtual
async def test_H3_a_cancelled_call_gives_its_place_in_the_budget_back_when_it_has_returned():
    meter = Meter(in_flight=2)
    script = Script({0: [Act(20.0, deaf=10.0), Act(1.0)], 1: [Act(1.0)]})

    async def elements():
        yield 0
        await asyncio.sleep(4.0)
        yield 1

    assert await collect_timed(under(meter, script).process(elements())) == [(0, 3.0), (1, 5.0)]
    assert [at for at, *_ in meter.returns] == [3.0, 5.0, 13.0]


@virtual
async def test_H1_an_adaptive_capacity_has_room_for_a_copy():
    script = Script({0: [Act(9.0), Act(1.0)]})
    operator = hedged(script, capacity=AdaptiveCapacity(initial=1, maximum=1))
    assert await collect_timed(operator.process([0])) == [(0, 9.0)]
    operator = hedged(Script({0: [Act(9.0), Act(1.0)]}), capacity=AdaptiveCapacity(initial=2, maximum=2))
    assert await collect_timed(operator.process([0])) == [(0, 12.0)]


# -- percentiles


@virtual
async def test_H1_a_percentile_that_falls_is_heeded_at_once():
    """The cap is 60 seconds until there are 50 latencies."""
    script = Script(lambda value, attempt: Act(50.0 if value == 99 and not attempt else 1.0))
    operator = hedged(script, hedge=Hedge(extra=0.5, cap=60.0), capacity=100)
    ended = dict(await collect_timed(operator.process(range(150))))
    assert ended[99] == pytest.approx(2.0, abs=0.01)
    assert figures(operator)[1] == 1


# -- what is one timer, what is copied, what is refused


@virtual
async def test_H2_halves_of_a_batch_are_not_hedged():
    async def act(values, number):
        await asyncio.sleep(0.5 if number == 0 else 9.0)
        if len(values) > 1:
            raise ValueError
        return values

    batches = Batches(act)
    operator = hedged(batches, batching=Batching(2))
    assert sorted(await collect(operator.process(range(2)))) == [0, 1]
    assert batches.calls == [[0, 1], [0], [1]]
    assert figures(operator) == (0, 0)


@virtual
async def test_H2_a_batch_with_one_element_that_failed_before_is_not_hedged():
    async def act(values, number):
        if number == 0:
            raise EnricherError("again", retryable=True)
        await asyncio.sleep(9.0)
        return values

    batches = Batches(act)
    operator = hedged(batches, batching=Batching(2, linger=100.0), retry=retry(delay=5.0))
    assert sorted(await collect(operator.process(range(3)))) == [0, 1, 2]
    assert batches.calls == [[0, 1], [2, 0], [1]]


async def writes(value: Any) -> None:
    """A function whose calls must not be made twice."""


writes.idempotent = False  # type: ignore[attr-defined]


def test_H2_a_function_whose_calls_must_not_be_repeated_refuses_hedge():
    def blocks(value: Any) -> None:
        """The same in a thread."""

    blocks.idempotent = False  # type: ignore[attr-defined]
    function = BlockingFunction(print)
    function.idempotent = False
    inherits = type("Writes", (BlockingFunction,), {"idempotent": False})(print)
    bound = partial(partial(writes))
    for refused in (writes, function, inherits, BlockingFunction(blocks), BlockingFunction(partial(blocks)), bound):
        with pytest.raises(ConfigurationError, match="has idempotent = False; hedge makes slow calls twice"):
            AsyncWaitOperator(refused, hedge=Hedge())
        AsyncWaitOperator(refused)
    repeated = partial(writes)
    repeated.idempotent = True  # type: ignore[attr-defined]
    AsyncWaitOperator(repeated, hedge=Hedge())


# -- snapshots, contexts, ends of runs


@virtual
async def test_H1_a_loop_that_is_blocked_makes_no_copy_of_what_has_answered():
    async def call(value):
        if value == 1:
            await asyncio.sleep(1.0)
            block(5.0)
        else:
            await asyncio.sleep(1.5)
        return value

    operator = hedged(call)
    await collect(operator.process(range(2)))
    assert operator.metrics.hedged <= 1


# -- traces


@virtual
async def test_H3_a_trace_shows_both_calls():
    trace = Trace()
    script = Script(
        {0: [Act(9.0), Act(1.0)], 1: [Act(4.0), Act(9.0)], 2: [Act(3.0, error=BAD), Act(3.0)], 3: [Act(1.0)]}
    )
    await collect(hedged(script, trace=trace).process(range(4)))
    lives = trace.story().lives
    shown = [[(call.start, call.end, call.outcome) for call in life.calls] for life in lives]
    assert shown == [
        [(0.0, 3.0, "cancelled"), (2.0, 3.0, "result")],
        [(0.0, 4.0, "result"), (2.0, 4.0, "cancelled")],
        [(0.0, 3.0, "error"), (2.0, 5.0, "result")],
        [(0.0, 1.0, "result")],
    ]
    assert [len(life.copies) for life in lives] == [1, 1, 1, 0]
    assert [span.kind for span in lives[2].spans(5.0)] == ["error", "copy"]
