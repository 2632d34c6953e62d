"""The places of a task whose keys are in Arrow: answers stay in columns, in what the task remembers and in a cache.

No place has an object for a key or an answer (law A4). Single keys, whose calls were in trouble, become Arrow here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import chain, groupby
from math import inf
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator.arrow import column_memory
from asyncio_operator.arrow.column_answers import one_after_the_other
from asyncio_operator.arrow.column_memory import ColumnMemory
from asyncio_operator.clock import Clock, milliseconds, monotonic
from asyncio_operator.errors import describe_error
from asyncio_operator.figures import Figures
from asyncio_operator.lookup.answers import AnswerCheck
from asyncio_operator.lookup.cache import AnyCache
from asyncio_operator.lookup.key_batch import Answer, KeyBatch
from asyncio_operator.lookup.places import Kept, Places
from asyncio_operator.policies.cache import Cache
from asyncio_operator.state.entries import ABSENT

if TYPE_CHECKING:
    from asyncio_operator.arrow.column_answers import ColumnAnswers, Piece
    from asyncio_operator.arrow.key_index import ArrowKeys, Mask

logger = logging.getLogger("asyncio_operator.cache")

MANY = 256
"""Keys that are learnt together, if no task needs them before."""


class ColumnStore:
    """What a task remembers, or what a cache holds. New answers wait until a task asks, because to store a few costs as
    much as to store many."""

    def __init__(self, answers: ColumnMemory) -> None:
        self._answers = answers
        self._come: list[tuple[ArrowKeys, Any, float, AnswerCheck]] = []
        self._count = 0

    def recall(self, keys: ArrowKeys) -> list[Piece]:
        """The positions of the keys with a live answer, and the answers. Counts as a use."""
        self._settle()
        return self._answers.recall(self._fitted(keys))

    def learn(self, keys: ArrowKeys, answers: Any, check: AnswerCheck) -> None:
        """These answers have just come: in columns, or as `check` returned them."""
        self._come.append((self._fitted(keys), answers, self._answers.now(), check))
        self._count += len(keys)
        if self._count >= MANY:
            self._settle()

    def _settle(self) -> None:
        come, self._come, self._count = self._come, [], 0
        if not come:
            return
        first, *others = [keys for keys, _, _, _ in come]
        answers: list[ColumnAnswers] = []
        try:
            for check, group in groupby(come, lambda one: None if hasattr(one[1], "table") else one[3]):
                some = [answers for _, answers, _, _ in group]
                answers += some if check is None else [check.in_table([*chain.from_iterable(some)])]
        except Exception as error:  # The enricher has changed one after it was checked.
            logger.warning("%d answers cannot be kept: %s", len(come), describe_error(error))
            return
        came = np.repeat([time for _, _, time, _ in come], [len(keys) for keys, _, _, _ in come])
        self._keep(first.joined(others) if others else first, one_after_the_other(answers), came)

    def _keep(self, keys: ArrowKeys, answers: ColumnAnswers, came: Any) -> None:
        self._answers.learn(keys, answers, came)

    def _fitted(self, keys: ArrowKeys) -> ArrowKeys:
        return keys

    def forget(self, keys: ArrowKeys) -> None:
        """Ask for the keys again."""
        self._settle()
        self._answers.forget(keys)

    def clear(self) -> None:
        """Release the memory."""
        self._come.clear()
        self._answers.clear()


class ColumnCache(AnyCache, ColumnStore):
    """The answers of one specification in memory, in columns. The first keys decide the type of all: others that do not
    fit it are not here.

    Attributes:
        now: the time in milliseconds.
    """

    has_objects = False

    def __init__(self, options: Cache, clock: Clock | None) -> None:
        AnyCache.__init__(self, options)
        self.now = milliseconds(clock)
        answers = ColumnMemory(
            self.now,
            (self.row_life, self.miss_life),
            options.max_rows,
            idle=inf if options.expire_after_access is None else self.idle_life,
            keeps_expired=options.stale_if_error,
        )
        ColumnStore.__init__(self, answers)
        self._kind: pa.DataType | None = None

    def __len__(self) -> int:
        self._settle()
        return self._answers.count

    def _keep(self, keys: ArrowKeys, answers: ColumnAnswers, came: Any) -> None:
        kept = keys.array.is_valid().to_numpy(zero_copy_only=False)
        if not self.options.cache_missing:
            # An older answer, kept for `stale_if_error` or being refreshed, is known to be wrong now. The last of
            # several answers for a key counts.
            last = np.zeros(len(keys), bool)
            last[len(keys) - 1 - np.unique(keys.hashes[::-1], return_index=True)[1]] = True
            found = answers.counts != 0
            self._answers.forget(keys.at(np.flatnonzero(kept & ~found)))
            kept &= found & last
        if not kept.all():
            places = np.flatnonzero(kept)
            keys, answers, came = keys.at(places), answers.at(places).compact(), came[places]
        self._answers.learn(keys, answers, came)

    def is_old(self, keys: ArrowKeys) -> Mask:
        """Whether each key has an answer that is due to be refreshed."""
        self._settle()
        old: Mask = self._answers.came(self._fitted(keys)) + self.fresh_life <= self.now()
        return old

    def came(self, keys: ArrowKeys) -> float:
        """When the answer for the only key came, in seconds since the epoch; now, if there is none."""
        self._settle()
        time = self._answers.came(self._fitted(keys))[0]
        return float(self.now() if np.isnan(time) else time) / 1000

    def stale(self, keys: ArrowKeys) -> Any:
        """The answer for the only key, expired or not, if `stale_if_error` allows it; else, or without one, ABSENT."""
        self._settle()
        found = self._answers.recall(self._fitted(keys), expired=True) if self.options.stale_if_error else []
        return next((one for _, answers in found for one in answers), ABSENT)

    def close(self) -> None:
        self.clear()

    def _fitted(self, keys: ArrowKeys) -> ArrowKeys:
        """Keys in the type of those that are here; null where they do not fit it."""
        if self._kind is None:
            self._kind = keys.array.type if not kinds.is_integer(keys.array.type) else pa.int64()
        return keys.fitted(self._kind)


class ColumnPlaces(Places):
    """See `Places`. All batches have keys in Arrow, of one type."""

    def __init__(
        self, figures: Figures, kept: Kept, remember: float, clock: Clock = monotonic, timed: bool = False
    ) -> None:
        super().__init__(figures, kept, remember, clock, timed)
        self._keys: ArrowKeys | None = None
        self._check = kept.check
        if self._check is None and kept.tables is not None:
            self._check = AnswerCheck(kept.tables.empty.schema, in_columns=True)

    def recall(self, batch: KeyBatch) -> Sequence[int]:
        self._keys = cast("ArrowKeys", batch.keys)
        return super().recall(batch)

    def _recall(self, place: Any, batch: KeyBatch, left: Sequence[int], is_cache: bool) -> Sequence[int]:
        if batch.ascending and place is not self._cache:
            return left
        whole, keys = len(left) == len(batch.keys), cast("ArrowKeys", batch.keys)
        missing = np.ones(len(left), bool)
        for positions, answers in place.recall(keys if whole else keys.at(left)):
            here = positions if whole else np.asarray(left)[positions]
            missing[positions] = False
            # A miss that the cache does not take is the task's.
            own = place is not self._cache and is_cache and not self._cache.options.cache_missing
            if own:
                misses = int(np.count_nonzero(answers.counts == 0))
                self.figures.cache_hits -= misses
                self.figures.shared += misses
            if self._timed:
                miss = Answer(None, "shared", 1, None) if own else Answer(None, "cache", 0, None)
                hits = [miss if answer is None else Answer(answer, "cache", 0, None) for answer in answers]
                batch.store(here.tolist(), hits)
            else:
                batch.store(here, answers)
            if place is self._cache and self._kept is not None:
                for i, answer in zip(here.tolist(), answers, strict=True):
                    self._keep(batch.objects[i], answer)
            if place is self._cache and self.refreshes and self.refresh is not None:
                for i in here[place.is_old(keys.at(here))].tolist():
                    self.refresh(batch.objects[i])
        others = np.flatnonzero(missing).tolist()
        return others if whole else [left[i] for i in others]

    def in_cache(self, key: Any) -> ArrowKeys:
        assert self._keys is not None
        return self._keys.like([key])

    def name(self, key: Any) -> int:
        return self.in_cache(key).names[0]

    def forget(self, key: Any, outcome: Any) -> None:
        for memory in self._memories:
            memory.forget(self.in_cache(key))

    def _learn(self, keys: Any, answers: Any, outcomes: Any) -> None:
        assert self._keys is not None
        assert self._check is not None
        keys = keys if hasattr(keys, "array") else self._keys.like(keys)
        for memory in self._memories:
            memory.learn(keys, answers, self._check)
        if self._cache is not None:
            self._cache.learn(keys, answers, self._check)

    @staticmethod
    def _remembering(now: Callable[[], float], life: float, lives: Sequence[float]) -> list[Any]:
        row, miss = min(life, lives[0]), min(life, lives[-1])
        limits = column_memory.MOST_KEYS, column_memory.MOST_BYTES
        return [ColumnStore(ColumnMemory(now, (row, miss), *limits, span=column_memory.SPAN * row))]
