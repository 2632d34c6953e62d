"""O10, O7 and R2: what a snapshot and a run hold, at any moment and on the synchronous face, and what is restored."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator, ConfigurationError, FunctionError, OperatorSnapshot, Record, Watermark
from asyncio_operator.loop.thread import loop_thread
from tests.operator.attempts import BAD, OK, Act, Script, retry, stop
from tests.operator.helpers import Source, collect, collect_until, forever, now, same, virtual


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


# -- the synchronous face


def rest_of(operator: AsyncWaitOperator, snapshot: OperatorSnapshot) -> list[Any]:
    return asyncio.run(collect(operator.process([], restore=snapshot)))


@pytest.mark.parametrize("taken", [0, 1, 2, 7, 64, 128, 129, 200, 400])
def test_O10_a_snapshot_between_two_steps_of_the_synchronous_face_loses_and_doubles_nothing(any_mode, taken):
    operator = AsyncWaitOperator(same, capacity=8, **any_mode)
    outputs = operator(range(1000))
    got = [next(outputs) for _ in range(taken)]
    snapshot = operator.snapshot()
    outputs.close()  # type: ignore[attr-defined]
    # What was not read yet comes behind everything else.
    inside = [element for element, _ in snapshot.elements]
    assert sorted(got + inside) == list(range(taken + len(inside)))
    assert rest_of(operator, snapshot) == inside


def test_O10_outputs_on_their_way_are_known_also_if_many_inputs_have_none(any_mode):
    """Outputs that are on their way to the consumer are known however many inputs without any are between them."""

    async def call(value: Any) -> list[Any]:
        return [] if 100 <= value < 400 else [value]

    operator = AsyncWaitOperator(call, capacity=8, flatten=True, **any_mode)
    outputs = operator(range(1000))
    first = next(outputs)
    # One taken, 300 without outputs, and as many on their way as there may be.
    while operator.metrics.emitted < 301:
        operator.snapshot()
    snapshot = operator.snapshot()
    outputs.close()  # type: ignore[attr-defined]
    inside = {element for element, _ in snapshot.elements}
    assert {first, *inside} >= set(range(100))


def test_O10_what_is_on_its_way_to_the_consumer_keeps_its_attempts(any_mode):
    script = Script(lambda value, attempt: BAD if attempt == 0 else OK)
    operator = AsyncWaitOperator(script, retry=retry(delay=0.0), **any_mode)
    outputs = operator(range(50))
    assert next(outputs) == 0
    while (metrics := operator.metrics).retries < 50 or metrics.in_flight or metrics.backing_off:
        operator.snapshot()
    assert operator.snapshot().elements == tuple((value, 1) for value in range(1, 50))
    outputs.close()  # type: ignore[attr-defined]


async def tasks() -> int:
    return len(asyncio.all_tasks())


class Ending:
    """An input, or a function, that fails at its end, if that is switched on."""

    def __init__(self, failing: str, elements: list[Any]) -> None:
        self.failing = failing
        self.elements = elements
        self.last = elements[-1]
        self.go = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        yield from self.elements
        assert self.go.wait(10)
        if self.failing == "input":
            raise OSError("mine")

    async def call(self, value: Any) -> Any:
        if self.failing == "call" and value == self.last:
            while not self.go.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0)
            raise OSError("mine")
        return value

    def run_until_failed(self, operator: AsyncWaitOperator, taken: int, last_act: str) -> list[Any]:
        """What was taken of a run that has failed before the consumer asks again."""
        outputs = operator(self)
        got = [next(outputs) for _ in range(taken)]
        while operator.metrics.admitted < sum(not isinstance(element, Watermark) for element in self.elements):
            operator.snapshot()
        self.go.set()
        while asyncio.run_coroutine_threadsafe(tasks(), loop_thread().loop).result(10) > 1:
            pass
        with pytest.raises((OSError, FunctionError)):
            outputs.close() if last_act == "close" else got.extend(outputs)  # type: ignore[attr-defined]
        return got


@pytest.mark.parametrize("last_act", ["read on", "close"])
@pytest.mark.parametrize("failing", ["call", "input"])
@pytest.mark.parametrize("taken", [1, 2, 40])
def test_O10_outputs_that_a_failure_took_back_are_in_the_snapshot_and_not_emitted(any_mode, failing, taken, last_act):
    elements: list[Any] = []
    for number in range(100):
        elements += [Watermark(number)] if number % 7 == 3 else []
        elements.append(Record(number, number) if number % 2 else number)
    ending = Ending(failing, elements)
    ending.last = 99
    operator = AsyncWaitOperator(ending.call, **any_mode)
    got = ending.run_until_failed(operator, taken, last_act)
    inside = [element for element, _ in operator.snapshot().elements]
    assert len(got) == taken
    assert Counter(map(str, got + inside)) == Counter(map(str, elements))
    metrics = operator.metrics
    assert metrics.emitted == sum(not isinstance(element, Watermark) for element in got)
    assert metrics.buffered == 100 - metrics.emitted


class Stopping(asyncio.SelectorEventLoop):
    """Stops between the question whether it runs and whatever comes next."""

    lies = 0

    def is_running(self) -> bool:
        self.lies -= 1
        return self.lies == 0 or super().is_running()


def test_O10_it_does_not_wait_for_a_loop_that_stops():
    loop = Stopping()
    operator = AsyncWaitOperator(same)
    run = operator.process(range(5))
    assert loop.run_until_complete(anext(run)) == 0
    loop.lies = 1
    assert [element for element, _ in operator.snapshot().elements] == [1, 2, 3, 4]
    assert loop.lies < 0
    loop.run_until_complete(run.aclose())
    loop.close()


def test_O10_it_may_be_taken_from_another_thread_at_any_time(any_mode):
    operator = AsyncWaitOperator(same, capacity=4, **any_mode)
    got = []
    snapshots: list[tuple[int, OperatorSnapshot]] = []
    for output in operator(range(3000)):
        got.append(output)
        if len(got) % 97 == 0:
            snapshots.append((len(got), operator.snapshot()))
    assert sorted(got) == list(range(3000))
    for count, snapshot in snapshots:
        inside = [element for element, _ in snapshot.elements]
        assert sorted(got[:count] + inside) == list(range(count + len(inside)))


@virtual
async def test_R2_an_element_that_has_left_is_held_by_no_deadline_or_timer(any_mode):
    class Value:
        def __init__(self, number: int) -> None:
            self.number = number

        def __mod__(self, other: int) -> int:
            return self.number % other

    alive: weakref.WeakSet[Value] = weakref.WeakSet()

    def values() -> Iterator[Value]:
        for number in range(50):
            value = Value(number)
            alive.add(value)
            yield value
            del value

    async def call(value: Value) -> int:
        await asyncio.sleep(1 if value.number < 49 else 100)
        return value.number

    operator = AsyncWaitOperator(call, capacity=50, timeout=3600.0, retry=retry(3, 1.0), **any_mode)
    run = operator.process(values())
    for _ in range(49):
        await anext(run)
    step = asyncio.ensure_future(anext(run))
    await asyncio.sleep(1)
    gc.collect()
    # The run may hold the element that left last.
    assert 49 in {value.number for value in alive}
    assert len(alive) <= 2
    assert await step == 49
    assert await collect(run) == []
    gc.collect()
    assert not alive
    assert now() < 3600


@virtual
async def test_O8_O10_results_at_hand_when_a_run_is_closed_are_in_its_snapshot_and_not_emitted(any_mode):
    """As at the drain of a job that goes on from its checkpoint: the next run gives them."""
    release = [asyncio.Event() for _ in range(3)]

    async def call(value: int) -> int:
        await release[value].wait()
        return value

    operator = AsyncWaitOperator(call, capacity=5, **any_mode)
    run = operator.process([0, 1, 2, Watermark(7)])
    release[0].set()
    assert await anext(run) == 0
    for value in (2, 1):
        release[value].set()
        await asyncio.sleep(1)
    await stop(run)
    snapshot = operator.snapshot()
    assert [element for element, _ in snapshot.elements] == [1, 2, Watermark(7)]
    again = AsyncWaitOperator(same, **any_mode).process([], restore=snapshot)
    assert await collect(again) == [1, 2, Watermark(7)]
