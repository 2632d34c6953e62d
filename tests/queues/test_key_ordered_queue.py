"""Q7: the key-ordered queue, by examples and against a model. What it shares with the others is in `test_queues`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis.stateful import Bundle, multiple, rule

from asyncio_operator import FunctionError, Record, Watermark
from asyncio_operator.queues import KeyOrderedStreamElementQueue
from asyncio_operator.queues.key_ordered import KeyedEntry
from tests.queues.test_queues import LONG, QueueMachine, emit, key_of, key_ordered, put


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
