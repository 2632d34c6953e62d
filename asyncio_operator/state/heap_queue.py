"""A priority queue in memory, with removal anywhere, and what it and the sets of `heap_set` are built on.

An entry is a tuple ``(priority, number, ...)``. The number is unique, so a comparison never reaches what follows it,
and entries of equal priority are in the order of their numbers: elements are never compared.

The smallest entries are the front, a sorted list. All others are in blocks: each has the entries from its bound up to
the next block's bound, in a dict by their numbers, so in any order, but for equal priorities: the one that was added
first comes first, because its number is smaller. Adding finds the block by a binary search among the bounds, which are
few and stay in the processor's cache. Removing finds it in the same way. A block is sorted when it becomes the front,
and when it is full and becomes two. So every call takes O(log n) comparisons, or sorts one block: no removed entry is
kept, and nothing has to be rebuilt.

Source: the front and the unsorted ranges behind it are those of the ladder queue (Tang, Goh and Thng, 2005). A binary
heap from ``heapq`` cannot say where an entry is, so there a removal can only mark it, and one of a million removals
waits until all marks are cleared. A heap in plain Python that knows its places takes three times as long.

An index finds the entry of an element. A dict grows and shrinks by moving all that it holds: 30 ms for a million
entries, and another 5 to free them. In a `PartedDict` the entries are in parts of about `PART`, by their hash (linear
hashing: Litwin, 1980). One part is split when parts become full, and one is joined with another when they become empty,
so a change moves at most a few parts' entries. Its users work on the dict that `part` returns. They call `split` when
it has become longer than `PART`, and `slim` after every `SLIM_EVERY`th removal.

The priority is read when an element is added, and again by `adjust`: between the two an element may change.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from operator import itemgetter
from sys import getsizeof
from typing import Any, Generic, TypeVar

from asyncio_operator.state.priority_queue import PriorityQueue, check_function, check_priority

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

Entry = tuple[Any, ...]

_priority = itemgetter(0)
"""A block is sorted by this alone: it keeps the order of equal ones, and takes a third of the time."""

BLOCK = 512  # Entries of a block at most. To sort so few takes less than 0.1 ms, and a million entries have few bounds.


class OrderedEntries:
    """Entries in order. It does not know what is in them, and has no index."""

    __slots__ = ("_blocks", "_bounds", "_priorities", "front")

    def __init__(self) -> None:
        self.front: list[Entry] = []
        # The entries from ``_bounds[i]`` on, and below ``_bounds[i + 1]``. The front is empty only if there are none.
        self._bounds: list[tuple[Any, int]] = []
        # The priorities of the bounds: an entry that is added comes last among its equals, and is compared with these
        # alone.
        self._priorities: list[Any] = []
        self._blocks: list[dict[int, Entry]] = []

    def add(self, entry: Entry) -> bool:
        """Add an entry; True if it is the first now. TypeError, and no change, if its priority cannot be compared."""
        place = bisect_right(self._priorities, entry[0])
        if place:
            block = self._blocks[place - 1]
            if len(block) < BLOCK:
                block[entry[1]] = entry
            else:
                entries = sorted([*block.values(), entry], key=_priority)
                self._blocks[place - 1] = {entry[1]: entry for entry in entries[: len(entries) // 2]}
                self._insert(place, entries[len(entries) // 2 :])
            return False
        front = self.front
        insort(front, entry)
        is_first = front[0] is entry
        if len(front) > BLOCK:
            self._insert(0, front[BLOCK // 2 :])
            del front[BLOCK // 2 :]
        return is_first

    def remove(self, entry: Entry) -> bool:
        """Remove an entry, which must be inside; True if it was the first."""
        place = bisect_right(self._bounds, entry)
        if place:
            block = self._blocks[place - 1]
            del block[entry[1]]
            if len(block) <= BLOCK // 8:
                before = self._blocks[place - 2] if place > 1 else {}
                joined = place > 1 and len(before) + len(block) <= BLOCK // 2
                if joined:
                    before |= block
                if joined or not block:
                    del self._blocks[place - 1], self._bounds[place - 1], self._priorities[place - 1]
            return False
        position = bisect_left(self.front, entry)
        if len(self.front) > 1:
            del self.front[position]
        else:
            self._advance()
        return not position

    def take(self) -> Entry:
        """Remove the first entry and return it. There must be one."""
        if len(self.front) > 1:
            return self.front.pop(0)
        [entry] = self.front
        self._advance()
        return entry

    def clear(self) -> None:
        """Remove all."""
        self.front, self._bounds, self._priorities, self._blocks = [], [], [], []

    def __iter__(self) -> Iterator[Entry]:
        yield from self.front
        for block in self._blocks:
            yield from block.values()

    def _advance(self) -> None:
        """Make the first block the front. TypeError, and no change, if two of its priorities cannot be compared."""
        self.front = sorted(self._blocks[0].values(), key=_priority) if self._blocks else []
        del self._blocks[:1], self._bounds[:1], self._priorities[:1]

    def _insert(self, place: int, entries: list[Entry]) -> None:
        self._bounds.insert(place, entries[0][:2])
        self._priorities.insert(place, entries[0][0])
        self._blocks.insert(place, {entry[1]: entry for entry in entries})


PART = 4096  # Entries of a part, from which on parts are split: moving one takes a tenth of a millisecond.

SLIM_EVERY = 128
"""Removals after which a part's memory is checked: at most the memory of this number of entries is kept."""


class PartedDict(Generic[K, V]):
    """The parts. Most have one: then it is as fast as a dict."""

    __slots__ = ("_high", "_low", "parts")

    def __init__(self) -> None:
        self.parts: list[dict[K, V]] = [{}]
        self._low = self._high = 0

    def part(self, key: K) -> dict[K, V]:
        """The part that holds the key, if any does, and has to get it otherwise."""
        parts = self.parts
        if len(parts) == 1:
            return parts[0]
        place = _spread(key) & self._high
        return parts[place if place < len(parts) else place & self._low]

    def split(self) -> None:
        """Split one part: any of them, so that each is split in its turn."""
        place = len(self.parts)
        self._high = (1 << place.bit_length()) - 1
        self._low = self._high >> 1
        kept: dict[K, V] = {}
        moved: dict[K, V] = {}
        for key, value in self.parts[place & self._low].items():
            (moved if _spread(key) & self._high == place else kept)[key] = value
        self.parts[place & self._low] = kept
        self.parts.append(moved)

    def slim(self, part: dict[K, V]) -> None:
        """Give back the memory that a part does not need, and join two parts if it is nearly empty."""
        place = next(place for place, other in enumerate(self.parts) if other is part)
        # Copied if most of its memory is that of deleted entries.
        self.parts[place] = dict(part) if getsizeof(part) > 256 * (len(part) + 16) else part
        if len(part) < PART // 8 and len(self.parts) > 1:
            last = self.parts.pop()
            place = len(self.parts) & self._low
            self.parts[place].update(last)
            self._high = (1 << (len(self.parts) - 1).bit_length()) - 1
            self._low = self._high >> 1

    def values(self) -> Iterator[V]:
        """The values, in any order."""
        return (value for part in self.parts for value in part.values())


def _spread(key: object) -> int:
    # The hash of an int is the int, and those of addresses end alike.
    bits = hash(key)
    return bits ^ bits >> 7


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
        self._index: PartedDict[int, Entry | OrderedDict[int, Entry]] = PartedDict()
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
        was_head = self._entries.remove(entry)
        self._forget(entry)
        return was_head

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
        self._entries.clear()
        self._index = PartedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        return iter([entry[2] for entry in self._entries])

    def _oldest(self, element: T) -> Entry | None:
        held = self._index.part(id(element)).get(id(element))
        return next(iter(held.values())) if isinstance(held, OrderedDict) else held

    def _forget(self, entry: Entry) -> None:
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
