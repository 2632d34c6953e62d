"""O10 and O7: what a snapshot holds, and what becomes of it when it is restored."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from asyncio_operator import (
    AsyncWaitOperator,
    Batching,
    ConfigurationError,
    FunctionError,
    OperatorSnapshot,
    RateLimit,
    Record,
    Watermark,
)
from tests.operator.attempts import BAD, OK, Act, Batches, Script, retry, stop
from tests.operator.helpers import (
    Doors,
    Source,
    collect,
    collect_timed,
    collect_until,
    fail,
    forever,
    late,
    same,
    virtual,
)


async def restored(snapshot: OperatorSnapshot, rest: Any = (), function: Any = same, **options: Any) -> list[Any]:
    return await collect(AsyncWaitOperator(function, **options).process(rest, restore=snapshot))


# -- what it holds


@virtual
async def test_O10_it_holds_inputs_with_timestamps_and_watermarks_in_a_replayable_order(any_mode):
    elements = [Record(1, 10), Watermark(10), 2, Record(3, None), Watermark(12)]
    operator = AsyncWaitOperator(forever, **any_mode)
    first = asyncio.ensure_future(anext(run := operator.process(elements)))
    await asyncio.sleep(1)
    snapshot = operator.snapshot()
    assert [element for element, _ in snapshot.elements] == elements
    assert len(snapshot) == 5
    await stop(run, first)
    assert await restored(snapshot, **any_mode) == elements


@virtual
async def test_O10_restored_elements_go_in_before_new_input(any_mode):
    script = Script({})
    snapshot = OperatorSnapshot(((1, 0), (2, 0)))
    assert await restored(snapshot, [3, 4], script, capacity=1, **any_mode) == [1, 2, 3, 4]
    assert [value for value, _ in script.starts] == [1, 2, 3, 4]


@virtual
async def test_O10_with_a_smaller_capacity_they_simply_wait(any_mode):
    snapshot = OperatorSnapshot(tuple((value, 0) for value in range(100)))
    script = Script(lambda value, attempt: Act(1.0))
    operator = AsyncWaitOperator(script, capacity=2, buffer=3, **any_mode)
    source = Source(iter([100]))
    first = asyncio.ensure_future(anext(run := operator.process(source, restore=snapshot)))
    await asyncio.sleep(0.5)
    assert script.most == 2
    assert source.read == 0
    assert [element for element, _ in operator.snapshot().elements] == list(range(100))
    assert sorted([await first, *await collect(run)]) == list(range(101))


@virtual
async def test_O10_it_may_be_taken_with_the_queue_full_and_the_consumer_not_reading(any_mode):
    operator = AsyncWaitOperator(same, capacity=2, buffer=3, **any_mode)
    run = operator.process(source := Source(iter(range(9))))
    got = [await anext(run)]
    await asyncio.sleep(5)
    snapshot = operator.snapshot()
    assert source.read == 4
    assert [element for element, _ in snapshot.elements] == [1, 2, 3]
    await stop(run)
    assert got + await restored(snapshot, source, **any_mode) == list(range(9))


@virtual
async def test_O10_what_is_complete_and_not_emitted_is_in_it():
    operator = AsyncWaitOperator(first_forever, capacity=9)
    first = asyncio.ensure_future(anext(run := operator.process(range(5))))
    await asyncio.sleep(1)
    assert [element for element, _ in operator.snapshot().elements] == list(range(5))
    await stop(run, first)


async def first_forever(value: Any) -> Any:
    return await forever() if value == 0 else value


@virtual
async def test_O10_it_holds_elements_in_back_off_with_their_attempts(any_mode):
    got: list[Any] = []
    script = Script({0: [BAD, BAD, OK], 1: [BAD, Act(50.0)], 2: [OK], 3: [Act(50.0)]})
    operator = AsyncWaitOperator(script, retry=retry(5, 2.0), buffer=9, **any_mode)
    first = asyncio.ensure_future(collect_until(run := operator.process(range(4)), got))
    await asyncio.sleep(3)
    snapshot = operator.snapshot()
    assert dict(snapshot.elements)[0] == 2
    assert dict(snapshot.elements)[1] == 1
    await stop(run, first)
    # A running attempt and a successful one are not counted.
    assert [attempts for value, attempts in snapshot.elements if value >= 2] == [0] * (2 - len(got))


@virtual
async def test_O10_a_restored_element_keeps_its_attempts(any_mode):
    for used, calls in [(0, 4), (1, 3), (3, 1), (4, 1), (9, 1)]:
        script = Script(lambda value, attempt: BAD)
        snapshot = OperatorSnapshot(((1, used),))
        got = await restored(snapshot, (), script, retry=retry(4), on_error=lambda v, e: "failed", **any_mode)
        assert got == ["failed"]
        assert len(script.starts) == calls
    with pytest.raises(FunctionError, match="in attempt 4 with ValueError"):
        await restored(OperatorSnapshot(((1, 2),)), (), fail, retry=retry(4), **any_mode)


@virtual
async def test_O10_its_deadline_starts_anew(any_mode):
    script = Script({1: [Act(2.0, error=ValueError()), Act(9.0)]})
    operator = AsyncWaitOperator(script, timeout=10.0, retry=retry(delay=5.0), on_timeout=late, **any_mode)
    first = asyncio.ensure_future(anext(run := operator.process([1])))
    await asyncio.sleep(6.0)
    snapshot = operator.snapshot()
    await stop(run, first)
    assert snapshot.elements == ((1, 1),)
    script = Script({1: [Act(9.5)]})
    operator = AsyncWaitOperator(script, timeout=10.0, retry=retry(), on_timeout=late, **any_mode)
    assert await collect_timed(operator.process([], restore=snapshot)) == [(1, 15.5)]


@virtual
async def test_O10_it_holds_a_batch_that_is_being_formed(any_mode):
    got: list[Any] = []
    batches = Batches()
    options: dict[str, Any] = {"batching": Batching(max_size=3, linger=100.0), **any_mode}
    operator = AsyncWaitOperator(batches, **options)

    async def source():
        for value in range(5):
            yield value
        await forever()

    task = asyncio.ensure_future(collect_until(run := operator.process(source()), got))
    await asyncio.sleep(1)
    snapshot = operator.snapshot()
    assert [element for element, _ in snapshot.elements] == [3, 4]
    await stop(run, task)
    assert sorted(got + await restored(snapshot, (), Batches(), **options)) == list(range(5))


@virtual
async def test_O10_it_holds_what_waits_for_the_rate_limit(any_mode):
    operator = AsyncWaitOperator(same, rate_limit=RateLimit(1, per=10.0), **any_mode)
    run = operator.process(source := Source(iter(range(5))))
    assert await anext(run) == 0
    await asyncio.sleep(1)
    snapshot = operator.snapshot()
    await stop(run)
    assert await restored(snapshot, source, **any_mode) == [1, 2, 3, 4]


@virtual
async def test_O10_it_holds_what_has_been_read_of_an_asynchronous_input(any_mode):
    """The first call takes the only place while the next element comes."""

    async def source():
        yield 0
        await asyncio.sleep(1)
        yield 1
        yield 2

    script = Script({0: [BAD, Act(50.0)]})
    operator = AsyncWaitOperator(script, capacity=1, retry=retry(delay=0.5), **any_mode)
    task = asyncio.ensure_future(anext(run := operator.process(source())))
    await asyncio.sleep(2)
    assert [element for element, _ in operator.snapshot().elements] == [0, 1]
    await stop(run, task)


@virtual
async def test_O10_the_snapshot_of_a_failed_run_holds_what_was_not_emitted(any_mode):
    got: list[Any] = []
    operator = AsyncWaitOperator(Script({3: [BAD]}), capacity=1, **any_mode)
    with pytest.raises(FunctionError):
        await collect_until(operator.process(source := Source(iter(range(9)))), got)
    snapshot = operator.snapshot()
    assert got + await restored(snapshot, source, **any_mode) == list(range(9))


@virtual
async def test_O10_also_if_its_key_failed():
    got: list[Any] = []

    def key(value: Any) -> Any:
        return 1 / (value - 3)

    operator = AsyncWaitOperator(same, mode="key_ordered", key=key)
    with pytest.raises(FunctionError, match=r"^key failed for element 3 with ZeroDivisionError"):
        await collect_until(operator.process(source := Source(iter(range(9)))), got)
    assert got + await restored(operator.snapshot(), source) == list(range(9))


@virtual
async def test_O10_after_the_end_it_is_empty_and_before_the_first_run_too(any_mode):
    operator = AsyncWaitOperator(same, **any_mode)
    assert operator.snapshot() == OperatorSnapshot()
    assert await collect(operator.process(range(5))) == list(range(5))
    assert len(operator.snapshot()) == 0


@virtual
async def test_O10_it_is_picklable_and_may_be_restored_more_than_once(any_mode):
    operator = AsyncWaitOperator(forever, **any_mode)
    elements = [Record("a", 1), Watermark(1), Record(2, None)]
    options = {**any_mode} | ({"key": str} if "key" in any_mode else {})
    operator = AsyncWaitOperator(forever, **options)
    first = asyncio.ensure_future(anext(run := operator.process(elements)))
    await asyncio.sleep(1)
    snapshot = pickle.loads(pickle.dumps(operator.snapshot()))
    assert snapshot == operator.snapshot()
    await stop(run, first)
    for _ in range(3):
        assert await restored(snapshot, [4], **options) == [*elements, 4]


@pytest.mark.parametrize("wrong", [[], (), [1], "snapshot", 0])
def test_O10_only_a_snapshot_is_restored(wrong):
    with pytest.raises(ConfigurationError, match=r"restore is .*; it must be what operator.snapshot\(\) gave"):
        AsyncWaitOperator(same).process([], restore=wrong)


@virtual
async def test_O10_a_snapshot_of_a_restored_run_is_whole_before_anything_is_admitted(any_mode):
    snapshot = OperatorSnapshot(((1, 0), (Watermark(2), 0), (3, 2)))

    async def slow() -> None:
        await asyncio.sleep(10)

    operator = AsyncWaitOperator(Doors(opening=slow), **any_mode)
    first = asyncio.ensure_future(anext(run := operator.process([4], restore=snapshot)))
    await asyncio.sleep(1)
    assert operator.snapshot() == snapshot
    await stop(run, first)


# -- flatten


@virtual
async def test_O7_an_input_is_held_until_its_last_output_has_been_handed_over(any_mode):
    async def three(value: Any) -> Any:
        return [(value, i) for i in range(3)]

    for taken in range(7):
        operator = AsyncWaitOperator(three, flatten=True, capacity=1, buffer=2, **any_mode)
        run = operator.process(source := Source(iter(range(2))))
        got = [await anext(run) for _ in range(taken)]
        snapshot = operator.snapshot()
        await stop(run)
        rest = await restored(snapshot, source, three, flatten=True, **any_mode)
        everything = [(value, i) for value in range(2) for i in range(3)]
        # Of the input whose outputs were taken in part, the first ones come again.
        assert rest == everything[taken // 3 * 3 :]
        assert got == everything[:taken]
