"""A dict in parts, so that no single change of a large one takes long.

A dict grows and shrinks by moving all that it holds: 30 ms for a million entries, and another 5 to free them. Here the
entries are in parts of about `PART`, by their hash (linear hashing: Litwin, 1980). One part is split when parts become
full, and one is joined with another when they become empty, so a change moves at most a few parts' entries.

Its users work on the dict that `part` returns. They call `split` when it has become longer than `PART`, and `slim`
after every `SLIM_EVERY`th removal.
"""

from __future__ import annotations

from collections.abc import Iterator
from sys import getsizeof
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

PART = 4096
"""Entries of a part, from which on parts are split: moving one takes a tenth of a millisecond."""

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
        self._resized(place + 1)
        kept: dict[K, V] = {}
        moved: dict[K, V] = {}
        for key, value in self.parts[place & self._low].items():
            (moved if _spread(key) & self._high == place else kept)[key] = value
        self.parts[place & self._low] = kept
        self.parts.append(moved)

    def slim(self, part: dict[K, V]) -> None:
        """Give back the memory that a part does not need, and join two parts if it is nearly empty."""
        place = next(place for place, other in enumerate(self.parts) if other is part)
        self.parts[place] = _slimmed(part)
        if len(part) < PART // 8 and len(self.parts) > 1:
            last = self.parts.pop()
            place = len(self.parts) & self._low
            self.parts[place].update(last)
            self._resized(len(self.parts))

    def values(self) -> Iterator[V]:
        """The values, in any order."""
        return (value for part in self.parts for value in part.values())

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def _resized(self, count: int) -> None:
        self._high = (1 << (count - 1).bit_length()) - 1
        self._low = self._high >> 1


def _spread(key: object) -> int:
    # The hash of an int is the int, and those of addresses end alike.
    bits = hash(key)
    return bits ^ bits >> 7


def _slimmed(part: dict[K, V]) -> dict[K, V]:
    """The part, copied if most of its memory is that of deleted entries."""
    return dict(part) if getsizeof(part) > 256 * (len(part) + 16) else part
