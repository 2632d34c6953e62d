"""Where the answer for a key may be before a call is made for it: a cache, and places behind. Those of a task have a
memory too (`column_places`).

Places behind (`KnownAnswers`), such as a Redis or a journal, are asked by a source (`asking`), because that takes time.
Law L14: a key that one place knows touches no later one. This module knows neither calls nor waiters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from asyncio_operator.arrow.key_identity import identity
from asyncio_operator.figures import Figures
from asyncio_operator.lookup.key_batch import ONE_CALL, Answer, Calls
from asyncio_operator.state.entries import ABSENT

if TYPE_CHECKING:
    from asyncio_operator.lookup.cache import AnyCache
    from asyncio_operator.lookup.known import KnownAnswers, NotedKeys


class Places:
    """The places of one lookup.

    Args:
        cache, known: the cache, and the places behind, after those behind the cache.
        timed: outcomes say where they came from and how long they took (`Answer`).
    """

    def __init__(
        self, figures: Figures, cache: AnyCache | None = None, known: Sequence[KnownAnswers] = (), timed: bool = False
    ) -> None:
        self.figures = figures  # Of the run. A key that came with its batch is a hit of a journal.
        # Called with a key whose cached answer is old, if the cache refreshes.
        self.refresh: Callable[[Any], object] | None = None
        # All places behind. They are asked (`asking`) before calls are made, and learn the answers of calls.
        self.known = known = known if cache is None else (*cache.known, *known)
        self.keeps = cache is not None or bool(known)  # Whether an answer is kept beyond the task.
        # Whether answers in the cache survive the process, so that one has to be there as soon as it has come.
        self.survives = cache is not None and not cache.in_memory
        self._cache: Any = cache
        # Whether old answers are refreshed in the background.
        self.refreshes = cache is not None and cache.options.refresh_after is not None
        self._timed = timed
        # A journal, and the keys whose answers it has already.
        self._keeper: KnownAnswers | None = None
        self._kept: NotedKeys | None = None
        for one in known:
            if cache is not None and one.keeps is not None:
                self._keeper, self._kept = one, cache.noted_in(one.keeps)

    # -- before a call

    def get(self, key: Any) -> Any:
        """The answer of the cache for one key, or ABSENT."""
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
        """The name of a key of a call."""
        return identity(key)

    def clear(self) -> None:
        """The run has ended."""

    # -- after a call

    def learn(
        self, keys: Sequence[Any], answers: Sequence[Any], outcomes: Sequence[Any], calls: Calls = ONE_CALL
    ) -> None:
        """Calls have given these answers."""
        self._learn(keys, answers, outcomes, calls)
        for known in self.known:
            known.learn(keys, answers, calls)
        if self._kept is not None:
            for key in keys:
                self._kept.add(key)

    def _learn(self, keys: Any, answers: Any, outcomes: Any, calls: Calls) -> None:
        if self._cache is not None:
            for key, answer in zip(keys, answers, strict=True):
                self._cache.put(key, answer)

    def found(self, keys: Sequence[Any], answers: Sequence[Any], source: str, awaited: bool = True) -> list[Any]:
        """A place behind has these answers, for which rows wait or not. Returns the outcomes."""
        outcomes = [Answer(answer, source, 0, None) for answer in answers] if self._timed else list(answers)
        hits = len(keys) if awaited else 0
        if source == "cache":
            self.figures.cache_hits += hits
        else:
            self.figures.journal_hits += hits
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
