"""The keys that are being looked up, and their waiters. A key is searched in the cache, then here, and then called for.

A key that needs a call is a flight of `Attempts`, with retries, batches, limits and one deadline. It has a list of its
waiters: the row that started the call, and the rows that asked for the key while the call was running.

Laws: L1 (the order: cache, share, batch, call), L2 (concurrent lookups of one key make one call; its error goes to all
waiters and is not kept), L6 (an old answer is refreshed in the background, by one call; an expired answer may replace a
failure).

This module does not know where keys come from, and neither batches nor calls: sources (`managed`, `client`) hand out
the flights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from asyncio_operator.arrow.key_identity import identity
from asyncio_operator.engine.failures import ends_the_run, is_ordinary
from asyncio_operator.engine.flights import Flight
from asyncio_operator.engine.recorder import SILENT, Recorder
from asyncio_operator.errors import ResultError
from asyncio_operator.lookup.key_batch import PENDING, Answer, KeyBatch
from asyncio_operator.lookup.key_batch import shared as as_shared
from asyncio_operator.lookup.key_failures import KeyFailures
from asyncio_operator.lookup.memory import Memory
from asyncio_operator.lookup.noted_keys import NotedKeys
from asyncio_operator.state.cells import ABSENT

if TYPE_CHECKING:
    from asyncio_operator.lookup.cache import LookupCache
    from asyncio_operator.lookup.known import KnownAnswers


class Waiter(Protocol):
    """Waits for outcomes. Each belongs to one of its positions."""

    def answer(self, position: int, outcome: Any) -> None:
        """Receives the outcome for a position."""


class PendingKey(Flight):
    """A key that is being looked up, and its waiters. A key that is only refreshed has none.

    There is one object per called key and no object inside it, because many keys are in flight at a time.
    """

    __slots__ = ("name", "others", "position", "refreshing", "waiter")

    def __init__(self, key: Any, name: Any, number: int, now: float, refreshing: bool = False) -> None:
        super().__init__(None, key, number, now, 0)
        self.name = name
        self.refreshing = refreshing
        self.waiter: Waiter | None = None
        self.position = 0
        self.others: list[tuple[Waiter, int]] | None = None

    @property
    def awaited(self) -> bool:
        return self.waiter is not None

    def add(self, waiter: Waiter, position: int) -> None:
        if self.waiter is None:
            self.waiter, self.position = waiter, position
        elif self.others is None:
            self.others = [(waiter, position)]
        else:
            self.others.append((waiter, position))

    def remove(self, waiter: Waiter) -> None:
        others = [one for one in self.others or () if one[0] is not waiter]
        if self.waiter is waiter:
            self.waiter, self.position = others.pop(0) if others else (None, 0)
        self.others = others or None


class PendingKeys:
    """The keys that are being looked up, and the figures of lookups that have ended.

    It is the `Endings` of `Attempts`, which reports here how the flight of a key has ended.

    Args:
        timed: outcomes say where they came from and how long they took (`Answer`).
        check: converts an answer to the form that is cached and returned, or raises what is wrong with it.
        known: places that note the answers of calls.

    Attributes:
        figures: of the run. A key that came with its batch is a hit of a journal.
        background: flights of refreshes. A source takes them before others.
    """

    def __init__(
        self,
        failures: KeyFailures,
        cache: LookupCache | None,
        memories: Sequence[Memory] = (),
        *,
        timed: bool,
        check: Callable[[Any, Any], Any] | None = None,
        recorder: Recorder = SILENT,
        known: Sequence[KnownAnswers] = (),
    ) -> None:
        self.figures = failures.figures
        self.background: deque[Flight] = deque()
        self._key_failures = failures
        self._cache = cache
        # Rows are noted in the first, misses in the last: behind a cache each has a time of its own.
        self._memories = memories
        self._timed = timed
        self._check = check
        self._recorder = recorder
        self._known = known
        # A journal, and the keys whose answers it has already.
        self._keeper: KnownAnswers | None = None
        self._kept: NotedKeys | None = None
        for one in known:
            if cache is not None and one.keeps is not None:
                self._keeper, self._kept = one, cache.noted_in(one.keeps)
        self._numbered = 0
        self._running: dict[Any, PendingKey] = {}

    def recall(self, batch: KeyBatch) -> Sequence[int]:
        """Set the outcomes of the keys that are in the cache or, without one, that the task remembers. Returns the
        positions of the others."""
        if batch.known:
            return self._recall_others(batch)
        keys, cache = batch.keys, self._cache
        if cache is not None:
            return self._recall_cached(batch, cache)
        asked = self._memories[0].recall(batch) if self._memories else None
        if asked is None:
            return range(len(keys))
        self.figures.shared += len(keys) - len(asked)
        return asked

    def _recall_others(self, batch: KeyBatch) -> Sequence[int]:
        """The same for a batch that came with some outcomes, which stay."""
        self.figures.journal_hits += batch.known
        others = [i for i, outcome in enumerate(batch.outcomes) if outcome is PENDING]
        unknown = KeyBatch([batch.keys[i] for i in others], 0)
        asked = self.recall(unknown)
        for i, outcome in zip(others, unknown.outcomes, strict=True):
            batch.outcomes[i] = outcome
        return [others[i] for i in asked]

    def _recall_cached(self, batch: KeyBatch, cache: LookupCache) -> Sequence[int]:
        if cache.refreshes:
            # Each hit may begin a call.
            return range(len(batch.keys))
        outcomes = cache.get_many(batch.keys, PENDING)
        asked = [i for i, outcome in enumerate(outcomes) if outcome is PENDING]
        self.figures.cache_hits += len(outcomes) - len(asked)
        if self._kept is not None:
            for key, outcome in zip(batch.keys, outcomes, strict=True):
                if outcome is not PENDING:
                    self._keep(key, outcome)
        if self._timed:
            outcomes = [one if one is PENDING else Answer(one, "cache", 0, None) for one in outcomes]
        batch.outcomes = outcomes
        return asked

    def cached(self, key: Any, now: float) -> Any:
        """The cached or remembered outcome for a key, or ABSENT. Starts a refresh if one is due."""
        cache = self._cache
        if cache is None:
            # `recall` has searched the memory; only later answers can be new.
            return self._remembered(key) if self._memories and self._memories[0].answered else ABSENT
        answer = cache.get(key)
        if answer is ABSENT:
            return self._remembered(key)
        self.figures.cache_hits += 1
        if self._kept is not None:
            self._keep(key, answer)
        if cache.refreshes:
            self._refresh(key, cache, now)
        return Answer(answer, "cache", 0, None) if self._timed else answer

    def _remembered(self, key: Any) -> Any:
        """The outcome that the task remembers for a key, or ABSENT."""
        for memory in self._memories:
            if (outcome := memory.recall_one(key, ABSENT)) is not ABSENT:
                self.figures.shared += 1
                return outcome
        return ABSENT

    def _refresh(self, key: Any, cache: LookupCache, now: float) -> None:
        """Start a refresh of a cached answer that is old enough."""
        # Law L6: no refresh while a call for the key runs, which will bring a new answer anyway.
        if cache.is_old(key) and (name := identity(key)) not in self._running:
            self.background.append(self._want(key, name, now, refreshing=True))

    def ask(self, key: Any, waiter: Waiter, position: int, now: float) -> Flight | None:
        """Wait for a key that is not in the cache. Returns its flight, or None if a call for it already runs."""
        name = identity(key)
        pending = self._running.get(name)
        # One that has ended is still here if its key was changed meanwhile: see `_forget`.
        if pending is not None and not pending.ended:
            # The first waiter of a refresh shares its call with no other waiter.
            self.figures.shared += pending.waiter is not None
            pending.add(waiter, position)
            return None
        pending = self._want(key, name, now)
        pending.waiter, pending.position = waiter, position
        return pending

    def _want(self, key: Any, name: Any, now: float, refreshing: bool = False) -> PendingKey:
        pending = self._running[name] = PendingKey(key, name, self._numbered, now, refreshing)
        self._numbered += 1
        self._recorder.admitted(pending)
        return pending

    def leave(self, key: Any, waiter: Waiter) -> Flight | None:
        """The waiter stops waiting. Returns the flight, to be abandoned, if none is left. A refresh goes on."""
        pending = self._running.get(identity(key))
        if pending is None:
            return None
        pending.remove(waiter)
        if pending.waiter is not None or pending.refreshing:
            return None
        self._forget(pending)
        return pending

    def _keep(self, key: Any, answer: Any) -> None:
        """Give a journal an answer that no call brought, once. By law J2 a job that runs again makes no call, and a
        cache may be gone by then."""
        kept, keeper, cache = self._kept, self._keeper, self._cache
        if kept is None or keeper is None or cache is None or not kept.add(key):
            return
        if not keeper.keep(key, answer, cache.came(key)):
            kept.remove(key)

    def end_all(self, outcome: Any) -> None:
        """Give all waiters this outcome."""
        for pending in list(self._running.values()):
            self._end(pending, outcome)

    # -- how flights end

    def complete(self, pending: PendingKey, answer: Any, attempts: int) -> str:
        if self._check is not None:
            try:
                answer = self._check(pending.value, answer)
            except ResultError as error:
                return self._fail(pending, error, attempts)
        latency = self._latency(pending)
        outcome = Answer(answer, "call", attempts + pending.copies, latency) if self._timed else answer
        # Before the waiters get it: one that asks again at once has to find it. The memory first, so
        # that it never counts an answer as younger than the cache does.
        if self._memories:
            self._memories[-1 if answer is None else 0].note(pending.value, outcome)
        if self._cache is not None:
            self._cache.put(pending.value, answer)
        for known in self._known:
            latency, weights = self._of_last_call(pending), _weights(pending)
            known.note(pending.value, answer, attempts + pending.copies, latency, weights)
        if self._kept is not None:
            self._kept.add(pending.value)
        self._end(pending, outcome)
        return "result"

    def found(self, pending: PendingKey, answer: Any, source: str) -> None:
        """An answer that is known elsewhere. No call was made for the key."""
        outcome = Answer(answer, source, 0, None) if self._timed else answer
        # An answer from a store behind the cache is older than it looks here. Only the cache knows its age, so only the
        # cache keeps it.
        if self._memories and self._cache is None:
            self._memories[0].note(pending.value, outcome)
        if self._keeper is not None and source != self._keeper.source:
            self._keep(pending.value, answer)
        self._end_uncalled(pending, outcome)
        if self._cache is not None and self._cache.refreshes:
            self._refresh(pending.value, self._cache, self._key_failures.now())

    def drop(self, pending: PendingKey) -> None:
        """End a refresh without an answer: no row waits for it."""
        self._end_uncalled(pending, None)

    def _end_uncalled(self, pending: PendingKey, outcome: Any) -> None:
        pending.ended = True
        now = self._key_failures.now()
        self._recorder.completed(pending, "result", now)
        self._recorder.emitted(None, pending, now)
        self._end(pending, outcome)

    def failed(self, pending: PendingKey, error: BaseException, attempts: int) -> str:
        return self._fail(pending, error, attempts)

    def timed_out(self, pending: PendingKey, attempts: int) -> str:
        return self._fail(pending, self._key_failures.timeout_error(pending.value), attempts, timed_out=True)

    def _fail(self, pending: PendingKey, error: BaseException, attempts: int, timed_out: bool = False) -> str:
        self.figures.failures += 1
        latency = self._latency(pending)
        outcome: Any = None
        hidden = is_ordinary(error) and not ends_the_run(error)
        if self._cache is not None and hidden:
            answer = self._cache.stale(pending.value)
            if answer is not ABSENT:
                self._key_failures.count(error)
                stale = Answer(answer, "stale", attempts + pending.copies, latency, error)
                self._end(pending, stale if self._timed else answer)
                return "result"
        # A refresh that fails concerns no row, so it must not end the run: the old answer stays.
        if pending.waiter is not None or not hidden:
            outcome = self._key_failures.failure(pending.value, error, pending.started, attempts, timed_out)
            outcome.attempts += pending.copies
        else:
            self._key_failures.count(error)
        self._end(pending, outcome)
        return "timeout" if timed_out else "failed"

    def _end(self, pending: PendingKey, outcome: Any) -> None:
        # First: a waiter may ask for the key again when it gets the outcome, and that is a new lookup.
        self._forget(pending)
        if pending.waiter is not None:
            pending.waiter.answer(pending.position, outcome)
            for waiter, position in pending.others or ():
                waiter.answer(position, as_shared(outcome))

    def _forget(self, pending: PendingKey) -> None:
        """Remove a key from the running ones, if its hash still finds it."""
        # A user may have changed a mutable key. It then stays in the dictionary, and `ask` sees that it has ended.
        # Not `contextlib.suppress`, which takes three times as long as the rest: this runs for every key.
        try:  # noqa: SIM105
            self._running.pop(pending.name, None)
        except Exception:
            pass

    def _of_last_call(self, pending: PendingKey) -> float:
        """Seconds since the start of the last attempt."""
        return self._key_failures.now() - (pending.started if pending.begun is None else pending.begun)

    def _latency(self, pending: PendingKey) -> float:
        latency = self._key_failures.now() - pending.started
        self.figures.latency.add(latency)
        return latency


def _weights(pending: PendingKey) -> Mapping[str, float] | None:
    """What a key weighed in its call, which says what all of its keys weighed together."""
    call = pending.call
    if call is None or not call.weighed:
        return None
    return {unit: amount / len(call.flights) for unit, amount in call.weighed.items()}
