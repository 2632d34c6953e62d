"""The managed way: keys go through the cache, then to a call that is running for them already, then to a call.

A key that needs a call is a flight of `Attempts`, with retries, batches, limits and one deadline, and knows whom to
tell the outcome: who asked first, and those who asked while it was on its way.

Laws: L1 (the order: cache, share, batch, call), L2 (concurrent lookups of one key make one call, whose error goes to
all who wait and is kept nowhere), L6 (an old answer is refreshed in the background, once; a failure may be covered by
an answer that has expired).
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from asyncio_operator.errors import ResultError
from asyncio_operator.flights import Flight
from asyncio_operator.keys import identity
from asyncio_operator.lookup.cache import LookupCache
from asyncio_operator.lookup.keys import Told
from asyncio_operator.lookup.keys import shared as as_shared
from asyncio_operator.lookup.outcomes import KeyOutcomes
from asyncio_operator.metrics import Histogram
from asyncio_operator.outcomes import is_ordinary
from asyncio_operator.recorder import SILENT, Recorder
from asyncio_operator.state.cells import ABSENT


class Asker(Protocol):
    """Who wants outcomes, each for a position of his own."""

    def answer(self, position: int, outcome: Any) -> None:
        """The outcome for a position."""


class Wanted(Flight):
    """A key that is being looked up, and who waits for it: nobody, if it is only refreshed.

    It is one object for each key that is called for, and holds none other, because there are many of them at a time.
    """

    __slots__ = ("asker", "name", "others", "position", "refreshing")

    def __init__(self, key: Any, name: Any, number: int, now: float, refreshing: bool = False) -> None:
        super().__init__(None, key, number, now, 0)
        self.name = name
        self.refreshing = refreshing
        self.asker: Asker | None = None
        self.position = 0
        self.others: list[tuple[Asker, int]] | None = None

    def add(self, asker: Asker, position: int) -> None:
        if self.asker is None:
            self.asker, self.position = asker, position
        elif self.others is None:
            self.others = [(asker, position)]
        else:
            self.others.append((asker, position))

    def remove(self, asker: Asker) -> None:
        others = [one for one in self.others or () if one[0] is not asker]
        if self.asker is asker:
            self.asker, self.position = others.pop(0) if others else (None, 0)
        self.others = others or None


class Calls:
    """The keys that are being looked up; what becomes of elements, for `Attempts`.

    Args:
        told: outcomes say how they were come by.
        check: gives an answer as it is to be kept and handed out, or raises what is wrong with it.

    Attributes:
        latency: seconds from the start of a key's first call to its outcome.
        failures: lookups that failed.
        cache_hits: answers from the cache.
        shared: outcomes of a call that somebody else had asked for.
        background: flights of refreshes, to be taken before others.
    """

    def __init__(
        self,
        outcomes: KeyOutcomes,
        cache: LookupCache | None,
        *,
        told: bool,
        check: Callable[[Any, Any], Any] | None = None,
        recorder: Recorder = SILENT,
    ) -> None:
        self.latency = Histogram()
        self.cache_hits = 0
        self.failures = 0
        self.shared = 0
        self.background: deque[Flight] = deque()
        self._outcomes = outcomes
        self._cache = cache
        self._told = told
        self._check = check
        self._recorder = recorder
        self._wanted = 0
        self._running: dict[Any, Wanted] = {}

    def cached(self, key: Any, now: float) -> Any:
        """The outcome that the cache has for a key, or ABSENT; starts a refresh if that is due."""
        cache = self._cache
        if cache is None:
            return ABSENT
        answer = cache.get(key)
        if answer is ABSENT:
            return ABSENT
        self.cache_hits += 1
        if cache.refreshes and cache.is_old(key) and (name := identity(key)) not in self._running:
            self.background.append(self._want(key, name, now, refreshing=True))
        return Told(answer, "cache", 0, None) if self._told else answer

    def ask(self, key: Any, asker: Asker, position: int, now: float) -> Flight | None:
        """Wait for the outcome of a key that is not in the cache; gives its flight, if nobody asks for it already."""
        name = identity(key)
        wanted = self._running.get(name)
        if wanted is not None and not wanted.ended:
            self.shared += wanted.asker is not None
            wanted.add(asker, position)
            return None
        wanted = self._want(key, name, now)
        wanted.asker, wanted.position = asker, position
        return wanted

    def _want(self, key: Any, name: Any, now: float, refreshing: bool = False) -> Wanted:
        wanted = self._running[name] = Wanted(key, name, self._wanted, now, refreshing)
        self._wanted += 1
        self._recorder.admitted(wanted)
        return wanted

    def leave(self, key: Any, asker: Asker) -> Flight | None:
        """The asker waits no more; gives the flight, if nobody does now, to be abandoned. A refresh goes on."""
        wanted = self._running.get(identity(key))
        if wanted is None:
            return None
        wanted.remove(asker)
        if wanted.asker is not None or wanted.refreshing:
            return None
        self._forget(wanted)
        return wanted

    def end_all(self, outcome: Any) -> None:
        """Give everybody who waits this outcome."""
        for wanted in list(self._running.values()):
            self._end(wanted, outcome)

    # -- what becomes of flights

    def complete(self, wanted: Wanted, answer: Any, attempts: int) -> str:
        if self._check is not None:
            try:
                answer = self._check(wanted.value, answer)
            except ResultError as error:
                return self._fail(wanted, error, attempts)
        if self._cache is not None:
            self._cache.put(wanted.value, answer)
        latency = self._latency(wanted)
        self._end(wanted, Told(answer, "call", attempts, latency) if self._told else answer)
        return "result"

    def failed(self, wanted: Wanted, error: BaseException, attempts: int) -> str:
        return self._fail(wanted, error, attempts)

    def timed_out(self, wanted: Wanted, attempts: int) -> str:
        return self._fail(wanted, self._outcomes.timeout_error(wanted.value), attempts, timed_out=True)

    def _fail(self, wanted: Wanted, error: BaseException, attempts: int, timed_out: bool = False) -> str:
        self.failures += 1
        latency = self._latency(wanted)
        outcome: Any = None
        if self._cache is not None and is_ordinary(error):
            answer = self._cache.stale(wanted.value)
            if answer is not ABSENT:
                told = Told(answer, "stale", attempts, latency, error)
                self._end(wanted, told if self._told else answer)
                return "result"
        if wanted.asker is not None or not is_ordinary(error):
            outcome = self._outcomes.failure(wanted.value, error, wanted.started, attempts, timed_out)
        self._end(wanted, outcome)
        return "timeout" if timed_out else "failed"

    def _end(self, wanted: Wanted, outcome: Any) -> None:
        self._forget(wanted)
        if wanted.asker is not None:
            wanted.asker.answer(wanted.position, outcome)
            for asker, position in wanted.others or ():
                asker.answer(position, as_shared(outcome))

    def _forget(self, wanted: Wanted) -> None:
        """A key whose hash has changed stays behind, and is known by having ended."""
        with contextlib.suppress(Exception):
            self._running.pop(wanted.name, None)

    def _latency(self, wanted: Wanted) -> float:
        latency = self._outcomes.now() - wanted.started
        self.latency.add(latency)
        return latency
