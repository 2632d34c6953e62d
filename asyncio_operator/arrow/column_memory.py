"""What a task remembers of answers in columns (law L12): keys and answers stay in Arrow.

A key is known by a number (`ArrowKeys.names`). A dictionary leads from it to a place in the blocks, which hold the keys
and their answers as they came. Every hit is compared with the key itself, because two keys may have one number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from asyncio_operator.arrow.column_answers import ColumnAnswers, Piece, joined

if TYPE_CHECKING:
    from asyncio_operator.arrow.key_index import ArrowKeys


class Block:
    """Keys that were answered at about the same time, and their answers.

    Attributes:
        first: the place of its first key.
    """

    def __init__(self, first: int, begun: float) -> None:
        self.first = first
        self.begun = self.ended = begun
        self.count = self.bytes = 0
        self._keys: list[ArrowKeys] = []
        self._answers: list[ColumnAnswers] = []

    def add(self, keys: ArrowKeys, answers: ColumnAnswers, size: int) -> None:
        self._keys.append(keys)
        self._answers.append(answers)
        self.count += len(keys)
        self.bytes += size

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
    """The answers of a task in columns; see `Memory`.

    Args:
        seconds: how long an answer is remembered, in the unit of the clock.
        most_keys, most_bytes: the maximum numbers of keys, and of bytes of keys and answers.
        block: the keys from which a block takes no more.
        span: the time that a block may span.
    """

    def __init__(
        self, seconds: float, clock: Callable[[], float], most_keys: int, most_bytes: int, block: int, span: float
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._most_keys = most_keys
        self._most_bytes = most_bytes
        self._block = block
        self._span = span
        self._blocks: list[Block] = []
        self._unnamed: list[tuple[int, ArrowKeys]] = []
        self._known: dict[int, int] = {}
        self._count = self._bytes = self._next = 0

    def recall(self, keys: ArrowKeys, are_new: bool) -> list[Piece]:
        """The positions of the keys that are remembered, and their answers.

        Args:
            are_new: whether none of them can have come before.
        """
        while self._blocks and self._blocks[0].ended <= self._clock() - self._seconds:
            self._forget()
        if are_new:
            return []
        for first, new in self._unnamed:
            self._known.update(zip(new.names, range(first, first + len(new)), strict=True))
        self._unnamed.clear()
        known = self._known
        if not known or known.keys().isdisjoint(keys.names):
            return []
        places = np.fromiter(map(known.get, keys.names, repeat(-1)), np.int64, len(keys))
        hits = np.flatnonzero(places >= 0)
        of_block = np.searchsorted([block.first for block in self._blocks], places[hits], side="right") - 1
        order = np.argsort(of_block, kind="stable")
        found: list[Piece] = []
        for some in np.split(order, np.flatnonzero(np.diff(of_block[order])) + 1):
            block, positions = self._blocks[of_block[some[0]]], hits[some]
            inside = places[positions] - block.first
            known_keys, answers = block.whole()
            same = keys.same(positions, known_keys, inside)
            found.append((positions[same], answers.at(inside[same]).compact()))
        return found

    def learn(self, keys: ArrowKeys, answers: ColumnAnswers) -> None:
        """Remember the answers of keys that have just come."""
        now, block = self._clock(), self._blocks[-1] if self._blocks else None
        keys = keys.copied()
        size = int(keys.array.nbytes + answers.table.nbytes)
        # Few blocks: each costs a batch one step for every column.
        is_full = block is None or block.count >= self._block or block.bytes * 4 >= self._most_bytes
        if block is None or is_full or now - block.begun > self._span:
            self._blocks.append(block := Block(self._next, now))
        block.add(keys, answers, size)
        block.ended = now
        self._unnamed.append((self._next, keys))
        self._next += len(keys)
        self._count += len(keys)
        self._bytes += size
        while self._bytes > self._most_bytes or (self._count > self._most_keys and len(self._blocks) > 1):
            self._forget()

    def _forget(self) -> None:
        block = self._blocks.pop(0)
        self._count -= block.count
        self._bytes -= block.bytes
        while self._unnamed and self._unnamed[0][0] < block.first + block.count:
            self._unnamed.pop(0)
        if self._known:
            deque(map(self._known.pop, block.whole()[0].names, repeat(None)), maxlen=0)
