"""Priority-queue sets in memory: one order with an index per key group, and one for input that comes key by key.

Of equal elements a set keeps one. Elements of equal priority leave in the order in which they were added. Two elements
are equal if Python calls them equal and their keys are the same key (see `keys`): an element of key 1 and one of key
True are two elements.

`BatchPriorityQueueSet` holds the elements of one key at a time, so it has one key group and no snapshot, and hashes no
keys.

An entry is ``(priority, number, name, key group)``, and the entries are kept in order (`heap_queue`). The name is
the element itself if the element is a tuple and its key is an int or a text, because equal tuples then have the same
key; otherwise it is a `_Named`. So most entries hold nothing that the garbage collector has to follow. The index of a
key group finds an entry by its name.
Source: Flink's ``HeapPriorityQueueSet``, ``KeyGroupPartitionedPriorityQueue`` and
``BatchExecutionInternalPriorityQueueSet``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from operator import itemgetter
from typing import Any, TypeVar

from asyncio_operator.errors import StateError, describe
from asyncio_operator.state.heap_queue import PART, SLIM_EVERY, OrderedEntries, PartedDict
from asyncio_operator.state.key_groups import KeyGroupRange, check_group, check_key_groups, group_of, key_hash
from asyncio_operator.state.keys import Key, serialize_key
from asyncio_operator.state.priority_queue import PriorityQueueSet, check_function, check_priority

T = TypeVar("T")
_Entry = tuple[Any, int, Any, int]


class _Named(tuple[bytes, Any]):
    """The serialised key and the element: equal only if both are."""

    __slots__ = ()


def _element(name: Any) -> Any:
    return name if type(name) is not _Named else name[1]


class HeapPriorityQueueSet(PriorityQueueSet[T]):
    """One order of all elements, and per key group an index of its elements.

    Args:
        key: the priority of an element; read when it is added.
        key_of: the key of an element, which has to lie in the range.
        key_groups: the range.
        max_parallelism: the number of key groups there are.
        sequence: gives the numbers that order equal priorities, for sets that share them.

    Raises:
        ConfigurationError: the range and the maximum parallelism do not fit, or a function cannot be called.
    """

    __slots__ = (
        "_entries",
        "_first",
        "_groups",
        "_key",
        "_key_groups",
        "_key_of",
        "_last",
        "_max_parallelism",
        "_sequence",
        "_size",
    )

    def __init__(
        self,
        key: Callable[[T], Any],
        key_of: Callable[[T], Key],
        key_groups: KeyGroupRange,
        max_parallelism: int,
        *,
        sequence: Iterator[int] | None = None,
    ) -> None:
        check_key_groups(key_groups, max_parallelism)
        self._key = check_function("key", key)
        self._key_of = check_function("key_of", key_of)
        self._key_groups = key_groups
        self._first, self._last = key_groups.start, key_groups.end
        self._max_parallelism = max_parallelism
        self._entries = OrderedEntries()
        self._groups: dict[int, PartedDict[Any, _Entry]] = {}
        self._sequence = count() if sequence is None else sequence
        self._size = 0

    def add(self, element: T) -> bool:
        """O(log n). True if the element is the new head; False if an equal one is inside.

        Raises:
            StateError: the element's key is None, or outside the range, or its priority is NaN. Nothing is changed.
            TypeError: the priority cannot be compared with the others. Nothing is changed.
        """
        key = self._key_of(element)
        group = key_hash(key) % self._max_parallelism
        if not self._first <= group <= self._last:
            # It raises: the error of a key outside the range is made in one place.
            group_of(key, self._key_groups, self._max_parallelism)
        return self.add_to(group, key, element)

    def add_to(self, group: int, key: Key, element: T) -> bool:
        """As `add`, for an element whose key and key group are known."""
        priority = self._key(element)
        if type(priority) is not int:
            check_priority(priority, element)
        kind = type(key)
        plain = (kind is int or kind is str) and isinstance(element, tuple)
        name: Any = element if plain else _Named((serialize_key(key), element))
        members = self._groups.get(group)
        if members is None:
            members = self._groups[group] = PartedDict()
        part = members.parts[0] if len(members.parts) == 1 else members.part(name)
        entry = (priority, next(self._sequence), name, group)
        # One look-up finds an equal element and adds this one if there is none: this is the path of every timer.
        if part.setdefault(name, entry) is not entry:
            return False
        try:
            is_head = self._entries.add(entry)
        except BaseException:
            del part[name]
            raise
        if len(part) > PART:
            members.split()
        self._size += 1
        return is_head

    def poll(self) -> T | None:
        """O(log n)."""
        if not self._size:
            return None
        _, _, name, group = self._entries.take()
        members = self._groups[group]
        part = members.parts[0] if len(members.parts) == 1 else members.part(name)
        del part[name]
        if not len(part) % SLIM_EVERY:
            members.slim(part)
        self._size -= 1
        return name if type(name) is not _Named else name[1]  # type: ignore[no-any-return]

    def peek(self) -> T | None:
        """O(1)."""
        front = self._entries.front
        return _element(front[0][2]) if front else None

    def remove(self, element: T) -> bool:
        """O(log n); `element` may be an equal copy. True if the head has changed."""
        key = self._key_of(element)
        return self.remove_from(group_of(key, self._key_groups, self._max_parallelism), key, element)

    def remove_from(self, group: int, key: Key, element: T) -> bool:
        """As `remove`, for an element whose key and key group are known."""
        members = self._groups.get(group)
        if members is None:
            return False
        kind = type(key)
        plain = (kind is int or kind is str) and isinstance(element, tuple)
        name: Any = element if plain else _Named((serialize_key(key), element))
        part = members.parts[0] if len(members.parts) == 1 else members.part(name)
        entry = part.get(name)
        if entry is None:
            return False
        was_head = self._entries.remove(entry)
        del part[name]
        if not len(part) % SLIM_EVERY:
            members.slim(part)
        self._size -= 1
        return was_head

    def adjust(self, element: T) -> bool:
        """As of `HeapPriorityQueue`, also for an equal copy of an element that is inside."""
        key = self._key_of(element)
        group = group_of(key, self._key_groups, self._max_parallelism)
        members = self._groups.get(group)
        kind = type(key)
        plain = (kind is int or kind is str) and isinstance(element, tuple)
        name: Any = element if plain else _Named((serialize_key(key), element))
        old = None if members is None else members.part(name).get(name)
        if members is None or old is None:
            return False
        priority = self._key(element)
        check_priority(priority, element)
        head = self._entries.front[0]
        entry = (priority, next(self._sequence), old[2], group)
        # Added first: if that fails, the old entry is still there.
        self._entries.add(entry)
        self._entries.remove(old)
        members.part(name)[name] = entry
        return old is head or self._entries.front[0] is not head

    def head(self) -> tuple[Any, int]:
        """Priority and number of the head, by which the set is ranked among others. The set must not be empty."""
        first = self._entries.front[0]
        return first[0], first[1]

    def clear(self) -> None:
        self._entries.clear()
        self._groups.clear()
        self._size = 0

    def subset_for_key_group(self, group: int) -> list[T]:
        """The elements of a key group, in the order they were added."""
        check_group(group, self._key_groups)
        members = self._groups.get(group)
        entries = () if members is None else sorted(members.values(), key=itemgetter(1))
        return [_element(entry[2]) for entry in entries]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        return iter([_element(entry[2]) for entry in self._entries])


class KeyGroupPartitionedPriorityQueue(HeapPriorityQueueSet[T]):
    """`HeapPriorityQueueSet` under the name of the class of Flink that has an index per key group too."""

    __slots__ = ()


class BatchPriorityQueueSet(HeapPriorityQueueSet[T]):
    """The elements of one key at a time, in one key group. Another key may follow when they are gone.

    Args:
        key: the priority of an element; read when it is added.
        key_of: the key of an element; None is its attribute ``key``. Elements without one are then all of one key.
    """

    __slots__ = ("_present",)

    def __init__(self, key: Callable[[T], Any], key_of: Callable[[T], Key] | None = None) -> None:
        key_of = (lambda element: getattr(element, "key", "")) if key_of is None else key_of
        super().__init__(key, key_of, KeyGroupRange(0, 0), 1)
        self._present = b""

    def add(self, element: T) -> bool:
        """As of `HeapPriorityQueueSet`; StateError too if elements of another key are inside."""
        key = self._key_of(element)
        name = serialize_key(key)
        if self._size and name != self._present:
            inside = self._key_of(next(iter(self)))
            raise StateError(
                f"an element of key {describe(key)} cannot be added while the set holds elements of key "
                f"{describe(inside)}: a batch set holds one key at a time, so its input must be sorted by key"
            )
        self._present = name
        return self.add_to(0, key, element)

    def remove(self, element: T) -> bool:
        return self.remove_from(0, self._key_of(element), element)
