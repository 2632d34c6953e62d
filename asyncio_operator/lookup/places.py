"""Where the answer for a key may be before a call is made for it: a cache, and places behind. Those of a task have a
memory too (`column_places`).

Places behind (`KnownAnswers`), such as a Redis or a journal, are asked by a source (`asking`), because that takes time.
Law L14: a key that one place knows touches no later one. This module knows neither calls nor waiters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from asyncio_operator.arrow.key_identity import identity
from asyncio_operator.figures import Figures
from asyncio_operator.lookup.key_batch import ONE_CALL, Answer, Calls
from asyncio_operator.state.entries import ABSENT

if TYPE_CHECKING:
    from asyncio_operator.lookup.cache import AnyCache

MOST_JOURNALS = 4  # Journals of which a cache knows the keys: those that were used last.

MOST: Final = 500_000
"""Keys of `NotedKeys`: about 60 MB. A key that is forgotten is written once more, which changes no answer."""

HELD: Any = object()  # Instead of an answer of `renew`: another worker looks the key up.


class KnownAnswers(ABC):
    """A place with answers. All methods are called on the loop of the run."""

    source: str  # What the outcomes say of where they came from.
    keeps: str | None = None  # A name for where it keeps answers of caches too; None: it does not.

    @property
    @abstractmethod
    def most(self) -> int:
        """The maximum number of keys in the next question."""

    @abstractmethod
    async def find(self, keys: Sequence[Any]) -> Sequence[Any]:
        """The answers for canonical keys, aligned with them: as `AnswerCheck` returns them, or ABSENT."""

    async def renew(self, keys: Sequence[Any]) -> Sequence[Any]:
        """The same for keys whose old answer is to be replaced: a new answer, `HELD`, or ABSENT to call for it."""
        return [ABSENT] * len(keys)

    @abstractmethod
    def learn(self, keys: Sequence[Any], answers: Sequence[Any], calls: Calls = ONE_CALL) -> None:
        """Calls have given these answers. It must not take long: writing goes on in the background."""

    @property
    def has_room(self) -> bool:
        """Whether calls may be made, because their answers can be kept. It is asked before each call."""
        return True

    async def room(self) -> None:
        """Wait until there is room. What it raises ends the run."""

    def keep(self, key: Any, answer: Any, came: float) -> bool:
        """Keep an answer of a cache or of another place, for which no call was made. Returns whether there is room.

        Args:
            came: when it came from the source, in seconds since the epoch.
        """
        return True

    @abstractmethod
    async def flush(self) -> None:
        """Write what was learnt. The run has ended. It limits its own time."""

    async def close(self) -> None:
        """Disconnect. A place of a cache is kept with it from run to run until then."""


class NotedKeys:
    """The keys of a cache that were used last, and whose answers a journal has already: an answer of the cache is
    written once."""

    @classmethod
    def of(cls, cache: AnyCache, journal: str) -> NotedKeys:
        """Those of a journal with this name."""
        noted = cache.noted[journal] = cache.noted.pop(journal, None) or cls(cache.options.max_rows)
        if len(cache.noted) > MOST_JOURNALS:
            del cache.noted[next(iter(cache.noted))]
        return noted

    def __init__(self, most: int) -> None:
        self._most = min(most, MOST)
        self._names: OrderedDict[Any, bool] = OrderedDict()

    def add(self, key: Any) -> bool:
        """Note that a canonical key is used. Returns whether it is new."""
        name = _name(key)
        is_new = self._names.pop(name, True)
        self._names[name] = False
        if len(self._names) > self._most:
            self._names.popitem(last=False)
        return is_new

    def remove(self, key: Any) -> None:
        """Forget a key."""
        self._names.pop(_name(key), None)


def _name(key: Any) -> Any:
    """What is held of a key: of text a hash of 64 bits. If two texts have the same hash, one answer is not written."""
    return hash(key) if type(key) is str else identity(key)


class Places:
    """The places of one lookup.

    Args:
        check: converts answers to the form that is kept and returned, or raises what is wrong with one.
        cache, known: the cache, and the places behind, after those behind the cache.
        timed: outcomes say where they came from and how long they took (`Answer`).
    """

    def __init__(
        self,
        figures: Figures,
        check: Any,
        cache: AnyCache | None = None,
        known: Sequence[KnownAnswers] = (),
        timed: bool = False,
    ) -> None:
        self.check = check
        self.figures = figures  # Of the run. A key that came with its batch is a hit of a journal.
        # Called with a key whose cached answer is old, if the cache refreshes.
        self.refresh: Callable[[Any], object] | None = None
        # All places behind. They are asked (`asking`) before calls are made, and learn the answers of calls.
        self.known = known = known if cache is None else (*cache.known, *known)
        self.keeps = cache is not None or bool(known)  # Whether an answer is kept beyond the task.
        # Whether answers in the cache survive the process, so that one has to be there as soon as it has come.
        self.survives = cache is not None and cache.options.store == "rocksdb"
        self._cache: Any = cache
        # Whether old answers are refreshed in the background.
        self.refreshes = cache is not None and cache.options.refresh_after is not None
        self._timed = timed
        # A journal, and the keys whose answers it has already.
        self._keeper: KnownAnswers | None = None
        self._kept: NotedKeys | None = None
        for one in known:
            if cache is not None and one.keeps is not None:
                self._keeper, self._kept = one, NotedKeys.of(cache, one.keeps)

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
        if self.refreshes and self.refresh is not None and self._cache.is_old(key):
            self.refresh(key)

    def stale(self, key: Any) -> Any:
        """An old answer that may take the place of an error, or ABSENT."""
        return ABSENT if self._cache is None else self._cache.stale(key)

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
        if not keeper.keep(key, answer, cache.came(key)):
            kept.remove(key)
