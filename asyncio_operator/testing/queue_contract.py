"""The contract of a queue of stream elements, as a plain callable: run it against your own implementation.

    check_element_queue(OrderedStreamElementQueue)
    check_element_queue(lambda capacity: KeyOrderedStreamElementQueue(capacity, key=lambda value: value % 3))

It checks what every `StreamElementQueue` must do, in whatever order it emits: laws Q1 to Q4, and of law Q6 that no
record crosses a watermark. Which completed record leaves first is left to the tests of each implementation.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from asyncio_operator.checks import plain_function
from asyncio_operator.elements import Record, Watermark
from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.queues import Entry, StreamElementQueue

Make = Callable[[int], StreamElementQueue]

SCHEDULES = 200
STEPS = 60


def check_element_queue(make: Make) -> None:
    """Raise `AssertionError`, with a message, unless ``make(capacity)`` gives a queue that keeps the contract."""
    plain_function("make", make, "a function of a capacity that returns a new queue", "the capacity")
    _check_capacity(make)
    _check_completion(make)
    for seed in range(SCHEDULES):
        _Schedule(make, seed).run()


def _check_capacity(make: Make) -> None:
    for capacity in (0, -1):
        _raises(ConfigurationError, partial(make, capacity), f"a queue was made with capacity {capacity}")
    queue = make(2)
    assert queue.is_empty(), "a new queue is not empty"
    assert len(queue) == 0, "a new queue has a length other than 0"
    assert queue.try_put(Record(1)) is not None, "an element was refused while there was room"
    assert queue.try_put(Watermark(1)) is not None, "an element was refused while there was room"
    assert queue.try_put(Record(2)) is None, "a record was accepted beyond the capacity; watermarks count too"
    assert queue.try_put(Watermark(2)) is None, "a watermark was accepted beyond the capacity"
    assert len(queue) == 2, "a refused element changed the length"
    assert queue.values() == [Record(1), Watermark(1)], "a refused element is in the queue"
    not_elements: list[Any] = [1, None, "record", (1, 2)]
    for wrong in not_elements:
        _raises(TypeError, partial(queue.try_put, wrong), f"{wrong!r} was accepted as an element")


def _check_completion(make: Make) -> None:
    queue = make(4)
    entry = _put(queue, Record(1, 10))
    assert not queue.has_completed_elements(), "a record was complete before it was completed"
    assert _emit(queue) == [], "an incomplete record was emitted"
    entry.complete([2])
    entry.complete([3])
    assert queue.has_completed_elements(), "a completed record does not count as complete"
    assert queue.values() == [Record(1, 10)], "values() must list an input, unchanged, until it is emitted"
    assert _emit(queue) == [Record(2, 10)], "the first completion must win, and the output have the input's timestamp"
    entry.complete([4])
    assert queue.is_empty(), "an element stayed in the queue after its emission"
    assert _emit(queue) == [], "a completion after the emission was emitted"

    queue = make(4)
    first, none = _put(queue, Record(1, 10)), _put(queue, Record(2))
    first.complete(iter([3, 1, 2]))
    none.complete([])
    assert _emit(queue) == [Record(3, 10), Record(1, 10), Record(2, 10)], "outputs must leave together, in order"
    assert queue.has_completed_elements(), "an input that is complete without outputs counts as a completed element"
    assert _emit(queue) == [], "an input without outputs emitted something"
    assert queue.is_empty(), "an input without outputs stayed in the queue"

    entry = _put(queue, Record(4))
    entry.complete([5, 6])

    def refuse(element: Any) -> None:
        raise InterruptedError

    _raises(InterruptedError, lambda: queue.emit_completed_element(refuse), "an error of `emit` was swallowed")
    assert queue.values() == [Record(4)], "an input must stay in the queue until all its outputs were handed over"
    assert _emit(queue) == [Record(5), Record(6)], "an interrupted emission must start again with its first output"

    queue = make(4)
    entry = _put(queue, Watermark(1))
    assert queue.has_completed_elements(), "a watermark must be complete at once, and pass an empty queue"
    _raises(StateError, lambda: entry.complete([1]), "a watermark was completed")
    assert _emit(queue) == [Watermark(1)], "a watermark was changed"


class _Schedule:
    """Puts, completes and emits at random, and compares the queue with a simple model of it."""

    def __init__(self, make: Make, seed: int) -> None:
        self.random = random.Random(seed)
        self.capacity = self.random.randint(1, 6)
        self.queue = make(self.capacity)
        self.inside: list[Record[Any] | Watermark] = []
        self.running: dict[int, Entry] = {}
        self.outputs: dict[int, list[Any]] = {}
        self.count = 0

    def run(self) -> None:
        for _ in range(STEPS):
            self.random.choice([self.put, self.put, self.complete, self.emit])()
            self.check()
        while self.running:
            self.complete()
            self.check()
        for _ in range(len(self.inside)):
            assert self.queue.has_completed_elements(), "everything is complete, but nothing may leave"
            self.emit()
            self.check()
        assert self.queue.is_empty(), "an element stayed in the queue"

    def put(self) -> None:
        self.count += 1
        element = Watermark(self.count) if self.random.random() < 0.25 else Record(self.count, self.count)
        entry = self.queue.try_put(element)
        assert (entry is None) == (len(self.inside) == self.capacity), "an element must be refused if and only if full"
        if entry is not None:
            self.inside.append(element)
            if isinstance(element, Record):
                self.running[self.count] = entry

    def complete(self) -> None:
        if self.running:
            number = self.random.choice(list(self.running))
            self.outputs[number] = [(number, i) for i in range(self.random.randint(0, 3))]
            self.running.pop(number).complete(self.outputs[number])

    def emit(self) -> None:
        expected, before = self.queue.has_completed_elements(), len(self.queue)
        emitted = _emit(self.queue)
        assert len(self.queue) == before - expected, "each emission must take exactly one input, if one may leave"
        if not expected:
            assert emitted == [], "something left a queue that has no completed elements"
            return
        [gone] = [element for element in self.inside if element not in self.queue.values()]
        ahead = self.inside[: self.inside.index(gone)]
        if isinstance(gone, Watermark):
            assert emitted == [gone], "a watermark was changed"
            assert ahead == [], f"{gone} overtook {ahead}"
        else:
            assert not [mark for mark in ahead if isinstance(mark, Watermark)], f"{gone} overtook a watermark"
            outputs = [Record(output, gone.timestamp) for output in self.outputs[gone.value]]
            assert emitted == outputs, f"{gone} has the outputs {outputs}, but {emitted} were emitted"
        self.inside.remove(gone)

    def check(self) -> None:
        assert len(self.queue) == len(self.inside), "the length is not the number of elements in the queue"
        assert self.queue.is_empty() == (not self.inside), "is_empty() and the length disagree"
        if self.inside and isinstance(self.inside[0], Watermark):
            assert self.queue.has_completed_elements(), "a watermark did not leave, and everything before it has left"
        values = self.queue.values()
        # Within a segment the order is free; across a watermark it is not.
        assert _segments(values) == _segments(self.inside), f"replaying {values} is not replaying {self.inside}"


def _segments(elements: list[Any]) -> list[set[Any]]:
    """Alternately the set of records between two watermarks, and a watermark."""
    segments: list[set[Any]] = [set()]
    for element in elements:
        if isinstance(element, Watermark):
            segments += [{element}, set()]
        else:
            segments[-1].add(element)
    return segments


def _put(queue: StreamElementQueue, element: Record[Any] | Watermark) -> Entry:
    entry = queue.try_put(element)
    assert entry is not None, f"{element} was refused while there was room"
    return entry


def _emit(queue: StreamElementQueue) -> list[Any]:
    emitted: list[Any] = []
    queue.emit_completed_element(emitted.append)
    return emitted


def _raises(expected: type[BaseException], action: Callable[[], object], otherwise: str) -> None:
    try:
        action()
    except expected:
        return
    raise AssertionError(otherwise)
