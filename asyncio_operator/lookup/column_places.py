"""The places of a task: a memory of what it was answered, a cache, and places behind. Answers stay in columns in the
memory, and in a cache in memory, where no key and no answer has an object (law A4).

The places at hand are asked for all keys of a batch at once, and learn the answers of calls at once. Laws: a key
that was answered is not called for again (L12); a cache never costs calls, because the memory has what the cache has
dropped (L13); a key that one place knows touches no later one (L14).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import chain, compress, groupby, islice, repeat
from math import inf, isnan
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from asyncio_operator.arrow import column_memory
from asyncio_operator.arrow.column_answers import one_after_the_other
from asyncio_operator.arrow.column_memory import ABOUT, ColumnMemory
from asyncio_operator.arrow.key_identity import identity
from asyncio_operator.arrow.key_index import ArrowKeys
from asyncio_operator.checks import milliseconds
from asyncio_operator.clock import Clock, monotonic
from asyncio_operator.errors import describe_error
from asyncio_operator.figures import Figures
from asyncio_operator.lookup.answers import AnswerCheck
from asyncio_operator.lookup.cache import AnyCache
from asyncio_operator.lookup.key_batch import IN_COLUMNS, ONE_CALL, PENDING, TURNS, Answer, Calls, KeyBatch
from asyncio_operator.lookup.places import Places
from asyncio_operator.policies.cache import Cache
from asyncio_operator.state.entries import ABSENT

if TYPE_CHECKING:
    from asyncio_operator.arrow.column_answers import ColumnAnswers, Piece
    from asyncio_operator.arrow.key_index import Mask
    from asyncio_operator.lookup.cache import LookupCache
    from asyncio_operator.lookup.places import KnownAnswers

logger = logging.getLogger("asyncio_operator.cache")


MANY = 5_000  # Answers that a place stores at once, if it does not need them before.


class Learnt(NamedTuple):
    """Answers that wait to be stored."""

    keys: Any
    like: ArrowKeys | None  # Some keys of the type of those that are no `ArrowKeys`.
    answers: Any  # In columns, or as `check` returned them.
    check: AnswerCheck | None
    came: Sequence[tuple[int, int, float]]  # See `Calls`.
    about: Any  # What their calls took, if that is asked for.


class ColumnStore:
    """What a task remembers, or what a cache holds. New answers wait until a task asks, because to store a few costs as
    much as to store many.
    """

    def __init__(self, answers: ColumnMemory) -> None:
        self._answers, self.now = answers, answers.now
        self.due: dict[Any, None] = {}  # Open batches, of all tasks that use it, with results that are not learnt yet.
        self._come, self._count = list[Learnt](), 0
        self._names: set[int] | None = set()  # Those of their keys; None: some are not known.
        self._types = set[pa.DataType]()  # Of keys with names, which are others for equal keys of another type.

    def recall(self, keys: ArrowKeys) -> list[Piece]:
        """The positions of the keys with a live answer, and the answers. Counts as a use."""
        self._learn_due()
        # Law L4: what waits may take the places of others.
        are_full = self._answers.count + self._count > self._answers.most_keys
        names = self._names if self._types == {keys.array.type} else None
        if self._come and (are_full or names is None or not names.isdisjoint(keys.names)):
            self._settle()
        return self._answers.recall(self._fitted(keys))

    def about(self, keys: ArrowKeys) -> Any:
        """What the calls of keys that are here took: see `ColumnMemory.about`."""
        return self._answers.about(self._fitted(keys))

    def learn(
        self,
        keys: Any,
        answers: Any,
        check: AnswerCheck,
        like: ArrowKeys | None = None,
        about: Any = None,
        calls: Calls = ONE_CALL,
    ) -> None:
        """These answers have come: see `Learnt`."""
        kind, maker = None if hasattr(keys, "array") else like, None if hasattr(answers, "table") else check
        if calls.names is None:
            self._names = None
        elif self._names is not None:
            self._names.update(calls.names)
            self._types.add((keys if kind is None else kind).array.type)
        came = [(len(keys), next(TURNS), self.now())] if calls.came is None else calls.came
        self._come.append(Learnt(keys, kind, answers, maker, came, about))
        self._count += len(keys)
        if self._count >= MANY:
            self._settle()

    def _learn_due(self) -> None:
        while self.due:
            self.due.popitem()[0].settle_now()

    def _settle(self) -> None:
        # Law L4: some of it may have come before what waits here.
        self._learn_due()
        come, self._come, self._count, self._names = self._come, [], 0, set()
        if not come:
            return
        keys: list[ArrowKeys] = []
        answers: list[ColumnAnswers] = []
        try:
            for like, group in groupby(come, lambda one: one.like):
                some = [one.keys for one in group]
                keys += some if like is None else [like.like([*chain.from_iterable(some)])]
            for check, group in groupby(come, lambda one: one.check):
                some = [one.answers for one in group]
                answers += some if check is None else [check.in_table([*chain.from_iterable(some)])]
        except Exception as error:  # The enricher has changed one after it was checked.
            logger.warning("%d answers cannot be kept: %s", len(come), describe_error(error))
            return
        about: Any = None if come[0].about is None else np.concatenate([one.about for one in come])
        first, *others = map(self._fitted, keys)
        counts = np.concatenate([np.diff([end for end, *_ in one.came], prepend=0) for one in come])
        _, *columns = zip(*chain.from_iterable([one.came for one in come]), strict=True)
        turns, times = [np.repeat(column, counts) for column in columns]
        every, found = first.joined(others) if others else first, one_after_the_other(answers)
        if (turns[1:] < turns[:-1]).any():
            # Those of several batches. Law L4: the order counts.
            order = np.argsort(turns, kind="stable")
            every, found, times = every.at(order), found.at(order), times[order]
            about = None if about is None else about[order]
        self._keep(every, found, times, about)

    def _keep(self, keys: ArrowKeys, answers: ColumnAnswers, came: Any, about: Any) -> None:
        self._answers.learn(keys, answers, came, about)

    def _fitted(self, keys: ArrowKeys) -> ArrowKeys:
        return keys

    def clear(self) -> None:
        """Release the memory."""
        self._come.clear()
        self._answers.clear()


class ColumnCache(AnyCache, ColumnStore):
    """The answers of one specification in memory, in columns. The first keys decide the type of all: others that do not
    fit it are not here.
    """

    has_objects = False

    def __init__(self, options: Cache, clock: Clock | None, schema: pa.Schema | None = None) -> None:
        AnyCache.__init__(self, options)
        self._check = AnswerCheck(schema or pa.schema(()), in_columns=True)
        answers = ColumnMemory(
            milliseconds(clock),
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

    def _keep(self, keys: ArrowKeys, answers: ColumnAnswers, came: Any, about: Any) -> None:
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
        # A hit of a cache says nothing about a call.
        self._answers.learn(keys, answers, came)

    def put(self, key: Any, answer: Any, age: int) -> None:
        """Store an answer for a key that was looked for here; see `LookupCache.put`."""
        self.learn([key], [answer], self._check, self._like, None, Calls(came=[(1, next(TURNS), self.now() - age)]))

    def holds(self, key: Any) -> bool:
        """Whether there is an answer, expired or not, for a key that was looked for here."""
        return self.stale(key) is not ABSENT

    def is_old(self, key: Any) -> bool:
        return bool(self.old(self._like.like([key]))[0])

    def old(self, keys: ArrowKeys) -> Mask:
        """Whether each key has an answer that is due to be refreshed."""
        self._settle()
        old: Mask = self._answers.came(self._fitted(keys)) + self.fresh_life <= self.now()
        return old

    def came(self, key: Any) -> float:
        """When the answer for a key came, in seconds since the epoch; now, if there is none."""
        self._settle()
        time = self._answers.came(self._like.like([key]))[0]
        return float(self.now() if np.isnan(time) else time) / 1000

    def stale(self, key: Any) -> Any:
        """The answer for a key, expired or not, if `stale_if_error` allows it; else, or without one, ABSENT."""
        self._settle()
        found = self._answers.recall(self._like.like([key]), expired=True) if self.options.stale_if_error else []
        return next((one for _, answers in found for one in answers), ABSENT)

    close = ColumnStore.clear

    def _fitted(self, keys: ArrowKeys) -> ArrowKeys:
        """Keys in the type of those that are here; null where they do not fit it."""
        if self._kind is None:
            self._kind = keys.array.type if not kinds.is_integer(keys.array.type) else pa.int64()
            self._like = _AnyKeys(pa.array([], self._kind))
        return keys.fitted(self._kind)


class _AnyKeys(ArrowKeys):
    """Converts keys of any task to the type of its cache: null where that cannot hold one exactly, as in `fitted`."""

    def like(self, keys: Sequence[Any]) -> ArrowKeys:
        kind, none = self.array.type, (None,) * self.array.type.num_fields
        made = super().like([key if (len(key) if type(key) is tuple else 0) == len(none) else none for key in keys])
        exact = [identity(one) == identity(key) for one, key in zip(made, keys, strict=True)]
        return ArrowKeys(pc.if_else(pa.array(exact, pa.bool_()), made.array, pa.nulls(len(keys), kind)))


class ColumnPlaces(Places):
    """The places of a task, for keys in Arrow of one type: see `Places`.

    Args:
        check: made the answers that come without columns.
        wanted: the same for the columns that rows get, which the task remembers.
        remember: seconds for which it does; 0: never.
        clock: returns the time.
    """

    def __init__(
        self,
        figures: Figures,
        check: AnswerCheck,
        wanted: AnswerCheck | None = None,
        cache: AnyCache | None = None,
        known: Sequence[KnownAnswers] = (),
        timed: bool = False,
        remember: float = 0.0,
        clock: Clock = monotonic,
    ) -> None:
        super().__init__(figures, check, cache, known, timed)
        self._keys: ArrowKeys | None = None
        self._wanted = wanted or check
        self._memory: ColumnStore | None = None
        self._at_hand: list[Any] = [] if cache is None else [cache]
        self.now: Callable[[], float] = clock if cache is None else cache.now  # The same, for answers that are kept.
        # Whether places may learn an answer later, with the time at which it came.
        self.dated = not self.known and (cache is None or not cache.has_objects)
        self.due: dict[Any, None] = cache.due if isinstance(cache, ColumnCache) else {}  # See `ColumnCache`.
        if remember:
            # Behind a cache it has what the cache has dropped, as long as the cache would use it.
            unit, lives = (1, (inf,)) if cache is None else (1000, cache.lives)
            row, miss = min(unit * remember, lives[0]), min(unit * remember, lives[-1])
            limits = column_memory.MOST_KEYS, column_memory.MOST_BYTES, column_memory.SPAN * row
            self._memory = ColumnStore(ColumnMemory(self.now, (row, miss), *limits, timed=timed))
            self._memory.due = self.due  # It is searched first, so it learns before the cache drops anything.
            # Each use of a cache counts where answers expire after their last one.
            counts = cache is not None and cache.options.expire_after_access is not None
            self._at_hand.insert(len(self._at_hand) if counts else 0, self._memory)

    # -- before a call

    def recall(self, batch: KeyBatch) -> Sequence[int]:
        """Set the outcomes of the keys that a place at hand has. Returns the positions of the others."""
        if self._keys is None:
            self._keys = batch.keys[:0].copied()
        left: Sequence[int] = range(len(keys := batch.keys))
        if batch.known:
            self.figures.journal_hits += batch.known
            left = [i for i, outcome in enumerate(batch.outcomes) if outcome is PENDING]
        for place in self._at_hand:
            if not left or (batch.ascending and place is self._memory):
                continue
            whole, missing = len(left) == len(keys), np.ones(len(left), bool)
            some = keys if whole else keys.at(left)
            pieces = _living(place, some) if place is self._cache and place.has_objects else place.recall(some)
            for positions, answers in pieces:
                missing[positions] = False
                self._recalled(place, batch, positions if whole else np.asarray(left)[positions], answers)
            if pieces:
                others = np.flatnonzero(missing).tolist()
                left = others if whole else [left[i] for i in others]
        return left

    def _recalled(self, place: Any, batch: KeyBatch, here: Any, answers: Any) -> None:
        """A place has the answers of keys at some positions."""
        cache, keys = self._cache, batch.keys
        # By law L12 what a memory has of what the cache keeps too counts as a hit of the cache.
        hits = len(here) if cache is not None else 0
        if place is self._memory and cache is not None and not cache.options.cache_missing:
            hits = int(np.count_nonzero(answers.counts))
        self.figures.cache_hits += hits
        self.figures.shared += len(here) - hits
        reports = None
        if self._timed:
            bare = repeat(IN_COLUMNS) if hasattr(answers, "table") else answers
            reports = [Answer(one, "cache", 0, None) for one in islice(bare, len(here))]
            if hits < len(here):
                took = place.about(keys.at(here)).tolist()
                is_hit = repeat(False) if cache is None else (answers.counts != 0).tolist()
                reports = [
                    one if hit else _shared(*about) for one, hit, about in zip(reports, is_hit, took, strict=False)
                ]
        batch.store(here, answers, reports)
        if place is not cache or (self._kept is None and not self.refreshes):
            return
        places = here.tolist()
        if self._kept is not None:
            for i, answer in zip(places, answers, strict=True):
                self._keep(batch.objects[i], answer)
        self.refresh_old(batch, places)

    def refresh_old(self, batch: KeyBatch, positions: Sequence[int]) -> None:
        """Refresh the cached answers of the keys at some positions that are old enough."""
        if not self.refreshes or self.refresh is None:
            return
        cache, objects, keys = self._cache, batch.objects, batch.keys
        old = [cache.is_old(objects[i]) for i in positions] if cache.has_objects else cache.old(keys.at(positions))
        for i in compress(positions, old):
            self.refresh(objects[i])

    def name(self, key: Any) -> int:
        assert self._keys is not None
        return self._keys.like([key]).names[0]

    def clear(self) -> None:
        if self._memory is not None:
            self._memory.clear()

    # -- after a call

    def _learn(self, keys: Any, answers: Any, outcomes: Any, calls: Calls) -> None:
        cache = self._cache
        # The memory first, so that it never counts an answer as younger than the cache does.
        self._remember(keys, answers, outcomes, calls)
        if cache is not None and cache.has_objects:
            super()._learn(keys, answers, outcomes, calls)
        elif cache is not None:
            cache.learn(keys, answers, self.check, self._keys, None, calls)

    def _remember(self, keys: Any, answers: Any, outcomes: Any, calls: Calls = ONE_CALL) -> None:
        if self._memory is not None:
            about: Any = np.empty(len(outcomes), ABOUT) if self._timed else None
            for name in ABOUT.names if self._timed else ():  # type: ignore[union-attr]
                about[name] = np.array(list(map(attrgetter(name), outcomes)), np.float64)  # None becomes NaN.
            self._memory.learn(keys, answers, self._wanted, self._keys, about, calls)

    def found(self, keys: Sequence[Any], answers: Sequence[Any], source: str, awaited: bool = True) -> list[Any]:
        outcomes = super().found(keys, answers, source, awaited)
        # An answer from a store behind the cache is older than it looks here, and only the cache knows its age.
        if self._cache is None:
            self._remember(keys, answers, outcomes)
        return outcomes


def _living(cache: LookupCache, keys: ArrowKeys) -> list[tuple[Any, list[Any]]]:
    """The same as `ColumnStore.recall`, of a cache with objects."""
    answers = list(map(cache.get, keys))
    hits = [one is not ABSENT for one in answers]
    return [(np.flatnonzero(hits), list(compress(answers, hits)))]


def _shared(attempts: int, latency: float, http_status: float) -> Answer:
    """The outcome of an answer in columns that the task remembers."""
    status = None if isnan(http_status) else int(http_status)
    return Answer(IN_COLUMNS, "shared", attempts, None if isnan(latency) else latency, None, status)
