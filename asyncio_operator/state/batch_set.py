"""A priority-queue set for input that is sorted by key: it holds the elements of one key at a time.

With one key there are no key groups to tell apart, no snapshot to take and nothing to hash. Source: Flink's
``BatchExecutionInternalPriorityQueueSet``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from asyncio_operator.errors import StateError, describe
from asyncio_operator.state.heap_set import HeapPriorityQueueSet
from asyncio_operator.state.key_groups import KeyGroupRange
from asyncio_operator.state.keys import Key, serialize_key
from asyncio_operator.state.priority_queue import PriorityQueue, check_function

T = TypeVar("T")


def key_of_element(element: Any) -> Key:
    """An element's attribute ``key``, as of a `Timer`; elements without one are all of one key."""
    return getattr(element, "key", "")


class BatchPriorityQueueSet(PriorityQueue[T]):
    """The elements of one key; when they are gone another key may come.

    Args:
        key: the priority of an element; read when it is added.
        key_of: the key of an element; None is `key_of_element`.
    """

    __slots__ = ("_elements", "_key_of", "_present")

    def __init__(self, key: Callable[[T], Any], key_of: Callable[[T], Key] | None = None) -> None:
        self._key_of = key_of_element if key_of is None else check_function("key_of", key_of)
        self._elements: HeapPriorityQueueSet[T] = HeapPriorityQueueSet(key, self._key_of, KeyGroupRange(0, 0), 1)
        self._present = b""

    def add(self, element: T) -> bool:
        """O(log n). True if the element is the new head; False if an equal one is inside.

        Raises:
            StateError: elements of another key are inside, or the key is none.
        """
        key = self._key_of(element)
        name = serialize_key(key)
        if len(self._elements) and name != self._present:
            inside = self._key_of(next(iter(self._elements)))
            raise StateError(
                f"an element of key {describe(key)} while those of key {describe(inside)} are inside: "
                "a batch set holds one key at a time, so its input has to be sorted by key"
            )
        self._present = name
        return self._elements.add_to(0, key, element)

    def poll(self) -> T | None:
        """O(log n) amortised."""
        return self._elements.poll()

    def peek(self) -> T | None:
        """O(1)."""
        return self._elements.peek()

    def remove(self, element: T) -> bool:
        """O(log n) amortised; an equal copy will do. True if the head has changed."""
        return self._elements.remove_from(0, self._key_of(element), element)

    def clear(self) -> None:
        """Takes every element out."""
        self._elements.clear()

    def __len__(self) -> int:
        return len(self._elements)

    def __iter__(self) -> Iterator[T]:
        return iter(self._elements)

    def _check(self) -> None:
        """Every invariant of the structure, for tests."""
        self._elements._check()
        assert all(serialize_key(self._key_of(element)) == self._present for element in self._elements)
