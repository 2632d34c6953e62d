"""O10: a snapshot at any moment, in a chain of runs and between two steps of the synchronous face."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from asyncio_operator import (
    AsyncWaitOperator,
    Batching,
    FunctionError,
    OperatorSnapshot,
    RateLimit,
    Record,
    Watermark,
)
from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.testing import VirtualTimeLoop
from tests.operator.attempts import BAD, MODES, OK, Act, Batches, Script, retry, stop
from tests.operator.helpers import (
    Source,
    collect,
    collect_until,
    run_on,
    same,
)

# -- at any moment


class Input:
    """An asynchronous source that can be gone on with."""

    def __init__(self, elements: list[Any], gaps: list[float]) -> None:
        self.elements = elements
        self.gaps = gaps
        self.read = 0

    def __aiter__(self) -> Input:
        return self

    async def __anext__(self) -> Any:
        gap = self.gaps[self.read % len(self.gaps)] if self.gaps else 0.0
        if gap:
            await asyncio.sleep(gap)
        if self.read == len(self.elements):
            raise StopAsyncIteration
        self.read += 1
        return self.elements[self.read - 1]


ACTS = st.builds(
    Act,
    seconds=st.sampled_from([0.0, 0.0, 1.0, 3.0]),
    error=st.sampled_from([None, None, ValueError("bad")]),
    deaf=st.sampled_from([0.0, 0.0, 2.0]),
)


@dataclass
class Options:
    mode: str
    capacity: int
    buffer: int
    batched: bool
    more: dict[str, Any] = field(default_factory=dict)

    def operator(self, acts: list[list[Act]], attempts: Counter[Any]) -> AsyncWaitOperator:
        def act_of(value: Any) -> Act:
            attempts[value] += 1
            return acts[value][attempts[value] - 1] if attempts[value] <= len(acts[value]) else OK

        async def one(value: Any) -> Any:
            act = act_of(value)
            await asyncio.sleep(act.seconds)
            if act.error is not None:
                raise act.error
            return value

        async def many(values: list[Any], number: int) -> list[Any]:
            return [await one(value) for value in values]

        return AsyncWaitOperator(
            Batches(many) if self.batched else one,
            capacity=self.capacity,
            buffer=self.buffer,
            batching=Batching(max_size=3, linger=0.5) if self.batched else None,
            on_error=lambda value, error: value,
            **MODES[self.mode],
            **self.more,
        )


OPTIONS = st.builds(
    Options,
    mode=st.sampled_from(list(MODES)),
    capacity=st.integers(1, 4),
    buffer=st.integers(1, 8),
    batched=st.booleans(),
    more=st.fixed_dictionaries(
        {},
        optional={
            "retry": st.just(retry(4, 1.0)),
            "timeout": st.just(5.0),
            "attempt_timeout": st.just(2.0),
            "rate_limit": st.just(RateLimit(2, per=1.0)),
        },
    ),
)


def segments(elements: list[Any]) -> list[list[str]]:
    """What stands between two watermarks, in any order."""
    parts: list[list[str]] = [[]]
    for element in elements:
        if isinstance(element, Watermark):
            parts.append([])
        else:
            parts[-1].append(str(element))
    return [sorted(part) for part in parts]


@given(
    runs=st.lists(st.tuples(OPTIONS, st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 3.5, 6.0])), min_size=2, max_size=4),
    acts=st.lists(st.lists(ACTS, max_size=3), max_size=14),
    marks=st.sets(st.integers(0, 20), max_size=4),
    gaps=st.lists(st.sampled_from([0.0, 0.0, 0.5, 2.0]), max_size=4),
    pause=st.sampled_from([0.0, 0.0, 0.7]),
    asynchronous=st.booleans(),
)
def test_O10_a_chain_of_runs_gives_every_output_once(runs, acts, marks, gaps, pause, asynchronous):
    """Each run is stopped after a time, and the next one, with other options, takes up its snapshot."""
    elements: list[Any] = []
    for number in range(len(acts)):
        elements += [Watermark(number)] if number in marks else []
        elements.append(Record(number, number) if number % 2 else number)

    async def main():
        got: list[Any] = []
        snapshot = OperatorSnapshot()
        position = 0
        attempts: Counter[Any] = Counter()
        for options, seconds in runs[:-1]:
            operator, left = options.operator(acts, attempts), elements[position:]
            source: Any = Input(left, gaps) if asynchronous else Source(iter(left))
            run = operator.process(source, restore=snapshot)
            task = asyncio.ensure_future(collect_until(run, got, pause))
            await asyncio.wait([task], timeout=seconds)
            # It goes on until its cancellation arrives; what it reads and gives then is forgotten.
            taken, position, snapshot = len(got), position + source.read, operator.snapshot()
            await stop(run, task)
            del got[taken:]
        last = runs[-1][0].operator(acts, attempts)
        got += await collect(last.process(elements[position:], restore=snapshot))
        assert Counter(map(str, got)) == Counter(map(str, elements))
        if all(options.mode == "ordered" for options, _ in runs):
            assert got == elements
        assert segments(got) == segments(elements)

    run_on(VirtualTimeLoop, main())


# -- the synchronous face


def some(value: Any) -> list[Any]:
    """No outputs, one, or two."""
    return [(value, i) for i in range(value % 3)]


async def some_later(value: Any) -> list[Any]:
    if value % 5 == 0:
        await asyncio.sleep(0)
    return some(value)


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


@pytest.mark.parametrize("taken", [0, 1, 2, 3, 64, 127, 128, 129, 300])
def test_O10_also_with_flatten(any_mode, taken):
    operator = AsyncWaitOperator(some_later, capacity=8, flatten=True, **any_mode)
    outputs = operator(range(600))
    got = [next(outputs) for _ in range(taken)]
    snapshot = operator.snapshot()
    outputs.close()  # type: ignore[attr-defined]
    again = rest_of(operator, snapshot)
    last = max([value for value, _ in got] + [element for element, _ in snapshot.elements], default=-1)
    expected = Counter(output for value in range(last + 1) for output in some(value))
    doubled = Counter(got + again) - expected
    assert not expected - Counter(got + again)
    # Of one input the first outputs may come again: it had more than one, and the last was not taken.
    assert len({value for value, _ in doubled}) <= 1
    assert all(i == 0 for _, i in doubled)


def test_O10_also_if_many_inputs_have_no_output(any_mode):
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


@pytest.mark.parametrize("last_act", ["read on", "close"])
@pytest.mark.parametrize("taken", [1, 2, 3, 20, 21])
def test_O10_so_are_those_of_an_input_that_has_several(any_mode, taken, last_act):
    ending = Ending("input", list(range(90)))
    operator = AsyncWaitOperator(some_later, flatten=True, **any_mode)
    got = ending.run_until_failed(operator, taken, last_act)
    emitted = operator.metrics.emitted
    again = rest_of(operator, operator.snapshot())
    expected = Counter(output for value in range(90) for output in some(value))
    doubled = Counter(got + again) - expected
    assert not expected - Counter(got + again)
    assert len(doubled) <= 1
    assert all(i == 0 for _, i in doubled)
    whole = sum(set(some(value)) <= set(got) for value in range(90) if value % 3)
    # Of the thirty that have no output, any number has left.
    assert whole <= emitted <= whole + 30


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
