"""O10 and O7: what a snapshot holds, and what becomes of it when it is restored."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from asyncio_operator import (
    AsyncWaitOperator,
    ConfigurationError,
    FunctionError,
    OperatorSnapshot,
    Record,
    Watermark,
)
from tests.operator.attempts import BAD, OK, Act, Script, retry, stop
from tests.operator.helpers import (
    Source,
    collect,
    collect_until,
    forever,
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
