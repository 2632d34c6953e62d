"""A priority queue in memory: a binary heap with removal anywhere.

The heap holds entries ``[priority, sequence, element]``. C code compares them, equal priorities leave in the order in
which they were added, and elements are never compared. An index by the identity of the element finds its entry, so
`remove` can mark the entry and drop the element at once. A marked entry leaves the heap when it reaches the head, or
when more than half of the heap is marked and the heap is rebuilt. So removal takes O(log n) amortised, memory is
proportional to the number of elements, and the head of the heap is never a marked entry.

A heap that keeps the place of each element removes in O(log n) without the word "amortised", and takes three times as
long: ``heapq`` is C, and sifting in Python is not. The priority is read when an element is added and never again: an
element may change afterwards, as a lane does that is registered again with a new deadline.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from sys import getsizeof
from typing import Any, TypeVar

from asyncio_operator.state.priority_queue import PriorityQueue, check_function, check_priority

T = TypeVar("T")
E = TypeVar("E", bound=Any)
K = TypeVar("K")
V = TypeVar("V")

REMOVED: Any = object()
"""Replaces an element that was removed, in its heap entry."""

SLIM_EVERY = 128
"""Removals after which the size of the index is checked: at most the memory of this number of elements is kept."""

SPARE = 16
"""Marked entries that a heap of any size may have, so that small heaps are not rebuilt all the time."""


class HeapPriorityQueue(PriorityQueue[T]):
    """A heap that allows equal elements. `remove` takes out the very object that it is given.

    Args:
        key: the priority of an element; read once, when it is added.

    Raises:
        ConfigurationError: `key` cannot be called.
    """

    __slots__ = ("_entries", "_heap", "_key", "_sequence", "_size")

    def __init__(self, key: Callable[[T], Any]) -> None:
        self._key = check_function("key", key)
        self._heap: list[list[Any]] = []
        # By identity: the entry of the object, or its entries by sequence number if it was added more than once.
        self._entries: dict[int, list[Any] | OrderedDict[int, list[Any]]] = {}
        self._sequence = 0
        self._size = 0

    def add(self, element: T) -> bool:
        """O(log n). True if the element is the new head.

        Raises:
            StateError: the priority is NaN, or a tuple that holds it. Nothing is changed.
            TypeError: the priority cannot be compared with the others. Nothing is changed.
        """
        priority = self._key(element)
        if type(priority) is not int:
            check_priority(priority, element)
        # The sequence number is unique, so a comparison of two entries never reaches the element.
        entry = [priority, self._sequence, element]
        try:
            heappush(self._heap, entry)
        except BaseException:
            # The entry was appended before the first comparison, and is in the list when that fails.
            withdraw(self._heap, entry)
            raise
        self._sequence += 1
        self._size += 1
        held = self._entries.setdefault(id(element), entry)
        if held is not entry:
            if isinstance(held, list):
                # Not a dict: after deletions at its front, finding the oldest entry of a dict passes all the gaps.
                held = self._entries[id(element)] = OrderedDict({held[1]: held})
            held[entry[1]] = entry
        return self._heap[0] is entry

    def poll(self) -> T | None:
        """O(log n) amortised."""
        if not self._heap:
            return None
        entry = heappop(self._heap)
        element: T = entry[2]
        self._forget(entry)
        self._prune()
        return element

    def peek(self) -> T | None:
        """O(1)."""
        return self._heap[0][2] if self._heap else None

    def remove(self, element: T) -> bool:
        """O(log n) amortised. True if the head has changed; of an object added more than once, the oldest goes."""
        held = self._entries.get(id(element))
        if held is None:
            return False
        entry = held if isinstance(held, list) else next(iter(held.values()))
        self._forget(entry)
        # Law P4: the entry may stay in the heap for long, and must not keep the element.
        entry[2] = REMOVED
        was_head = self._heap[0] is entry
        self._prune()
        return was_head

    def clear(self) -> None:
        """Takes every element out."""
        self._heap.clear()
        self._entries.clear()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        return iter([entry[2] for entry in self._heap if entry[2] is not REMOVED])

    def _forget(self, entry: list[Any]) -> None:
        """Takes an entry out of the index. Whether it is still in the heap does not matter."""
        self._size -= 1
        held = self._entries[id(entry[2])]
        if isinstance(held, dict) and len(held) > 1:
            del held[entry[1]]
        else:
            del self._entries[id(entry[2])]
            if not self._size % SLIM_EVERY:
                self._entries = slimmed(self._entries)

    def _prune(self) -> None:
        prune(self._heap, self._size, _is_alive)

    def _check(self) -> None:
        """Every invariant of the structure, for tests."""
        alive = [entry for entry in self._heap if entry[2] is not REMOVED]
        assert len(alive) == self._size
        assert not self._heap or self._heap[0][2] is not REMOVED
        assert len(self._heap) <= 2 * self._size + SPARE
        held = [e for h in self._entries.values() for e in ([h] if isinstance(h, list) else h.values())]
        assert sorted(map(id, held)) == sorted(map(id, alive))
        assert all(self._heap[(i - 1) // 2] < self._heap[i] for i in range(1, len(self._heap)))


def _is_alive(entry: list[Any]) -> bool:
    return entry[2] is not REMOVED


def slimmed(mapping: dict[K, V]) -> dict[K, V]:
    """The mapping, copied if most of its memory is that of deleted entries: a dict never shrinks by itself."""
    return dict(mapping) if getsizeof(mapping) > 256 * (len(mapping) + SPARE) else mapping


def withdraw(heap: list[E], entry: E) -> None:
    """Takes an entry out again whose priority could not be compared."""
    # The push stopped half-way, so the entry may be anywhere, and the order above it is lost.
    heap[:] = [other for other in heap if other is not entry]
    heapify(heap)


def prune(heap: list[E], size: int, is_alive: Callable[[E], bool]) -> None:
    """Restores the two invariants of a heap with `size` living entries: its head is alive, and half of it at least."""
    while heap and not is_alive(heap[0]):
        heappop(heap)
    # The removals that made the dead half pay for the rebuild, so each pays a constant.
    if len(heap) > 2 * size + SPARE:
        heap[:] = filter(is_alive, heap)
        heapify(heap)
