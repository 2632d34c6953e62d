"""Q7: one call per key at a time, in order; keys are independent."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextvars import ContextVar
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator, Batching, BlockingFunction, FunctionError, Record, Watermark
from tests.operator.attempts import BAD, Act, Batches, Script, retry
from tests.operator.helpers import Source, collect, collect_timed, fail, forever, late, now, process, same, virtual


def key_of(value: Any) -> Any:
    """Values are texts such as "a1"; the letter is the key."""
    return value[0]


def operator_of(function: Any, **options: Any) -> AsyncWaitOperator:
    return AsyncWaitOperator(function, mode="key_ordered", **{"key": key_of} | options)


class PerKey(Script):
    """Fails if two calls of one key run at the same time."""

    async def __call__(self, value: Any) -> Any:
        if [one for one, calls in self.running.items() if calls and one[0] == value[0]]:
            # No error that `on_error` would be asked about.
            pytest.fail("Q7")
        return await super().__call__(value)


@virtual
async def test_Q7_at_most_one_record_per_key_is_running_and_the_others_run_in_order():
    script = PerKey(lambda value, attempt: Act(1.0))
    got = await collect_timed(operator_of(script).process(["a1", "a2", "b1", "a3", "b2"]))
    assert got == [("a1", 1), ("b1", 1), ("a2", 2), ("b2", 2), ("a3", 3)]
    assert script.starts == [("a1", 0), ("b1", 0), ("a2", 1), ("b2", 1), ("a3", 2)]


SEEN: ContextVar[Any] = ContextVar("seen")


@virtual
async def test_Q7_O17_the_next_record_of_a_key_does_not_wait_for_other_keys_when_calls_set_context_variables():
    script = PerKey({"a1": [Act(1.0)], "a2": [Act(1.0)], "b1": [Act(10.0)]})

    async def setting(value: Any) -> Any:
        # Such a call leaves its place in the window, so the lane that waits for work has to hear of the free key.
        SEEN.set(value)
        return await script(value)

    got = await collect_timed(operator_of(setting).process(["a1", "b1", "a2"]))
    assert got == [("a1", 1), ("a2", 2), ("b1", 10)]


@virtual
async def test_Q7_the_next_record_of_a_key_does_not_wait_for_the_next_attempt_of_another_key():
    script = PerKey({"a1": [BAD], "b1": [Act(1.0)], "b2": [Act(1.0)], "c1": [Act(9.0)]})
    operator = operator_of(script, retry=retry(delay=50.0))
    got = await collect_timed(operator.process(["a1", "b1", "b2", "c1"]))
    assert got == [("b1", 1), ("b2", 2), ("c1", 9), ("a1", 50)]


@virtual
async def test_Q7_the_next_attempt_waits_until_a_call_that_was_cut_has_returned():
    """The first call is cut at 2, its back-off is over at 3, and it returns at 7."""
    script = PerKey({"a1": [Act(9.0, deaf=5.0)]})
    operator = operator_of(script, attempt_timeout=2.0, retry=retry(delay=1.0))
    got = await collect_timed(operator.process(["a1", "a2", "b1"]))
    assert script.times("a1") == [0, 7]
    assert got == [("b1", 0), ("a1", 7), ("a2", 7)]


@virtual
async def test_O9_closing_while_an_attempt_waits_for_a_cut_call_takes_the_grace_period(caplog):
    script = PerKey({"a1": [Act(9.0, deaf=1000.0)]})
    operator = operator_of(script, attempt_timeout=2.0, retry=retry(delay=1.0), grace_period=5.0)
    run = operator.process(["a1", "a2", "b1"])
    assert await anext(run) == "b1"
    await asyncio.sleep(20)
    await run.aclose()
    assert now() == 25
    assert "a call for element 'a1'" in caplog.text


def test_Q7_threads_of_one_key_never_overlap():
    """A thread cannot be cancelled: the next attempt waits until it is done."""
    running, calls = Counter[str](), Counter[str]()

    def call(value: str) -> str:
        running[value[0]] += 1
        assert running[value[0]] == 1
        calls[value] += 1
        time.sleep(0.05 if calls[value] == 1 else 0)
        running[value[0]] -= 1
        return value

    blocking = BlockingFunction(call, max_workers=4)
    operator = operator_of(blocking, attempt_timeout=0.01, retry=retry(5, delay=0.0))
    assert sorted(operator(["a1", "a2", "b1"])) == ["a1", "a2", "b1"]
    assert calls["a1"] >= 2


@virtual
async def test_Q7_a_key_is_free_on_completion_not_on_emission():
    """The watermark holds both results back."""
    script = PerKey({"b1": [Act(10.0)]})
    operator = operator_of(script)
    got = await collect_timed(operator.process(["b1", Watermark(1), "a1", "a2", "a3"]))
    assert script.times("a3") == [0]
    assert got == [("b1", 10), (Watermark(1), 10), ("a1", 10), ("a2", 10), ("a3", 10)]


@virtual
async def test_Q7_with_the_buffer_full_of_one_key_the_others_wait_outside():
    source = Source(iter([*["a1"] * 4, "b1"]))
    script = PerKey(lambda value, attempt: Act(1.0))
    operator = operator_of(script, capacity=4, buffer=4)
    run = operator.process(source)
    first = asyncio.ensure_future(anext(run))
    await asyncio.sleep(0.5)
    assert source.read == 4
    assert operator.metrics.in_flight == 1
    assert [await first, *await collect(run)] == ["a1", "a1", "b1", "a1", "a1"]


@virtual
async def test_Q7_a_key_that_cannot_be_hashed_ends_the_run():
    with pytest.raises(FunctionError, match=r"^key failed for element 1 with TypeError: .*must give a key that can"):
        await process(same, [1], mode="key_ordered", key=lambda value: [value])


async def deaf(value):
    try:
        await forever()
    except asyncio.CancelledError:
        await asyncio.sleep(1)


@pytest.mark.parametrize("call_ends", [same, fail, forever, deaf])
@virtual
async def test_O15_a_key_that_changes_during_its_call_ends_the_run_as_an_error_of_key(call_ends):
    """Whether the call returns, raises, or runs on past its deadline."""

    async def change(value):
        value.number += 1
        await call_ends(value)

    class Changing:
        number = 1

        def __hash__(self) -> int:
            return self.number

        def __repr__(self) -> str:
            return "Changing"

    operator = operator_of(change, key=lambda value: value, on_error="skip", timeout=5.0, capacity=1)
    with pytest.raises(FunctionError, match=r"^key failed for element Changing with KeyError: Changing; .* whose hash"):
        await collect(operator.process([Record(Changing(), 1), Changing()]))


@virtual
async def test_Q7_an_idle_input_does_not_keep_a_free_key_waiting():
    async def source():
        yield "a1"
        yield "a2"
        await asyncio.sleep(100)
        yield "b1"

    script = PerKey({"a1": [Act(1.0)]})
    assert await collect_timed(operator_of(script).process(source())) == [("a1", 1), ("a2", 1), ("b1", 100)]


@virtual
async def test_B1_a_batch_does_not_wait_for_records_that_wait_for_its_own_keys():
    """Their keys are free when the batch has ended, so none of them can join it."""
    batches = Batches()
    operator = operator_of(batches, batching=Batching(linger=100.0))
    assert await collect_timed(operator.process(["a1", "a2"])) == [("a1", 0), ("a2", 0)]


@virtual
async def test_B1_but_for_those_whose_key_is_taken_by_a_running_call():
    batches = Batches(seconds=1.0)
    operator = operator_of(batches, batching=Batching(max_size=2, linger=100.0))
    got = await collect_timed(operator.process(["a1", "b1", "c1", "a2"]))
    assert batches.calls == [["a1", "b1"], ["c1", "a2"]]
    assert [at for _, at in got] == [1, 1, 2, 2]


@virtual
async def test_B1_also_if_that_call_runs_on_after_the_timeout_of_its_records():
    async def act(values, number):
        try:
            await asyncio.sleep(9.0 if number == 0 else 0.0)
        except asyncio.CancelledError:
            await asyncio.sleep(2.0)
        return values

    batches = Batches(act)
    operator = operator_of(batches, batching=Batching(max_size=2, linger=100.0), timeout=1.0, on_timeout=late)
    await collect(operator.process(["a1", "b1", "c1", "a2"]))
    assert batches.calls == [["a1", "b1"], ["c1", "a2"]]
    assert batches.times == [0, 3]
