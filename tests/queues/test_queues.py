"""Q1 to Q7: the ordered, the unordered and the key-ordered queue of stream elements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from asyncio_operator import ConfigurationError, FunctionError, Record, StateError, Watermark
from asyncio_operator.queues import (
    Entry,
    KeyOrderedStreamElementQueue,
    OrderedStreamElementQueue,
    StreamElementQueue,
    UnorderedStreamElementQueue,
)
from asyncio_operator.queues.key_ordered import KeyedEntry
from asyncio_operator.testing import check_element_queue

Make = Callable[[int], StreamElementQueue]


def key_of(value: Any) -> Any:
    return value % 3 if isinstance(value, int) else value


def key_ordered(capacity: int) -> KeyOrderedStreamElementQueue:
    return KeyOrderedStreamElementQueue(capacity, key=key_of)


def one_key(capacity: int) -> KeyOrderedStreamElementQueue:
    return KeyOrderedStreamElementQueue(capacity, key=lambda value: None)


@pytest.fixture(params=[OrderedStreamElementQueue, UnorderedStreamElementQueue, key_ordered, one_key])
def make(request: pytest.FixtureRequest) -> Make:
    queue: Make = request.param
    return queue


def put(queue: StreamElementQueue, element: Any) -> Entry:
    entry = queue.try_put(element)
    assert entry is not None
    return entry


def emit(queue: StreamElementQueue) -> list[Any]:
    emitted: list[Any] = []
    queue.emit_completed_element(emitted.append)
    return emitted


def emit_all(queue: StreamElementQueue) -> list[Any]:
    emitted: list[Any] = []
    while queue.has_completed_elements():
        queue.emit_completed_element(emitted.append)
    return emitted


def test_the_contract(make: Make) -> None:
    check_element_queue(make)


class RefusesNothing(OrderedStreamElementQueue):
    def try_put(self, element: Any) -> Entry | None:
        return self.put_watermark(element) if isinstance(element, Watermark) else self.put(element)


class CountsOnlyRecords(OrderedStreamElementQueue):
    def __len__(self) -> int:
        return sum(entry.outputs != () or isinstance(entry.element, Record) for entry in self._entries)


class LastCompletionWins(OrderedStreamElementQueue):
    class Entry(Entry):
        __slots__ = ()

        def complete(self, outputs: Any) -> bool:
            self.outputs = tuple(outputs)
            return True

    def put(self, element: Any) -> Entry:
        entry = self.Entry(element)
        self._entries.append(entry)
        return entry


class ForgetsTimestamps(OrderedStreamElementQueue):
    def emit_completed_element(self, emit: Any) -> None:
        super().emit_completed_element(lambda e: emit(Record(e.value) if isinstance(e, Record) else e))


class EmitsEverythingAtOnce(OrderedStreamElementQueue):
    def emit_completed_element(self, emit: Any) -> None:
        while self.has_completed_elements():
            super().emit_completed_element(emit)


class HidesWhatIsComplete(OrderedStreamElementQueue):
    def values(self) -> list[Any]:
        return [entry.element for entry in self._entries if entry.outputs is None]


class ReplaysBackwards(OrderedStreamElementQueue):
    def values(self) -> list[Any]:
        return super().values()[::-1]


class IgnoresWatermarks(UnorderedStreamElementQueue):
    def put_watermark(self, watermark: Watermark) -> Entry:
        entry = self.put(watermark)
        entry.complete(())
        return entry


class KeepsEmptyInputs(OrderedStreamElementQueue):
    def peek_completed(self) -> Entry | None:
        entry = super().peek_completed()
        return None if entry is not None and entry.outputs == () and isinstance(entry.element, Record) else entry


class HoldsWatermarks(OrderedStreamElementQueue):
    def peek_completed(self) -> Entry | None:
        entry, runs = super().peek_completed(), any(each.outputs is None for each in self._entries)
        return None if runs and entry is not None and isinstance(entry.element, Watermark) else entry


class LosesInterruptedInputs(OrderedStreamElementQueue):
    def emit_completed_element(self, emit: Any) -> None:
        entry = self.poll_completed()
        if entry is not None and isinstance(entry.element, Watermark):
            emit(entry.element)
        elif entry is not None:
            for output in entry.outputs or ():
                emit(Record(output, entry.element.timestamp))


@pytest.mark.parametrize(
    "broken",
    [
        RefusesNothing,
        CountsOnlyRecords,
        LastCompletionWins,
        ForgetsTimestamps,
        EmitsEverythingAtOnce,
        HidesWhatIsComplete,
        ReplaysBackwards,
        IgnoresWatermarks,
        KeepsEmptyInputs,
        HoldsWatermarks,
        LosesInterruptedInputs,
    ],
)
def test_the_contract_finds_a_broken_queue(broken: Make) -> None:
    with pytest.raises(AssertionError) as found:
        check_element_queue(broken)
    wrong: Any
    for wrong in (None, 5, lambda: None):
        with pytest.raises(ConfigurationError, match=r"^make is "):
            check_element_queue(wrong)
    assert str(found.value)


@pytest.mark.parametrize("capacity", [0, -1, 1.0, True, None, "1"])
def test_Q1_a_capacity_below_1_is_refused(make: Make, capacity: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"capacity is .*; it must be an int of at least 1"):
        make(capacity)


@pytest.mark.parametrize("key", [5, None, "key", asyncio.sleep, lambda: 1])
def test_Q7_a_key_that_is_no_plain_function_is_refused(key: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"key is .*; it must (be|take one argument, the value)"):
        KeyOrderedStreamElementQueue(1, key)


@pytest.mark.parametrize(
    "element", [1, None, (1, 2), Record, type("Sub", (Watermark,), {})(5), type("Sub", (Record,), {})(5)]
)
def test_Q1_anything_else_is_a_type_error(make: Make, element: Any) -> None:
    with pytest.raises(TypeError, match="a queue holds Record and Watermark, not"):
        make(1).try_put(element)


def test_Q2_completing_a_watermark_is_a_state_error(make: Make) -> None:
    entry = put(make(1), Watermark(7))
    with pytest.raises(StateError, match=r"Watermark\(7\) cannot be completed"):
        entry.complete([])


def test_Q3_one_inputs_outputs_leave_together_with_its_timestamp(make: Make) -> None:
    queue = make(2)
    first, second = put(queue, Record("a", 5)), put(queue, Record("b"))
    first.complete([3, 1, 2])
    second.complete([4])
    assert emit(queue) == [Record(3, 5), Record(1, 5), Record(2, 5)]
    assert emit(queue) == [Record(4)]
    assert emit(queue) == []


def test_Q5_elements_leave_in_the_order_they_came() -> None:
    queue = OrderedStreamElementQueue(4)
    first, _, second = put(queue, Record(1)), put(queue, Watermark(1)), put(queue, Record(2))
    second.complete([2])
    assert emit_all(queue) == []
    first.complete([1])
    assert emit_all(queue) == [Record(1), Watermark(1), Record(2)]


def test_Q6_nothing_crosses_a_watermark() -> None:
    queue = UnorderedStreamElementQueue(9)
    before, _, behind = put(queue, Record(1)), put(queue, Watermark(1)), put(queue, Record(2))
    behind.complete([2])
    assert emit_all(queue) == []
    before.complete([1])
    assert emit_all(queue) == [Record(1), Watermark(1), Record(2)]


class Model:
    """A list of inputs; what may leave is looked for from its start."""

    def __init__(self, ordered: bool) -> None:
        self.ordered = ordered
        self.inside: list[Record[Any] | Watermark] = []
        self.completed: list[tuple[Record[Any], list[Any]]] = []

    def next(self) -> tuple[Any, list[Any]] | None:
        for record, outputs in self.completed:
            ahead = self.inside[: self.inside.index(record)]
            if not any(self.ordered or isinstance(element, Watermark) for element in ahead):
                return record, [Record(output, record.timestamp) for output in outputs]
        first = self.inside[0] if self.inside else None
        return (first, [first]) if isinstance(first, Watermark) else None


class QueueMachine(RuleBasedStateMachine):
    """Holds a queue against the model after every step."""

    running = Bundle("running")
    over = Bundle("over")
    ordered = False
    make: Any = UnorderedStreamElementQueue

    def __init__(self) -> None:
        super().__init__()
        self.queue = type(self).make(5)
        self.model = Model(self.ordered)
        self.count = 0

    @rule(target=running, timestamp=st.none() | st.integers(-3, 3))
    def put_record(self, timestamp: int | None) -> Any:
        self.count += 1
        record = Record(self.count, timestamp)
        entry = self.queue.try_put(record)
        assert (entry is None) == (len(self.model.inside) == 5)
        if entry is None:
            return multiple()
        self.model.inside.append(record)
        self.came(record)
        return record, entry

    @rule()
    def put_watermark(self) -> None:
        self.count += 1
        watermark = Watermark(self.count)
        if self.queue.try_put(watermark) is not None:
            self.model.inside.append(watermark)

    @rule(target=over, taken=consumes(running), outputs=st.lists(st.integers(), max_size=3))
    def complete(self, taken: tuple[Record[Any], Entry], outputs: list[int]) -> Entry:
        record, entry = taken
        assert entry.complete(iter(outputs))
        self.model.completed.append((record, outputs))
        self.completed(record)
        return entry

    @rule(entry=over)
    def Q2_a_second_completion_changes_nothing_before_and_after_the_output(self, entry: Entry) -> None:
        assert not entry.complete(["again"])

    def came(self, record: Record[Any]) -> None:
        """It is inside."""

    def completed(self, record: Record[Any]) -> None:
        """It is complete."""

    @rule()
    def emit(self) -> None:
        expected = self.model.next()
        assert emit(self.queue) == ([] if expected is None else expected[1])
        if expected is None:
            assert self.queue.poll_completed() is None
        else:
            self.model.inside.remove(expected[0])
            self.model.completed = [pair for pair in self.model.completed if pair[0] != expected[0]]

    @precondition(lambda self: self.model.next() is not None and self.model.next()[1])
    @rule(after=st.integers(0, 2))
    def emit_interrupted(self, after: int) -> None:
        """An `emit` that raises leaves everything as it was."""
        seen: list[Any] = []

        def refuse(element: Any) -> None:
            if len(seen) == after:
                raise InterruptedError
            seen.append(element)

        expected = self.model.next()
        assert expected is not None
        if after < len(expected[1]):
            with pytest.raises(InterruptedError):
                self.queue.emit_completed_element(refuse)
            assert seen == expected[1][:after]

    @invariant()
    def the_same_is_inside(self) -> None:
        assert len(self.queue) == len(self.model.inside) <= 5
        assert self.queue.is_empty() == (not self.model.inside)
        assert self.queue.has_completed_elements() == (self.model.next() is not None)
        assert self.queue.values() == self.model.inside

    @invariant()
    def Q4_a_replay_ends_in_the_same_place(self) -> None:
        """What is inside, put into a new queue and completed, leaves with the watermarks where they were."""
        replayed = type(self).make(5)
        for element in self.queue.values():
            entry = put(replayed, element)
            if isinstance(element, Record):
                entry.complete([element.value])
        assert emit_all(replayed) == self.model.inside


class OrderedQueueMachine(QueueMachine):
    ordered = True
    make = OrderedStreamElementQueue


class UnorderedQueueMachine(QueueMachine):
    pass


LONG = settings(max_examples=2 * settings().max_examples, stateful_step_count=40)

TestOrderedQueue = OrderedQueueMachine.TestCase
TestOrderedQueue.settings = LONG
TestUnorderedQueue = UnorderedQueueMachine.TestCase
TestUnorderedQueue.settings = LONG


def test_Q7_key_gets_the_records_value() -> None:
    asked: list[Any] = []
    queue = KeyOrderedStreamElementQueue(9, key=asked.append)
    put(queue, Record("a", 5))
    put(queue, Watermark(5))
    assert asked == ["a"]


def test_Q7_a_key_that_fails_leaves_the_queue_as_it_was() -> None:
    queue = KeyOrderedStreamElementQueue(9, key=lambda value: [value])
    with pytest.raises(TypeError):
        queue.try_put(Record(1))
    assert queue.is_empty()
    assert queue.next_runnable() is None


class Key:
    """Its hash is asked for again and again; `hashes` are the answers, and an error is raised."""

    def __init__(self, *hashes: int | Exception) -> None:
        self.hashes = list(hashes)

    def __hash__(self) -> int:
        one = self.hashes.pop(0) if len(self.hashes) > 1 else self.hashes[0]
        if isinstance(one, Exception):
            raise one
        return one

    def __eq__(self, other: object) -> bool:
        return self is other or other == 5


@pytest.mark.parametrize("asked", [1, 2, 3, 4])
def test_O10_a_key_whose_hash_fails_at_any_time_leaves_no_element_doubled_or_half_inside(asked: int) -> None:
    queue = KeyOrderedStreamElementQueue(9, key=lambda value: Key(*[7] * (asked - 1), ValueError("hash")))
    try:
        entry = put(queue, Record(1))
    except ValueError:
        assert queue.is_empty()
        assert queue.next_runnable() is None
        return
    assert queue.values() == [Record(1)]
    assert queue.next_runnable() is entry
    assert asked > 1


@pytest.mark.parametrize(
    ("hashes", "cause"), [([1, 2], KeyError), ([1, ValueError("hash")], ValueError), ([1, 5], KeyError)]
)
def test_O15_a_key_that_cannot_be_freed_is_an_error_of_key(hashes: list[Any], cause: type[Exception]) -> None:
    """Its hash has changed, into that of another key also."""
    queue = KeyOrderedStreamElementQueue(9, key=lambda value: Key(*hashes) if value == "odd" else value)
    put(queue, Record(5))
    entry = put(queue, Record("odd"))
    with pytest.raises(FunctionError, match=r"^key failed for element 'odd' with .*; .* do not change") as failure:
        entry.complete(["result"])
    assert isinstance(failure.value.__cause__, cause)
    assert queue.values() == [Record(5), Record("odd")]


def test_Q7_keys_that_are_done_take_no_memory() -> None:
    queue = KeyOrderedStreamElementQueue(9, key=same)
    for value in range(1000):
        put(queue, Record(value)).complete([])
        emit(queue)
    assert queue._lines == {}
    assert queue.next_runnable() is None


def same(value: Any) -> Any:
    return value


class KeyOrderedQueueMachine(QueueMachine):
    """Also hands out, holds and releases. A record may be completed whether it was handed out or not."""

    make = staticmethod(key_ordered)
    queue: KeyOrderedStreamElementQueue
    started = Bundle("started")

    def __init__(self) -> None:
        super().__init__()
        self.taking: list[int] = []  # the values that take a key, or wait for it
        self.ended: set[int] = set()
        self.held: set[int] = set()
        self.handed_out: set[int] = set()

    def came(self, record: Record[Any]) -> None:
        self.taking.append(record.value)

    def completed(self, record: Record[Any]) -> None:
        self.ended.add(record.value)

    @rule(target=started)
    def next_runnable(self) -> Any:
        """The oldest that was not handed out, has not ended, and has no other of its key before it."""
        self.taking = [value for value in self.taking if value not in self.ended - self.held]
        oldest = {key_of(value): value for value in reversed(self.taking)}
        expected = [value for value in sorted(oldest.values()) if value not in self.handed_out | self.ended]
        entry = self.queue.next_runnable()
        assert ([] if entry is None else [entry.element.value]) == expected[:1]
        if entry is None:
            return multiple()
        self.handed_out.add(entry.element.value)
        return entry

    @rule(entry=started)
    def hold(self, entry: KeyedEntry) -> None:
        if entry.outputs is None:
            self.queue.hold(entry)
            self.held.add(entry.element.value)

    @rule(entry=started)
    def release(self, entry: KeyedEntry) -> None:
        if entry.element.value in self.held:
            self.queue.release(entry)
            self.held.remove(entry.element.value)


TestKeyOrderedQueue = KeyOrderedQueueMachine.TestCase
TestKeyOrderedQueue.settings = LONG
