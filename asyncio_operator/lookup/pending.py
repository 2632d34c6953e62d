"""Keys that are looked up and have a flight, and their waiters: what the end of a flight means for them.

The keys of a batch get a flight only if their call is in trouble (`key_source`). Those of a `Lookup` have one each,
because each may be abandoned, and so have refreshes of a cache. A flight has a list of its waiters: the row that
started the call, and those that asked for the key while the call was running.

Laws: L2 (concurrent lookups of one key make one call; its error goes to all waiters and is not kept), L6 (an old answer
is refreshed in the background, by one call; an expired answer may replace a failure).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from asyncio_operator.arrow.key_identity import identity
from asyncio_operator.budget.usage import COUNTED
from asyncio_operator.engine.failures import ends_the_run, is_ordinary
from asyncio_operator.engine.flights import Call, Flight
from asyncio_operator.engine.recorder import SILENT, Recorder
from asyncio_operator.errors import ResultError
from asyncio_operator.lookup.key_batch import Answer
from asyncio_operator.lookup.key_batch import shared as as_shared
from asyncio_operator.lookup.key_failures import KeyFailures
from asyncio_operator.state.cells import ABSENT
from asyncio_operator.telemetry.annotations import answered_with

if TYPE_CHECKING:
    from asyncio_operator.lookup.places import Places


class Waiter(Protocol):
    """Waits for outcomes. Each belongs to one of its positions."""

    def answer(self, position: int, outcome: Any) -> None:
        """Receives the outcome for a position."""


class PendingKey(Flight):
    """A key that is being looked up, and its waiters. A key that is only refreshed has none.

    Attributes:
        name: its place among the running keys; None if no other waiter can join it.
        handed: whether it has been handed out to be called for.
    """

    __slots__ = ("handed", "name", "others", "position", "refreshing", "waiter")

    def __init__(self, key: Any, name: Any, number: int, now: float, refreshing: bool = False) -> None:
        super().__init__(None, key, number, now, 0)
        self.name = name
        self.refreshing = refreshing
        self.handed = False
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
    """The keys with a flight, and the figures of lookups that have ended.

    It is the `Endings` of `Attempts`, which reports here how the flight of a key has ended.

    Args:
        timed: outcomes say where they came from and how long they took (`Answer`).
        check: converts an answer to the form that is cached and returned, or raises what is wrong with it.

    Attributes:
        figures: of the run.
        background: flights of refreshes. A source takes them before others.
        awaits: whether a batch waits for a key, which then has no flight.
    """

    def __init__(
        self,
        failures: KeyFailures,
        places: Places,
        *,
        timed: bool,
        check: Callable[[Any, Any], Any] | None = None,
        recorder: Recorder = SILENT,
    ) -> None:
        self.figures = failures.figures
        self.background: deque[PendingKey] = deque()
        self.awaits: Callable[[Any], bool] = lambda _key: False
        self.places = places
        places.refresh = self._refresh
        self._key_failures = failures
        self._timed = timed
        self._check = check
        self._recorder = recorder
        self._numbered = 0
        self._running: dict[Any, PendingKey] = {}

    def _refresh(self, key: Any) -> None:
        # Law L6: no refresh while a call for the key runs, which will bring a new answer anyway.
        if (name := identity(key)) not in self._running and not self.awaits(key):
            self.background.append(self._want(key, name, self._key_failures.now(), refreshing=True))

    def ask(self, key: Any, waiter: Waiter, position: int, now: float) -> PendingKey | None:
        """Wait for a key that is in no place. Returns its flight, or None if a call for it already runs."""
        name = identity(key)
        if self.join(name, waiter, position):
            return None
        pending = self._want(key, name, now)
        pending.waiter, pending.position = waiter, position
        return pending

    @property
    def are_running(self) -> bool:
        """Whether there are calls that another waiter may join."""
        return bool(self._running)

    def want(self, key: Any, waiter: Waiter, position: int) -> PendingKey:
        """A flight for a key that has one waiter, and that no other one can join."""
        pending = self._want(key, None, self._key_failures.now())
        pending.waiter, pending.position = waiter, position
        return pending

    def join(self, name: Any, waiter: Waiter, position: int) -> bool:
        """Wait for a call that already runs for the key, if there is one."""
        pending = self._running.get(name)
        # One that has ended is still here if its key was changed meanwhile: see `_forget`.
        if pending is None or pending.ended:
            return False
        # The first waiter of a refresh shares its call with no other waiter.
        self.figures.shared += pending.waiter is not None
        pending.add(waiter, position)
        return True

    def _want(self, key: Any, name: Any, now: float, refreshing: bool = False) -> PendingKey:
        pending = PendingKey(key, name, self._numbered, now, refreshing)
        if name is not None:
            self._running[name] = pending
        self._numbered += 1
        self._recorder.admitted(pending)
        return pending

    def leave(self, key: Any, waiter: Waiter) -> PendingKey | None:
        """The waiter stops waiting. Returns the flight, to be abandoned, if none is left. A refresh goes on."""
        pending = self._running.get(identity(key))
        if pending is None:
            return None
        pending.remove(waiter)
        if pending.waiter is not None or pending.refreshing:
            return None
        self._forget(pending)
        return pending

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
                if pending.call is not None:
                    answered_with(error, pending.call.http_status)
                return self._fail(pending, error, attempts)
        latency = self._latency(pending)
        attempts += pending.copies
        outcome = answer
        if self._timed:
            status = None if pending.call is None else pending.call.http_status
            outcome = Answer(answer, "call", attempts, latency, None, status)
        # Before the waiters get it: one that asks again at once has to find it.
        latency, weights = self._of_last_call(pending), weights_of(pending.call)
        self.places.learn((pending.value,), (answer,), (outcome,), attempts, latency, weights)
        self._end(pending, outcome)
        return "result"

    def learn(self, keys: Sequence[Any], outcomes: Sequence[Any]) -> None:
        """First calls have given these outcomes, which are kept in no cache."""
        self.places.learn(keys, outcomes, outcomes, 1, 0.0)

    def outcomes(
        self,
        keys: Sequence[Any],
        answers: Sequence[Any],
        latency: float,
        weights: Mapping[str, float] | None = None,
        http_status: int | None = None,
    ) -> Sequence[Any] | None:
        """The outcomes of the keys of one first call; None if an answer has to be judged with its key alone."""
        if self._check is not None:
            try:
                answers = list(map(self._check, keys, answers))
            except ResultError:
                return None
        if len(keys) == 1:
            self.figures.latency.add(latency)
        else:
            self.figures.latency.add_many(latency, len(keys))
        outcomes = answers
        if self._timed:
            outcomes = [Answer(answer, "call", 1, latency, None, http_status) for answer in answers]
        self.places.learn(keys, answers, outcomes, 1, latency, weights)
        return outcomes

    def found(self, pending: PendingKey, answer: Any, source: str) -> None:
        """An answer that is known elsewhere. No call was made for the key."""
        self._end_uncalled(pending, self.places.found(pending.value, answer, source))
        self.places.refresh_if_old(pending.value)

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
        if hidden and (answer := self.places.stale(pending.value)) is not ABSENT:
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
        if pending.name is None:
            return
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


def weights_of(call: Call | None) -> Mapping[str, float] | None:
    """What a key weighed in its call, which says what all of its keys weighed together."""
    if call is None or call.ticket is None:
        return None
    estimates = {} if call.ticket.billed is False else call.ticket.weights
    weighed = {unit: amount for unit, amount in estimates.items() if unit not in COUNTED} | (call.ticket.settled or {})
    return {unit: amount / call.count for unit, amount in weighed.items()} or None
