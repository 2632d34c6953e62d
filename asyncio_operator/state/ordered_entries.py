"""Entries in the order in which they leave: what the priority queues in memory are built on.

An entry is a tuple ``(priority, number, ...)``. The number is unique, so a comparison never reaches what follows it,
and entries of equal priority are in the order of their numbers.

The smallest entries are the front, a sorted list. All others are in blocks: each has the entries from its bound up to
the next block's bound, in a dict by their numbers, so in any order, but for equal priorities: the one that was added
first comes first, because its number is smaller. Adding finds the block by a binary search among the bounds, which are
few and stay in the processor's cache. Removing finds it in the same way. A block is sorted when it becomes the front,
and when it is full and becomes two. So every call takes O(log n) comparisons, or sorts one block: no removed entry is
kept, and nothing has to be rebuilt.

Source: the front and the unsorted ranges behind it are those of the ladder queue (Tang, Goh and Thng, 2005). A binary
heap from ``heapq`` cannot say where an entry is, so there a removal can only mark it, and one of a million removals
waits until all marks are cleared. A heap in plain Python that knows its places takes three times as long.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

Entry = tuple[Any, ...]

_priority = itemgetter(0)
"""A block is sorted by this alone: it keeps the order of equal ones, and takes a third of the time."""

BLOCK = 512
"""Entries of a block at most. To sort so few takes less than 0.1 ms, and a million entries have few bounds."""


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
        """Add an entry; True if it is the first now.

        Raises:
            TypeError: its priority cannot be compared with another. Nothing is changed.
        """
        place = bisect_right(self._priorities, entry[0])
        if place:
            block = self._blocks[place - 1]
            block[entry[1]] = entry
            if len(block) > BLOCK:
                self._split(place - 1)
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
                self._join(place - 1)
            return False
        position = bisect_left(self.front, entry)
        del self.front[position]
        if not self.front:
            self._advance()
        return not position

    def take(self) -> Entry:
        """Remove the first entry and return it. There must be one."""
        entry = self.front.pop(0)
        if not self.front:
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
        """Make the first block the front."""
        if self._blocks:
            # Sorted before anything is changed: the comparison is that of the user's priorities.
            self.front = sorted(self._blocks[0].values(), key=_priority)
            del self._blocks[0], self._bounds[0], self._priorities[0]

    def _split(self, place: int) -> None:
        entries = sorted(self._blocks[place].values(), key=_priority)
        half = len(entries) // 2
        self._blocks[place] = {entry[1]: entry for entry in entries[:half]}
        self._insert(place + 1, entries[half:])

    def _insert(self, place: int, entries: list[Entry]) -> None:
        self._bounds.insert(place, entries[0][:2])
        self._priorities.insert(place, entries[0][0])
        self._blocks.insert(place, {entry[1]: entry for entry in entries})

    def _join(self, place: int) -> None:
        """Join a block that has few entries with the one before it, if both are short; drop it if it is empty."""
        before, block = self._blocks[place - 1] if place else {}, self._blocks[place]
        if place and len(before) + len(block) <= BLOCK // 2:
            before |= block
        elif block:
            return
        del self._blocks[place], self._bounds[place], self._priorities[place]

    def _check(self) -> None:
        """Every invariant of the structure, for tests."""
        assert self.front or not self._blocks
        assert self.front == sorted(self.front)
        assert len(self.front) <= BLOCK
        assert self._bounds == sorted(self._bounds)
        assert self._priorities == [priority for priority, _ in self._bounds]
        assert all(0 < len(block) <= BLOCK for block in self._blocks)
        for place, block in enumerate(self._blocks):
            assert all(number == entry[1] for number, entry in block.items())
            assert all(bisect_right(self._bounds, entry) == place + 1 for entry in block.values())
        assert all(not bisect_right(self._bounds, entry) for entry in self.front)
