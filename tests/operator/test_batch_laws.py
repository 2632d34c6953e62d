"""B1 to B4: when a batch is called, what it holds, and what becomes of one that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from asyncio_operator import (
    AsyncWaitOperator,
    BatchAsyncFunction,
    Batching,
    ElementTimeoutError,
    EnricherError,
    RateLimit,
    ResultError,
)
from tests.operator.attempts import Batches, retry, stop
from tests.operator.helpers import Source, block, collect, collect_timed, forever, late, now, process, virtual


def by(max_size: int = 1000, linger: float = 1.0) -> Batching:
    return Batching(max_size=max_size, linger=linger)


async def every(seconds: float, values: Any) -> Any:
    """An input that gives a value and then waits, or waits for a group of values."""
    for value in values:
        for one in value if isinstance(value, list) else [value]:
            yield one
        await asyncio.sleep(seconds)


async def batches_of(values: Any, **options: Any) -> tuple[list[list[Any]], list[float]]:
    batches = Batches()
    got = await process(batches, values, **options)
    assert sorted(got) == sorted(value for call in batches.calls for value in call)
    return batches.calls, batches.times


# -- B1: when


@virtual
async def test_B1_a_batch_is_called_when_max_size_values_wait(mode):
    calls, times = await batches_of(every(0.25, range(7)), mode=mode, batching=by(max_size=3, linger=100.0))
    assert calls == [[0, 1, 2], [3, 4, 5], [6]]
    assert times == [0.5, 1.25, 1.75]


@virtual
async def test_B1_or_linger_after_its_first_value_came(mode):
    calls, times = await batches_of(every(0.75, range(6)), mode=mode, batching=by(linger=1.0))
    assert calls == [[0, 1], [2, 3], [4, 5]]
    assert times == [1.0, 2.5, 4.0]


@virtual
async def test_B1_or_when_buffer_is_full(mode):
    calls, times = await batches_of(
        every(0.25, range(6)), mode=mode, capacity=1, buffer=3, batching=by(max_size=10, linger=100.0)
    )
    assert calls == [[0, 1, 2], [3, 4, 5]]
    assert times == [0.5, 1.25]


@virtual
async def test_B1_or_when_no_other_element_can_join_it_any_more(mode):
    for values in (range(2), every(0.0, range(2))):
        calls, times = await batches_of(values, mode=mode, batching=by(linger=100.0))
        assert calls == [[0, 1]]
        assert times == [0]


@virtual
async def test_B1_an_element_that_may_come_back_is_waited_for(mode):
    def act(values, number):
        if number == 0:
            raise EnricherError("again", retryable=True)
        return values

    batches = Batches(act)
    await process(batches, range(3), mode=mode, batching=by(max_size=2, linger=100.0), retry=retry(delay=5.0))
    assert batches.calls == [[0, 1], [2, 0], [1]]
    assert batches.times == [0, 5, 5]


@pytest.mark.parametrize(("options", "times"), [({"retry": retry()}, [0, 7]), ({}, [0, 0])])
@virtual
async def test_B1_until_it_cannot_come_back_any_more(mode, options, times):
    batches = Batches(seconds=7.0)
    await process(batches, range(3), mode=mode, batching=by(max_size=2, linger=100.0), **options)
    assert batches.calls == [[0, 1], [2]]
    assert batches.times == times


@virtual
async def test_B1_a_batch_flushed_by_size_leaves_no_timer_behind(mode):
    """The first batch is full at 0.9; its linger would have ended at 1."""

    async def source(gaps):
        for value, gap in enumerate(gaps):
            await asyncio.sleep(gap)
            yield value

    calls, times = await batches_of(source([0, 0.9, 0, 0.6]), mode=mode, batching=by(max_size=2, linger=1.0))
    assert calls == [[0, 1], [2, 3]]
    assert times == [0.9, 1.5]
    calls, times = await batches_of(source([0, 0.5, 0, 5.0]), mode=mode, batching=by(max_size=2, linger=1.0))
    assert calls == [[0, 1], [2], [3]]
    assert times == [2.0, 3.0, 7.0]


# -- B2: one call


@virtual
async def test_B2_a_batch_is_one_call_against_capacity_and_its_size_may_exceed_it(mode):
    batches = Batches(seconds=1.0)
    operator = AsyncWaitOperator(batches, mode=mode, capacity=2, buffer=1000, batching=by(max_size=50))
    assert sorted(await collect(operator.process(range(200)))) == list(range(200))
    assert [len(call) for call in batches.calls] == [50] * 4
    assert batches.times == [0, 0, 1, 1]
    assert batches.most == 2


@virtual
async def test_B2_values_that_wait_for_a_batch_count_against_buffer_only():
    source = Source(iter(range(100)))
    batches = Batches(lambda values, number: forever())
    operator = AsyncWaitOperator(batches, capacity=1, buffer=30, batching=by(max_size=20))
    run = operator.process(source)
    first = asyncio.ensure_future(anext(run))
    await asyncio.sleep(10)
    assert operator.metrics.in_flight == 1
    assert source.read == 20
    await stop(run, first)


@pytest.mark.parametrize(("seconds", "second"), [(8.0, (1, 13.0)), (100.0, (("late", 1), 15.0))])
@virtual
async def test_B2_elements_keep_their_own_deadlines_and_a_batch_is_cancelled_when_the_last_is_late(seconds, second):
    """The first comes back into a batch with the second, and has its deadline long before that."""
    ended: list[float] = []

    async def act(values, number):
        if number == 0:
            raise EnricherError("again", retryable=True)
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.append(now())
        return values

    batches = Batches(act)
    operator = AsyncWaitOperator(
        batches, mode="unordered", timeout=10.0, on_timeout=late, batching=by(max_size=2, linger=1.0),
        retry=retry(delay=4.0),
    )  # fmt: skip
    assert await collect_timed(operator.process(every(4.5, [0, 1]))) == [(("late", 0), 11.0), second]
    assert batches.calls == [[0], [1, 0]]
    assert batches.times == [1, 5]
    assert ended == [second[1]]


@virtual
async def test_B2_a_BatchAsyncFunction_has_open_timeout_and_close(mode):
    class Function(BatchAsyncFunction[Any, Any]):
        async def open(self) -> None:
            events.append("open")

        async def invoke_batch(self, values: Any) -> Any:
            events.append(list(values))
            await forever()

        def timeout(self, value: Any) -> Any:
            return -value

        async def close(self) -> None:
            events.append("close")

    events: list[Any] = []
    assert sorted(await process(Function(), [1, 2], mode=mode, timeout=1.0)) == [-2, -1]
    assert events == ["open", [1, 2], "close"]


@virtual
async def test_R3_B2_no_call_starts_for_an_element_whose_deadline_passes_while_a_batch_reads_its_input():
    calls: list[tuple[float, list[str]]] = []

    class Half(BatchAsyncFunction[str, str]):
        async def invoke_batch(self, values):
            calls.append((now(), list(values)))
            if "a" in values:
                raise ValueError("a")
            return values

    def slowly():
        yield from "ab"
        # The batch of the second attempt waits here, and the loop with it.
        block(10.0)
        yield "c"

    operator = AsyncWaitOperator(
        Half(),
        batching=Batching(max_size=2, linger=1.0),
        retry=retry(delay=0.0),
        timeout=5.0,
        on_timeout=late,
        capacity=1,
    )
    assert sorted(await collect(operator.process(slowly())), key=str) == [("late", "a"), "b", "c"]
    assert [values for began, values in calls if began > 5.0] == [["c"]]


# -- B3: a result of the wrong length


class Odd(Sequence[Any]):
    """Says that it has three items, and gives others."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: Any) -> Any:
        if isinstance(self.items[index], Exception):
            raise self.items[index]
        return self.items[index]


ODD = [Odd(1), Odd(1, 2, 3, 4), Odd(1, OSError("unreadable"), 3)]


@pytest.mark.parametrize("result", [[], [1], [1, 2, 3, 4], None, "abc", {1, 2, 3}, {1: 1, 2: 2, 3: 3}, 7, *ODD])
@virtual
async def test_B3_a_result_of_another_length_is_a_ResultError_for_every_element(mode, result):
    errors: list[Any] = []
    batches = Batches(lambda values, number: result)
    operator = AsyncWaitOperator(batches, mode=mode, retry=retry(), on_error=lambda v, e: errors.append((v, e)))
    assert await collect(operator.process(range(3))) == [None] * 3
    assert len(batches.calls) == 1
    assert [value for value, _ in errors] == [0, 1, 2]
    assert {type(error) for _, error in errors} == {ResultError}
    assert "for 3 values; it must give a sequence with one result for each" in str(errors[0][1])
    assert operator.metrics.failures == 3


# -- B4: failing batches


def poisoned(*bad: Any, error: type[BaseException] = ValueError) -> Any:
    def act(values: list[Any], number: int) -> list[Any]:
        if any(value in bad for value in values):
            raise error("poison")
        return values

    return act


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
@virtual
async def test_B4_a_failing_batch_is_split_down_to_the_poisonous_element(mode, error):
    batches = Batches(poisoned(5, error=error))
    operator = AsyncWaitOperator(batches, mode=mode, capacity=1, on_error=lambda v, e: ("bad", v, str(e)))
    got = await collect(operator.process(range(8)))
    assert sorted(got, key=str) == sorted([0, 1, 2, 3, 4, ("bad", 5, "poison"), 6, 7], key=str)
    assert batches.calls == [list(range(8)), [0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [6, 7], [4], [5]]
    assert operator.metrics.failures == 1
    assert operator.metrics.retries == 0


@virtual
async def test_B4_an_element_whose_batch_has_lost_the_others_at_their_deadline_is_called_alone():
    async def act(values: list[str], number: int) -> list[str]:
        await asyncio.sleep(0 if values == ["early"] else 1)
        if "early" in values:
            raise OverloadError if number == 0 else ValueError("early")
        return values

    batches, again = Batches(act), retry(3, 2.0, on=OverloadError)
    operator = AsyncWaitOperator(batches, timeout=2.5, batching=by(2, 0.0), retry=again, on_error="skip")
    assert await collect(operator.process(every(2.0, ["early", "later"]))) == ["later"]
    assert batches.calls == [["early"], ["early", "later"], ["later"]]


def only_alone(values: list[Any], number: int) -> list[Any]:
    if len(values) > 1:
        raise KeyError("rows")
    return values


ONE_BY_ONE = "every call of invoke_batch with several values has failed so far, and the same values succeed one by one"


@pytest.mark.parametrize(
    ("act", "count", "warned"),
    [
        pytest.param(only_alone, 20, True, id="always"),
        pytest.param(only_alone, 1, False, id="no batch"),
        pytest.param(poisoned(1), 2, False, id="a pair with an element to blame"),
        pytest.param(poisoned(5), 20, False, id="an element to blame"),
        pytest.param(poisoned(*range(20)), 20, False, id="all elements"),
        pytest.param(lambda values, number: only_alone(values, 0) if number else values, 4, False, id="not the first"),
        pytest.param(lambda values, number: values if number else only_alone(values, 0), 8, False, id="the first"),
    ],
)
@virtual
async def test_B4_a_batch_that_fails_whatever_is_in_it_is_logged_once(act, count, warned, caplog):
    operator = AsyncWaitOperator(Batches(act), batching=by(4), on_error="skip")
    await collect(operator.process(range(count)))
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(messages) == warned
    if warned:
        assert ONE_BY_ONE in messages[0]
        assert "KeyError: 'rows'" in messages[0]


@virtual
async def test_B4_a_retry_forms_batches_again(mode):
    batches = Batches(poisoned("bad", "worse"))
    options: dict[str, Any] = {"mode": mode, "capacity": 1, "batching": by(linger=0.5)}
    operator = AsyncWaitOperator(batches, retry=retry(2, 10.0), on_error="skip", **options)
    await collect(operator.process(["bad", 1, "worse", 2]))
    assert batches.calls == [
        ["bad", 1, "worse", 2], ["bad", 1], ["worse", 2], ["bad"], [1], ["worse"], [2],
        ["bad", "worse"], ["bad"], ["worse"],
    ]  # fmt: skip
    assert operator.metrics.retries == 2


class OverloadError(Exception):
    overload = True


class AskLaterError(Exception):
    retry_after = 3.0


class WholeError(Exception):
    retryable = True


class AnyKeyError(Exception):
    any_key = True


NOBODYS_FAULT = [
    TimeoutError("slow"),
    ElementTimeoutError("slow"),
    ConnectionResetError("lost"),
    OverloadError(),
    AskLaterError(),
    WholeError(),
    AnyKeyError(),
    EnricherError("x", overload=True),
]


@pytest.mark.parametrize("error", NOBODYS_FAULT, ids=lambda error: type(error).__name__)
@virtual
async def test_B4_errors_that_come_from_no_element_fail_all_at_once_and_are_retried_as_a_whole_batch(mode, error):
    def act(values, number):
        if number == 0:
            raise error
        return values

    batches = Batches(act)
    assert await process(batches, range(4), mode=mode, on_error=lambda v, e: e) == [error] * 4
    assert batches.calls == [[0, 1, 2, 3]]
    if error in NOBODYS_FAULT[:6]:
        batches = Batches(act)
        assert await process(batches, range(4), mode=mode, retry=retry()) == list(range(4))
        assert batches.calls == [[0, 1, 2, 3]] * 2


@virtual
async def test_B4_halves_go_before_retries_and_new_input():
    batches = Batches(poisoned(0))
    operator = AsyncWaitOperator(
        batches, mode="unordered", capacity=1, batching=by(max_size=2), on_error="skip", retry=retry(2, 0.0)
    )
    await collect(operator.process(range(6)))
    assert batches.calls[:3] == [[0, 1], [0], [1]]
    assert batches.calls[3][0] == 0


@virtual
async def test_O4_an_element_that_has_left_its_batch_at_its_deadline_does_not_end_again_with_its_batch(mode):
    class Slow(BatchAsyncFunction[Any, Any]):
        async def invoke_batch(self, values: Sequence[Any]) -> list[Any]:
            await asyncio.sleep(1 if values == ["a"] else 2)
            if values == ["a"]:
                raise EnricherError("later", retryable=True)
            return list(values)

    # "a" is called at 0.4 and at 1.9, with "b", whose own time begins then. It ends at 3.4, and their call at 3.9.
    values = every(1.7, ["a", "b"])
    operator = AsyncWaitOperator(
        Slow(), mode=mode, batching=by(2, 0.4), retry=retry(3, 0.5), timeout=3, on_timeout=lambda _: "late"
    )
    assert sorted(await collect(operator.process(values))) == ["b", "late"]
    figures = operator.metrics
    assert (figures.admitted, figures.emitted, figures.timeouts, figures.in_flight, figures.buffered) == (2, 2, 1, 0, 0)


@pytest.mark.parametrize("rate_limit", [None, RateLimit(1)])
@virtual
async def test_R1_B4_no_half_is_called_when_their_attempt_is_over(mode, rate_limit):
    calls: list[tuple[float, list[int]]] = []

    class Failing(BatchAsyncFunction[int, int]):
        async def invoke_batch(self, values: Sequence[int]) -> Sequence[int]:
            calls.append((now(), list(values)))
            await asyncio.sleep(0.5 if rate_limit else 2.0)
            raise ValueError(values)

    operator = AsyncWaitOperator(
        Failing(),
        mode=mode,
        batching=Batching(2, 0),
        # The halves would begin when it ends, or have to wait until then.
        attempt_timeout=0.9 if rate_limit else 2.0 + 1e-9,
        rate_limit=rate_limit,
        on_error=lambda value, error: type(error).__name__,
    )
    assert await collect(operator.process([1, 2])) == ["ElementTimeoutError"] * 2
    assert calls == [(0.0, [1, 2])]
