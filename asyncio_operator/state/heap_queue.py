"""A priority queue in memory, with removal anywhere.

Entries ``(priority, number, element)`` are kept in order (`ordered_entries`). Equal priorities leave in the order in
which they were added, and elements are never compared. An index by the identity of the element finds its entry, so
removal takes O(log n), every time, and nothing of a removed element is kept.

The priority is read when an element is added, and again by `adjust`: between the two an element may change, as a lane
does that is registered again with a new deadline.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from asyncio_operator.state.ordered_entries import PART, SLIM_EVERY, OrderedEntries, PartedDict
from asyncio_operator.state.priority_queue import PriorityQueue, check_function, check_priority

T = TypeVar("T")
_Entry = tuple[Any, int, Any]


class HeapPriorityQueue(PriorityQueue[T]):
    """A queue that allows equal elements. `remove` takes out the very object that it is given.

    Args:
        key: the priority of an element; read once, when it is added.

    Raises:
        ConfigurationError: `key` cannot be called.
    """

    __slots__ = ("_entries", "_index", "_key", "_sequence", "_size")

    def __init__(self, key: Callable[[T], Any]) -> None:
        self._key = check_function("key", key)
        self._entries = OrderedEntries()
        # By identity: the entry of the object, or its entries by number if it was added more than once.
        self._index: PartedDict[int, _Entry | OrderedDict[int, _Entry]] = PartedDict()
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
        entry = (priority, self._sequence, element)
        is_head = self._entries.add(entry)
        self._sequence += 1
        self._size += 1
        name = id(element)
        part = self._index.part(name)
        held = part.setdefault(name, entry)
        if held is entry:
            if len(part) > PART:
                self._index.split()
        elif isinstance(held, OrderedDict):
            held[entry[1]] = entry
        else:
            # Not a dict: after deletions at its front, finding the oldest entry of a dict passes all the gaps.
            part[name] = OrderedDict({held[1]: held, entry[1]: entry})
        return is_head

    def poll(self) -> T | None:
        """O(log n)."""
        if not self._size:
            return None
        entry = self._entries.take()
        self._forget(entry)
        element: T = entry[2]
        return element

    def peek(self) -> T | None:
        """O(1)."""
        front = self._entries.front
        return front[0][2] if front else None

    def remove(self, element: T) -> bool:
        """O(log n). True if the head has changed; of an object added more than once, the oldest goes."""
        entry = self._oldest(element)
        if entry is None:
            return False
        self._forget(entry)
        return self._entries.remove(entry)

    def adjust(self, element: T) -> bool:
        """Give an element that is inside the place of its present priority. O(log n).

        Among elements of the same priority it comes last, as if it had been added now. False if it is absent, or the
        head has not changed.

        Raises:
            StateError, TypeError: as of `add`. Nothing is changed.
        """
        entry = self._oldest(element)
        if entry is None:
            return False
        head = self.peek()
        # Added first: if that fails, the old entry is still there.
        self.add(element)
        self._forget(entry)
        self._entries.remove(entry)
        return entry[2] is head or self.peek() is not head

    def clear(self) -> None:
        """Takes every element out."""
        self._entries.clear()
        self._index = PartedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        return iter([entry[2] for entry in self._entries])

    def _oldest(self, element: T) -> _Entry | None:
        held = self._index.part(id(element)).get(id(element))
        return next(iter(held.values())) if isinstance(held, OrderedDict) else held

    def _forget(self, entry: _Entry) -> None:
        """Takes an entry out of the index."""
        self._size -= 1
        name = id(entry[2])
        part = self._index.part(name)
        held = part[name]
        if isinstance(held, OrderedDict) and len(held) > 1:
            del held[entry[1]]
        else:
            del part[name]
            if not len(part) % SLIM_EVERY:
                self._index.slim(part)

    def _check(self) -> None:
        """Every invariant of the structure, for tests."""
        self._entries._check()
        inside = list(self._entries)
        assert len(inside) == self._size
        held = [e for h in self._index.values() for e in (h.values() if isinstance(h, OrderedDict) else [h])]
        assert sorted(map(id, held)) == sorted(map(id, inside))
