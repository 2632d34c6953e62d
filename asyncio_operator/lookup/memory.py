"""What a task remembers: the answers of the last seconds, so that later batches do not ask again (law L12).

It is one dictionary from keys to outcomes, and a queue of blocks of keys in the order of their answers. A key that is
in the dictionary is not asked, so it is in one block only. Forgetting a block removes its keys. Errors are not
remembered.

With a cache it returns no answer that the cache would no longer use, and none that the cache would refresh.

As long as the keys ascend, from batch to batch too, no key can come again, as in a table that is sorted by its key.
Until then nothing is entered into the dictionary or searched in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress, repeat
from math import inf
from sys import getsizeof
from typing import Any, Final

from asyncio_operator.lookup.key_batch import PENDING, Failure, KeyBatch, answer_of

MOST_KEYS: Final = 100_000
"""Keys that are remembered, by law L12."""

MOST_BYTES: Final = 64 * 2**20
"""Bytes of their answers, estimated. It is a few batches of ordinary rows, and bounds the memory of large documents."""

ENTRY: Final = 400
"""Bytes of a key, of its places in dictionaries and of a row, beside the values of the row."""

SAMPLED: Final = 8
"""One of this many answers is measured."""

BLOCK: Final = 1_000
"""Keys from which a block takes no more, as from a sixteenth of `MOST_BYTES`."""

SPAN: Final = 0.01
"""The part of the time to remember that one block may span. Its keys are forgotten together."""


@dataclass(slots=True, eq=False)
class KeyBlock:
    """Keys that were answered at about the same time, and their outcomes."""

    begun: float
    ended: float
    bytes: int = 0
    keys: list[Any] = field(default_factory=list)
    outcomes: list[Any] = field(default_factory=list)


class Memory:
    """The answers of a task.

    Args:
        seconds: how long an answer is remembered, in the unit of the clock; 0: never.
        clock: returns the time.
        limit: that of a cache: no answer is returned when this much time has passed since it came.
    """

    def __init__(self, seconds: float, clock: Callable[[], float], limit: float = inf) -> None:
        self._seconds = seconds
        self._limit = limit
        self._longest = min(seconds, limit)
        self._span = SPAN * self._longest
        self._clock = clock
        self._ascending = True
        self._count = 0
        self._known: dict[Any, Any] = {}
        self._blocks: deque[KeyBlock] = deque()
        self._has_forgotten = False  # whether a block may list a key that was forgotten, and that has a later answer
        self._bytes = 0

    def recall(self, batch: KeyBatch) -> tuple[list[Any], list[int]] | None:
        """The outcomes of the keys, `PENDING` for those that are not remembered, and the positions of these; None: none
        is remembered."""
        if self._blocks:
            self._forget_old(self._clock())
        if batch.ascending:
            return None
        if self._ascending:
            self._enter()
        known, keys = self._known, batch.keys
        if not known or known.keys().isdisjoint(keys):
            return None
        outcomes = list(map(known.get, keys, repeat(PENDING)))
        return outcomes, [i for i, one in enumerate(outcomes) if one is PENDING]

    def _enter(self) -> None:
        """From now on, every outcome is entered into the dictionary."""
        self._ascending = False
        for block in self._blocks:
            self._known.update(zip(block.keys, block.outcomes, strict=True))

    def clear(self) -> None:
        """Forget everything. The task has ended, and the objects of its run may wait for the garbage collector."""
        self._known.clear()
        self._blocks.clear()

    def learn(self, keys: Sequence[Any], outcomes: Sequence[Any]) -> None:
        """Remember the outcomes of keys that were asked and have just been answered, failures excepted."""
        if hasattr(outcomes, "table"):
            outcomes = list(outcomes)
        if Failure in set(map(type, outcomes)):
            answered = [type(outcome) is not Failure for outcome in outcomes]
            keys, outcomes = list(compress(keys, answered)), list(compress(outcomes, answered))
        if not self._longest or not keys:
            return
        now, sample = self._clock(), outcomes[::SAMPLED]
        self._forget_old(now)
        size = ENTRY + size_of(sample) // len(sample)
        # In several blocks: a block that alone is over the limit would be forgotten with all its keys.
        most = max(1, min(BLOCK, MOST_BYTES // 16 // max(1, size)))
        for start in range(0, len(keys), most):
            some = keys[start : start + most]
            block = self._blocks[-1] if self._blocks else None
            is_full = block is None or len(block.keys) >= BLOCK or block.bytes * 16 >= MOST_BYTES
            if block is None or is_full or now - block.begun > self._span:
                self._blocks.append(block := KeyBlock(now, now))
            block.ended = now
            block.keys += some
            block.outcomes += outcomes[start : start + most]
            block.bytes += size * len(some)
        self._bytes += size * len(keys)
        self._count += len(keys)
        if not self._ascending:
            self._known.update(zip(keys, outcomes, strict=True))
        # Without its oldest block it would still remember enough.
        blocks = self._blocks
        while self._bytes > MOST_BYTES or (blocks and self._count - len(blocks[0].keys) >= MOST_KEYS):
            self._forget()

    def forget(self, key: Any, outcome: Any) -> None:
        """Ask for this key again, if this outcome, which is of no use, is what is remembered for it.

        It is found to be of no use when its columns are built, and the key may have a later answer by then.
        """
        if self._ascending:
            self._enter()
        if answer_of(self._known.get(key, PENDING)) is answer_of(outcome):
            del self._known[key]
            # It stays in its block, which must not take a later answer with it.
            self._has_forgotten = True

    def _forget_old(self, now: float) -> None:
        # The limit of a cache is exact (law L5): it counts from the oldest answer of a block.
        blocks, last, first = self._blocks, now - self._seconds, now - self._limit
        while blocks and (blocks[0].ended <= last or blocks[0].begun <= first):
            self._forget()

    def _forget(self) -> None:
        block, known = self._blocks.popleft(), self._known
        self._bytes -= block.bytes
        self._count -= len(block.keys)
        if self._ascending:
            return
        keys: Iterable[Any] = block.keys
        if self._has_forgotten:
            keys = [key for key, one in zip(keys, block.outcomes, strict=True) if known.get(key, PENDING) is one]
        deque(map(known.pop, keys, repeat(None)), maxlen=0)


def size_of(outcomes: Sequence[Any]) -> int:
    """The bytes of answers, about. Answers that cannot be measured count as none."""
    answers = list(map(answer_of, outcomes))
    try:
        if set(map(type, answers)) == {dict}:
            # In C: this is done for every answer.
            values = list(chain.from_iterable(map(dict.values, answers)))
            nested = map(_inside, values) if _CONTAINERS & set(map(type, values)) else ()
            return sum(map(getsizeof, values)) + sum(nested)
        # Asking a table takes longer than all the rest of an answer, so each is asked once.
        tables = {id(answer.table): answer.table for answer in answers if hasattr(answer, "table")}
        rows = {name: table.nbytes / table.num_rows for name, table in tables.items()}
        return sum(
            int(rows[id(answer.table)] * answer.counts) if hasattr(answer, "table") else _inside(answer)
            for answer in answers
            if answer is not None
        )
    except Exception:
        # A class of the user's, or a value that contains itself: whether it is a row is decided elsewhere.
        return 0


_CONTAINERS = frozenset((dict, list, tuple))


def _inside(value: Any) -> int:
    """The bytes of the values in a row, a list of rows, or a nested value."""
    if isinstance(value, Mapping):
        return sum(getsizeof(item) + _inside(item) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(getsizeof(item) + _inside(item) for item in value)
    return 0
