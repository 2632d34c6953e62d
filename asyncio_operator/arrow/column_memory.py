"""Answers in columns, by key: what a task remembers (law L12), or a cache holds (laws L3 to L6). Keys and answers stay
in Arrow.

They are held in blocks, as they came. A key has a place, a number to which its hash leads (`PlaceTable`). Arrays say
for each place when its answer came, how long it is used, and in which order they were used. Every hit is compared with
the key itself, because two keys may have one hash: the later one is kept. No step has a Python function for each key.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncio_operator.arrow.column_answers import ColumnAnswers, Piece, one_after_the_other

if TYPE_CHECKING:
    from asyncio_operator.arrow.key_arrays import Ints
    from asyncio_operator.arrow.key_index import ArrowKeys, Mask, Words

MOST_KEYS = 250_000  # Keys that a task remembers: as many rows of 256 bytes as `MOST_BYTES`.
MOST_BYTES = 64 * 2**20  # Bytes of their keys and answers.
SPAN = 0.01  # The part of the time to remember that one block may span. Its memory is freed as a whole.

BLOCK = 25_000
"""Keys from which a block takes no more, unless there are many: a batch takes rows of each column from each block."""

ABOUT = np.dtype([("attempts", np.int32), ("latency", np.float64), ("http_status", np.float64)])
"""What the call of an answer took. NaN: there is none."""

LEAST = 1_000  # Places without a key. Fewer are not worth a copy of all others.


class PlaceTable:
    """The places of keys, by their hashes. A key is in the slot of its hash, or in the next free one behind it."""

    def __init__(self) -> None:
        self._hashes = np.empty(1, np.uint64)
        self._slots, self._count = np.full(1, -1, np.int32), 0

    def find(self, hashes: Words) -> Ints:
        """The place of a key with each hash, or -1."""
        slots, last = self._slots, len(self._slots) - 1
        at = (hashes & np.uint64(last)).view(np.int64)
        found, left = np.full(len(hashes), -1), np.arange(len(hashes))
        while len(left):
            there = slots.take(at[left])
            hits = self._hashes.take(there) == hashes[left]
            found[left] = np.where(hits & (there >= 0), there, -1)
            left = left[~hits & (there >= 0)]
            at[left] = (at[left] + 1) & last
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
            # The first of several that fit into one slot has it now. The others look at it again: those of its hash
            # replace it, one after the other, so the last one stays.
            slots[at[fits][::-1]] = places[fits][::-1]
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
        until: when the last of them expires.
    """

    def __init__(self, first: int, begun: float, until: float, keys: ArrowKeys, answers: ColumnAnswers) -> None:
        self.first, self.begun, self.until = first, begun, until
        self.keys, self.answers = keys, answers
        self.count, self.bytes = len(keys), int(keys.array.nbytes + answers.table.nbytes)


class ColumnMemory:
    """The answers of keys, in columns.

    Args:
        now: returns the time.
        lives: how long rows and misses are used after they came, in the unit of the time.
        most_keys: the keys that are kept. When there are more, the least recently used go.
        most_bytes: bytes of keys and answers above which the oldest block goes.
        span: the time that a block may span.
        idle: how long an answer is used after its last use; None: only its arrival counts as a use.
        keeps_expired: expired answers stay, until there are too many.
        timed: answers come with what their calls took.
    """

    def __init__(
        self,
        now: Callable[[], float],
        lives: tuple[float, float],
        most_keys: int,
        most_bytes: float = inf,
        span: float = inf,
        idle: float | None = None,
        keeps_expired: bool = False,
        timed: bool = False,
    ) -> None:
        self.now = now
        self.most_keys = most_keys
        self._lives, self._most_bytes, self._span = lives, most_bytes, span
        self._idle, self._keeps_expired = idle, keeps_expired
        self._arrays = ["_live", "_came", "_until"] + (["_about"] if timed else [])
        if idle is not None:
            self._arrays += ["_ends", "_used"]
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        # Of each place: whether it has a key, when its answer came, and when it expires. Without another use, if uses
        # count: then also when its life ends, and its number in the order of use. And what its call took.
        self._live, self._came, self._until = np.empty(0, bool), np.empty(0), np.empty(0)
        self._ends, self._used, self._about = np.empty(0), np.empty(0, np.int64), np.empty(0, ABOUT)
        self._blocks: list[Block] = []
        self._bytes = self._tick = self._end = self.count = 0
        self._number()

    def _number(self) -> None:
        """Places have new numbers, and are not in the table yet."""
        self._table = PlaceTable()
        self._unhashed: list[ArrowKeys] = []  # Keys whose hashes were not needed yet.
        # Places in the order of their use, at the time of this number.
        self._queue, self._queued = np.empty(0, np.int64), 0

    def recall(self, keys: ArrowKeys, *, expired: bool = False) -> list[Piece]:
        """The positions of the keys whose answers are here, and these answers; with those that have expired and are
        still here. Counts as a use."""
        places, now = self._places(keys), self.now()
        hits = np.flatnonzero(places >= 0)
        if not len(hits):
            return []
        self._join()
        over = self._until[places[hits]] <= now
        if over.any() and not expired:
            if not self._keeps_expired:
                self._forget(places[hits[over]])
            hits = hits[~over]
        of_block = np.searchsorted([block.first for block in self._blocks], places[hits], side="right") - 1
        order = np.argsort(of_block.astype(np.int16), kind="stable")  # in a third of the time of 64 bits
        found: list[Piece] = []
        for group in np.split(order, np.flatnonzero(np.diff(of_block[order])) + 1) if len(order) else ():
            block, positions = self._blocks[of_block[group[0]]], hits[group]
            inside = places[positions] - block.first
            same = keys.same(positions, block.keys, inside)
            if same.any():
                found.append((positions[same], block.answers.at(inside[same]).compact()))
        if self._idle is not None and not expired:
            used = places[hits]
            self._until[used] = np.minimum(self._ends[used], now + self._idle)
            self._use(used)
        return found

    def came(self, keys: ArrowKeys) -> Any:
        """When the answers of keys came; NaN for those that are not here."""
        places = self._places(keys)
        return np.where(places < 0, np.nan, self._came[places] if self._end else np.nan)

    def about(self, keys: ArrowKeys) -> Any:
        """What the calls of keys that are here took: an array of `ABOUT`."""
        return self._about[self._places(keys)]

    def forget(self, keys: ArrowKeys) -> None:
        """Forget the answers of keys."""
        places = self._places(keys)
        self._forget(places[places >= 0])

    def learn(self, keys: ArrowKeys, answers: ColumnAnswers, came: Any, about: Any = None) -> None:
        """Keep the answers of keys, which have come at these times. Times ascend."""
        if not len(keys):
            return
        first, self._end = self._end, self._end + len(keys)
        ends = np.where(answers.counts != 0, *self._lives) + came
        until = ends if self._idle is None else np.minimum(ends, came + self._idle)
        values = {"_live": True, "_came": came, "_until": until, "_ends": ends, "_used": 0, "_about": about}
        for name in self._arrays:
            array = grown(getattr(self, name), self._end)
            array[first : self._end] = values[name]
            setattr(self, name, array)
        self._add(Block(first, float(came[0]), float(ends.max()), keys.copied(), answers))
        self.count += len(keys)
        while self._bytes > self._most_bytes:
            self._forget_block()
        if self._idle is not None:
            self._use(np.arange(first, self._end))
            # What they replace does not count.
            self._hash()
        self._shrink()

    def _add(self, block: Block) -> None:
        self._blocks.append(block)
        self._unhashed.append(block.keys)
        self._bytes += block.bytes

    def _join(self) -> None:
        """Join neighbours as long as the later one has as many keys. Then a key is copied only a few times, and there
        are few blocks: a batch takes rows of each column from each block."""
        # Arrow cannot join 2**31 bytes of text.
        most, room = max(BLOCK, self.count // 8), min(self._most_bytes / 4, 4 * MOST_BYTES)
        blocks: list[Block] = []
        for block in self._blocks:
            blocks.append(block)
            while len(blocks) > 1:
                one, last = blocks[-2:]
                too_large = one.count + last.count > most or one.bytes + last.bytes > room
                if one.count > last.count or too_large or last.begun - one.begun > self._span:
                    break
                found = one_after_the_other([one.answers, last.answers])
                # In one piece: Arrow copies a column in chunks as a whole each time that rows of it are taken.
                answers = ColumnAnswers(found.table.combine_chunks(), found.starts, found.counts)
                keys, until = one.keys.joined([last.keys]), max(one.until, last.until)
                blocks[-2:] = [Block(one.first, one.begun, until, keys, answers)]
        self._bytes, self._blocks = sum([block.bytes for block in blocks]), blocks

    def _hash(self) -> None:
        for some in self._unhashed:
            self._forget(self._table.add(some.hashes, self._live))
        self._unhashed.clear()

    def _places(self, keys: ArrowKeys) -> Ints:
        """The place of a key with the hash of each, or -1."""
        now = self.now()
        while self._blocks and self._blocks[0].until <= now and not self._keeps_expired:
            self._forget_block()
        self._hash()
        if not self._end:
            return np.full(len(keys), -1)
        places = self._table.find(keys.hashes)
        return np.where(self._live[places], places, -1)

    def _use(self, places: Ints) -> None:
        self._used[places] = np.arange(self._tick, self._tick + len(places))
        self._tick += len(places)

    def _shrink(self) -> None:
        """Forget the keys above the limit that were used least recently."""
        while (over := self.count - self.most_keys) > 0:
            if not len(self._queue):
                live = np.flatnonzero(self._live[: self._end])
                self._queue = live if self._idle is None else live[np.argsort(self._used[live])]
                self._queued = self._tick
            some, self._queue = self._queue[:over], self._queue[over:]
            # Others were used since then.
            self._forget(some if self._idle is None else some[self._used[some] < self._queued])
        while self._blocks and not self._live[(block := self._blocks[0]).first : block.first + block.count].any():
            self._forget_block()
        if self._end - self.count > max(self.count // 2, LEAST):
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
        live, blocks = self._live[: self._end].copy(), self._blocks
        for name in self._arrays:
            array = getattr(self, name)
            array[: self.count] = array[: self._end][live]
        self._end = self.count
        self._number()
        self._blocks, self._bytes, first = [], 0, 0
        for block in blocks:
            kept = np.flatnonzero(live[block.first : block.first + block.count])
            if not len(kept):
                continue
            keys, answers = block.keys, block.answers
            if len(kept) < block.count:
                keys, answers = keys.at(kept), answers.at(kept).compact()
            self._add(Block(first, block.begun, block.until, keys, answers))
            first += len(kept)
