"""O10: a snapshot at any moment, in a chain of runs and between two steps of the synchronous face."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from asyncio_operator import (
    AsyncWaitOperator,
    Batching,
    OperatorSnapshot,
    RateLimit,
    Record,
    Watermark,
)
from asyncio_operator.testing import VirtualTimeLoop
from tests.core.attempts import BAD, MODES, OK, Act, Batches, Script, retry, stop
from tests.core.helpers import (
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
    while operator.metrics.emitted < 410:
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
    while operator.metrics.emitted < 50:
        operator.snapshot()
    assert operator.snapshot().elements == tuple((value, 1) for value in range(1, 50))
    outputs.close()  # type: ignore[attr-defined]


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
