"""Where the answer for a key may be before a call is made for it: the memory of the task, a cache, and places behind.

Each is asked for all keys of a batch at once, and learns the answers of calls at once. Places behind (`KnownAnswers`),
such as a Redis or a journal, are asked by a source (`asking`), because that takes time. Laws: a cache never costs
calls, because the memory has what the cache has dropped (L13); a key that one place knows touches no later one (L14).

This module knows neither calls nor waiters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from math import inf
from typing import TYPE_CHECKING, Any

from asyncio_operator.clock import Clock, monotonic
from asyncio_operator.figures import Figures
from asyncio_operator.lookup.key_batch import PENDING, Answer, KeyBatch, answer_of, shared
from asyncio_operator.lookup.memory import Memory
from asyncio_operator.state.entries import ABSENT

if TYPE_CHECKING:
    from asyncio_operator.arrow.answer_tables import AnswerTables
    from asyncio_operator.lookup.answers import AnswerCheck
    from asyncio_operator.lookup.cache import AnyCache
    from asyncio_operator.lookup.known import KnownAnswers, NotedKeys
    from asyncio_operator.quota.usage import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What answers look like, and where they may be from earlier runs.

    Attributes:
        check: converts an answer to the form that is cached, or raises what is wrong with it.
        tables: what the tables of an enricher that answers in columns look like; None: it does not.
        cache, known: the cache, and the places behind, after those behind the cache.
        places: the class of them: `ColumnPlaces` for keys in Arrow; None: `Places`.
    """

    check: AnswerCheck | None = None
    tables: AnswerTables | None = None
    cache: AnyCache | None = None
    known: Sequence[KnownAnswers] = ()
    places: type[Places] | None = None


class Places:
    """The places of one lookup.

    Args:
        remember: seconds for which a task remembers answers.
        clock: returns the time.
        timed: outcomes say where they came from and how long they took (`Answer`).

    Attributes:
        figures: of the run. A key that came with its batch is a hit of a journal.
        known: all places behind. They are asked (`asking`) before calls are made, and learn the answers of calls.
        refresh: called with a key whose cached answer is old, if the cache refreshes.
        keeps: whether an answer is kept beyond the task, so that it has to be right.
        refreshes: whether old answers are refreshed in the background.
        survives: whether answers in the cache survive the process, so that one has to be there as soon as it has come.
    """

    def __init__(
        self, figures: Figures, kept: Kept, remember: float = 0.0, clock: Clock = monotonic, timed: bool = False
    ) -> None:
        cache = kept.cache
        self.figures = figures
        self.refresh: Callable[[Any], object] | None = None
        self.known = known = kept.known if cache is None else (*cache.known, *kept.known)
        self.keeps = cache is not None or bool(known)
        self.survives = cache is not None and not cache.in_memory
        self._cache: Any = cache
        self.refreshes = cache is not None and cache.options.refresh_after is not None
        self._timed = timed
        # Laws L12 and L13: behind a cache the memory has what the cache has dropped.
        self._memories: list[Any] = []
        if remember:
            now, unit, lives = (clock, 1, (inf,)) if cache is None else (cache.now, 1000, cache.lives)
            self._memories = self._remembering(now, unit * remember, lives)
        # In the order in which they are asked: what the first one has touches no other (law L14). What a memory has of
        # what the cache keeps too counts as a hit of the cache (law L12).
        are_cached = (False,) if cache is None else (True, cache.options.cache_missing)
        self._at_hand: list[tuple[Any, bool]] = list(zip(self._memories, are_cached, strict=False))
        if cache is not None:
            # Each use counts where answers expire after their last one.
            place = len(self._memories) if cache.options.expire_after_access is None else 0
            self._at_hand.insert(place, (cache, True))
        # A journal, and the keys whose answers it has already.
        self._keeper: KnownAnswers | None = None
        self._kept: NotedKeys | None = None
        for one in known:
            if cache is not None and one.keeps is not None:
                self._keeper, self._kept = one, cache.noted_in(one.keeps)

    # -- before a call

    def recall(self, batch: KeyBatch) -> Sequence[int]:
        """Set the outcomes of the keys that a place has. Returns the positions of the others."""
        left: Sequence[int] = range(len(batch.keys))
        if batch.known:
            self.figures.journal_hits += batch.known
            left = [i for i, outcome in enumerate(batch.outcomes) if outcome is PENDING]
        for place, is_cache in self._at_hand:
            if not left:
                break
            before = len(left)
            left = self._recall(place, batch, left, is_cache)
            if is_cache:
                self.figures.cache_hits += before - len(left)
            else:
                self.figures.shared += before - len(left)
        return left

    def _recall(self, place: Any, batch: KeyBatch, left: Sequence[int], is_cache: bool) -> Sequence[int]:
        """The same for one place, which is asked for the keys at some positions."""
        rest = batch
        if len(left) < len(batch.keys):
            rest = KeyBatch([batch.keys[i] for i in left], 0, None, batch.ascending)
        found = place.recall(rest) if place is not self._cache else self._recall_cached(rest)
        if found is None:
            return left
        outcomes, others = found
        if self._timed:
            mark = _from_cache if is_cache else shared
            outcomes = [one if one is PENDING else mark(one) for one in outcomes]
        if rest is batch:
            batch.outcomes = outcomes
            return others
        batch.store(left, outcomes)
        return [left[i] for i in others]

    def _recall_cached(self, batch: KeyBatch) -> tuple[list[Any], list[int]]:
        outcomes, left = self._cache.get_many(batch.keys, PENDING)
        if len(left) < len(outcomes) and (self._kept is not None or self.refreshes):
            for key, outcome in zip(batch.keys, outcomes, strict=True):
                if outcome is not PENDING:
                    self._used(key, outcome)
        return outcomes, left

    def get(self, key: Any) -> Any:
        """The answer for one key, or ABSENT. Where no memory is."""
        cache = self._cache
        if cache is None or (answer := cache.get(key)) is ABSENT:
            return ABSENT
        self.figures.cache_hits += 1
        self._used(key, answer)
        return answer

    def _used(self, key: Any, answer: Any) -> None:
        """The cache has given this answer."""
        if self._kept is not None:
            self._keep(key, answer)
        if self.refreshes:
            self.refresh_if_old(key)

    def refresh_if_old(self, key: Any) -> None:
        """Refresh the cached answer of a key, if it is old enough."""
        if self.refreshes and self.refresh is not None and self._cache.is_old(self.in_cache(key)):
            self.refresh(key)

    def stale(self, key: Any) -> Any:
        """An old answer that may take the place of an error, or ABSENT."""
        return ABSENT if self._cache is None else self._cache.stale(self.in_cache(key))

    def in_cache(self, key: Any) -> Any:
        """A key of a call as the cache takes it."""
        return key

    def name(self, key: Any) -> Any:
        """The name of a key of a call in batches."""
        return key

    def forget(self, key: Any, outcome: Any) -> None:
        """Ask for the key again: this outcome is of no use."""
        for memory in self._memories:
            memory.forget(key, outcome)

    def clear(self) -> None:
        """Remember nothing: the task has ended."""
        for memory in self._memories:
            memory.clear()

    # -- after a call

    def learn(
        self,
        keys: Sequence[Any],
        answers: Sequence[Any],
        outcomes: Sequence[Any],
        attempts: int = 1,
        latencies: Iterable[float] = repeat(0.0),
        weights: Iterable[Weights | None] = repeat(None),
    ) -> None:
        """Calls have given these answers; see `KnownAnswers.learn`."""
        self._learn(keys, answers, outcomes)
        for known in self.known:
            known.learn(keys, answers, attempts, latencies, weights)
        if self._kept is not None:
            for key in keys:
                self._kept.add(key)

    def _learn(self, keys: Any, answers: Any, outcomes: Any) -> None:
        # The memory first, so that it never counts an answer as younger than the cache does.
        missing = [answer is None for answer in answers] if len(self._memories) > 1 else ()
        if any(missing):
            rows, misses = self._memories
            misses.learn(list(compress(keys, missing)), list(compress(outcomes, missing)))
            found = [not one for one in missing]
            rows.learn(list(compress(keys, found)), list(compress(outcomes, found)))
        elif self._memories:
            self._memories[0].learn(keys, outcomes)
        if self._cache is not None:
            self._cache.learn(keys, answers)

    @staticmethod
    def _remembering(now: Callable[[], float], life: float, lives: Sequence[float]) -> list[Any]:
        """Remembers answers for that long. Behind a cache rows, which are noted in the first memory, and misses, in the
        last, have lives of their own."""
        return [Memory(life, now, limit) for limit in lives]

    def found(self, keys: Sequence[Any], answers: Sequence[Any], source: str, awaited: bool = True) -> list[Any]:
        """A place behind has these answers, for which rows wait or not. Returns the outcomes."""
        outcomes = [Answer(answer, source, 0, None) for answer in answers] if self._timed else list(answers)
        hits = len(keys) if awaited else 0
        if source == "cache":
            self.figures.cache_hits += hits
        else:
            self.figures.journal_hits += hits
        # An answer from a store behind the cache is older than it looks here, and only the cache knows its age.
        if self._memories and self._cache is None:
            self._memories[0].learn(keys, outcomes)
        if self._keeper is not None and source != self._keeper.source:
            for key, answer in zip(keys, answers, strict=True):
                self._keep(key, answer)
        return outcomes

    def _keep(self, key: Any, answer: Any) -> None:
        """Give a journal an answer that no call brought, once. By law J2 a job that runs again makes no call, and a
        cache may be gone by then."""
        kept, keeper, cache = self._kept, self._keeper, self._cache
        if kept is None or keeper is None or cache is None or not kept.add(key):
            return
        if not keeper.keep(key, answer, cache.came(self.in_cache(key))):
            kept.remove(key)


def _from_cache(outcome: Any) -> Answer:
    return Answer(answer_of(outcome), "cache", 0, None)
