"""Answers in columns, by key: what a task remembers of them (law L12). Keys and answers stay in Arrow.

They are held in blocks, as they came. A key has a place, a number to which its hash leads (`PlaceTable`). Arrays say
for each place how long its answer is used, and in which order they came. Every hit is compared with the key itself,
because two keys may have one hash: the later one is kept. No step has a Python function for each key.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncio_operator.arrow.column_answers import ColumnAnswers, Piece, joined

if TYPE_CHECKING:
    from asyncio_operator.arrow.key_arrays import Ints
    from asyncio_operator.arrow.key_index import ArrowKeys, Mask, Words

LEAST = 1_000
"""Places that are free of keys, up to which they are left: fewer are not worth the copy of all others."""


class PlaceTable:
    """The places of keys, by their hashes. A key is in the slot of its hash, or in the next free one behind it."""

    def __init__(self) -> None:
        self._hashes = np.empty(0, np.uint64)
        self._slots = np.full(1, -1, np.int32)
        self._count = 0

    def find(self, hashes: Words) -> Ints:
        """The place of a key with each hash, or -1."""
        found = np.full(len(hashes), -1)
        left, slots, last = np.arange(len(hashes)), self._slots, len(self._slots) - 1
        at = (hashes & np.uint64(last)).view(np.int64)
        while len(left):
            there = slots[at]
            taken = there >= 0
            hits = taken & (self._hashes[there] == hashes)
            found[left[hits]] = there[hits]
            on = taken & ~hits
            left, hashes, at = left[on], hashes[on], (at[on] + 1) & last
        return found

    def add(self, hashes: Words, live: Mask) -> Ints:
        """The next places are those of keys with these hashes. Returns the places of earlier keys with the same ones.

        Args:
            live: whether each place has a key.
        """
        first, self._count = self._count, self._count + len(hashes)
        self._hashes = grown(self._hashes, self._count)
        self._hashes[first : self._count] = hashes
        if 2 * self._count > len(self._slots):
            self._slots = np.full(1 << (4 * self._count).bit_length(), -1, np.int32)
            self._enter(np.flatnonzero(live[:first]))
        return self._enter(np.arange(first, self._count))

    def _enter(self, places: Ints) -> Ints:
        """Returns the places that had their slots."""
        slots, last, hashes = self._slots, len(self._slots) - 1, self._hashes[places]
        at = (hashes & np.uint64(last)).view(np.int64)
        replaced = places[:0]
        while len(places):
            there = slots[at]
            same = (there >= 0) & (self._hashes[there] == hashes)
            fits = same | (there < 0)
            slots[at[fits]] = places[fits]
            # Of several that fit into one slot, one has it now. The others look at it again: they may have its hash.
            left = slots[at] != places
            if same.any():
                replaced = np.concatenate([replaced, there[same & ~left]])
            places, hashes, at = places[left], hashes[left], np.where(fits, at, (at + 1) & last)[left]
        return replaced


def grown(array: Any, size: int) -> Any:
    """The array, or a copy with room for more."""
    if size <= len(array):
        return array
    larger = np.empty(max(size, 2 * len(array)), array.dtype)
    larger[: len(array)] = array
    return larger


class Block:
    """Keys that were answered at about the same time, and their answers.

    Attributes:
        first: the place of its first key.
        begun: when its first answer came.
        until: when the last one is no more used.
    """

    def __init__(self, first: int, begun: float) -> None:
        self.first = first
        self.begun, self.until = begun, -inf
        self.count = self.bytes = 0
        self._keys: list[ArrowKeys] = []
        self._answers: list[ColumnAnswers] = []

    def add(self, keys: ArrowKeys, answers: ColumnAnswers, until: float) -> int:
        """Returns the bytes that they take."""
        self._keys.append(keys)
        self._answers.append(answers)
        size = int(keys.array.nbytes + answers.table.nbytes)
        self.count += len(keys)
        self.bytes += size
        self.until = max(self.until, until)
        return size

    def whole(self) -> tuple[ArrowKeys, ColumnAnswers]:
        if len(self._keys) > 1:
            self._keys = [self._keys[0].joined(self._keys[1:])]
            ends = np.cumsum([len(one) for one in self._answers])
            pieces = [(slice(end - len(one), end), one) for end, one in zip(ends.tolist(), self._answers, strict=True)]
            found = joined(pieces, self.count)
            # In one piece: Arrow copies a column in chunks as a whole each time that rows of it are taken.
            self._answers = [ColumnAnswers(found.table.combine_chunks(), found.starts, found.counts)]
        return self._keys[0], self._answers[0]


class ColumnMemory:
    """The answers of keys, in columns.

    Args:
        now: returns the time.
        life: how long an answer is used, in the unit of the time.
        most_keys: the keys that are kept. When there are more, those go that came first.
        most_bytes: bytes of keys and answers above which the oldest block goes.
        block: the keys from which a block takes no more.
        span: the time that a block may span.
    """

    def __init__(
        self, now: Callable[[], float], life: float, most_keys: int, most_bytes: float, block: int, span: float
    ) -> None:
        self._now = now
        self._life = life
        self._most_keys = most_keys
        self._most_bytes = most_bytes
        self._block = block
        self._span = span
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._blocks: list[Block] = []
        self._bytes = self._tick = 0
        self._number(np.empty(0), np.empty(0, np.int64))

    def _number(self, until: Any, used: Ints) -> None:
        """Number the places anew: each has a key, which is not in the table yet."""
        # Of each place: whether it has a key, until when its answer is used, and its number in the order of use.
        self._live, self._until, self._used = np.ones(len(used), bool), until, used
        self._end = self.count = len(used)
        self._table = PlaceTable()
        # Keys whose hashes were not needed yet.
        self._unhashed: list[ArrowKeys] = []
        # Places in the order of their use, at the time of this number.
        self._queue, self._queued = used[:0], 0

    def recall(self, keys: ArrowKeys) -> list[Piece]:
        """The positions of the keys whose answers are here, and these answers."""
        now = self._now()
        while self._blocks and self._blocks[0].until <= now:
            self._forget_block()
        if not self.count:
            return []
        for some in self._unhashed:
            self._forget(self._table.add(some.hashes, self._live))
        self._unhashed.clear()
        places = self._table.find(keys.hashes)
        hits = np.flatnonzero(places >= 0)
        hits = hits[self._live[places[hits]] & (self._until[places[hits]] > now)]
        of_block = np.searchsorted([block.first for block in self._blocks], places[hits], side="right") - 1
        order = np.argsort(of_block, kind="stable")
        found: list[Piece] = []
        for group in np.split(order, np.flatnonzero(np.diff(of_block[order])) + 1) if len(order) else ():
            block, positions = self._blocks[of_block[group[0]]], hits[group]
            inside = places[positions] - block.first
            known, answers = block.whole()
            same = keys.same(positions, known, inside)
            found.append((positions[same], answers.at(inside[same]).compact()))
        return found

    def learn(self, keys: ArrowKeys, answers: ColumnAnswers) -> None:
        """Keep the answers of keys that have just come."""
        now, block = self._now(), self._blocks[-1] if self._blocks else None
        first, self._end = self._end, self._end + len(keys)
        self._live = grown(self._live, self._end)
        self._until = grown(self._until, self._end)
        self._used = grown(self._used, self._end)
        self._live[first : self._end], self._until[first : self._end] = True, now + self._life
        self._use(np.arange(first, self._end))
        # Few blocks: each costs a batch one step for every column.
        is_full = block is None or block.count >= self._block or block.bytes * 4 >= self._most_bytes
        if block is None or is_full or now - block.begun > self._span:
            self._blocks.append(block := Block(first, now))
        keys = keys.copied()
        self._bytes += block.add(keys, answers, now + self._life)
        self._unhashed.append(keys)
        self.count += len(keys)
        while self._bytes > self._most_bytes:
            self._forget_block()
        self._shrink()

    def _use(self, places: Ints) -> None:
        self._used[places] = np.arange(self._tick, self._tick + len(places))
        self._tick += len(places)

    def _shrink(self) -> None:
        """Forget the keys above the limit that were used least recently."""
        while (over := self.count - self._most_keys) > 0:
            if not len(self._queue):
                live = np.flatnonzero(self._live[: self._end])
                self._queue, self._queued = live[np.argsort(self._used[live])], self._tick
            some, self._queue = self._queue[:over], self._queue[over:]
            # Others were used since then.
            self._forget(some[self._used[some] < self._queued])
        if self._end - self.count > max(self.count, LEAST):
            self._pack()

    def _forget_block(self) -> None:
        block = self._blocks.pop(0)
        self._bytes -= block.bytes
        self._forget(np.arange(block.first, block.first + block.count))

    def _forget(self, places: Ints) -> None:
        places = places[self._live[places]]
        self._live[places] = False
        self.count -= len(places)

    def _pack(self) -> None:
        """Copy what is left into fewer blocks."""
        live, blocks = self._live[: self._end], self._blocks
        self._number(self._until[: self._end][live], self._used[: self._end][live])
        self._blocks, self._bytes, first = [], 0, 0
        for block in blocks:
            kept = np.flatnonzero(live[block.first : block.first + block.count])
            if not len(kept):
                continue
            keys, answers = block.whole()
            if len(kept) < block.count:
                keys, answers = keys.at(kept), answers.at(kept).compact()
            last = self._blocks[-1] if self._blocks else None
            if last is None or last.count + len(kept) > self._block:
                self._blocks.append(last := Block(first, block.begun))
            self._bytes += last.add(keys, answers, block.until)
            self._unhashed.append(keys)
            first += len(kept)
