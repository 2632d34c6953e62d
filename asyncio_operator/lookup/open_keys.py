"""The table of open keys: those that are called for, so that others may wait for their outcomes; and what the end of a
flight means for them.

A key is open for a flight, of a `Lookup`, of an element of an operator with a cache, or of a refresh; or for a batch of
keys, which get a flight each only if their call is in trouble (`open_batch`). Law L2: concurrent lookups of one key
make one call, and its error goes to all who wait and is not kept. Law L6: an old answer is refreshed in the background,
by one call, and an expired one may replace a failure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from asyncio_operator.arrow.key_identity import identity
from asyncio_operator.engine.failures import ends_the_run, is_ordinary
from asyncio_operator.engine.flights import Call, Flight
from asyncio_operator.errors import ElementTimeoutError, ResultError, count_kind, describe
from asyncio_operator.lookup.answers import check_failure
from asyncio_operator.lookup.key_batch import IN_COLUMNS, Answer, Calls, Failure
from asyncio_operator.lookup.key_batch import shared as as_shared
from asyncio_operator.quota.usage import COUNTED
from asyncio_operator.state.entries import ABSENT
from asyncio_operator.telemetry.annotations import answered_with

if TYPE_CHECKING:
    from asyncio_operator.engine.gate import Parts
    from asyncio_operator.enricher import Enricher
    from asyncio_operator.lookup.options import LookupOptions
    from asyncio_operator.lookup.places import Places


class OpenKey(Flight):
    """The flight of a key."""

    __slots__ = ("handed", "key", "latency", "name", "refreshing")

    def __init__(self, entry: Any, value: Any, admitted: float, attempts: int = 0) -> None:
        super().__init__(entry, value, admitted, attempts)
        self.key: Any = value  # What its answer is kept by.
        self.name: Any = None  # Its place in the table; None if no other caller can wait for it.
        self.refreshing = False  # Whether it was opened for an old answer, and not for a waiter.
        self.handed = False  # Whether it has been handed out to be called for.
        self.latency: float | None = None  # Seconds of its call, if they are in the figures already.

    @property
    def element(self) -> Any:
        """As an entry of a queue has it."""
        return self.value


class OpenKeys:
    """The open keys of a run.

    Args:
        name_of: gives the name of a canonical key.
    """

    def __init__(self, parts: Parts, name_of: Callable[[Any], Any] = identity) -> None:
        self.figures = parts.figures
        # Flights of refreshes, and of the keys of a `Lookup`. A source takes them before others.
        self.background: deque[OpenKey] = deque()
        self.running: dict[Any, OpenKey] = {}  # By the names of their keys.
        self.batches: dict[Any, None] = {}  # Open ones, whose keys are called for too, in the order of the input.
        self.name_of = name_of
        self._now = parts.timers.clock
        self._recorder = parts.recorder

    def opened(self, value: Any, now: float) -> OpenKey:
        """A flight, which is not in the table."""
        flight = OpenKey(None, value, now)
        self._recorder.admitted(flight)
        return flight

    def enter(self, flight: OpenKey, key: Any, name: Any) -> None:
        """From now on others may wait for this flight."""
        flight.key, flight.name = key, name
        self.running[name] = flight

    def join(self, name: Any, waiter: Any, position: Any) -> bool:
        """Wait for a call that already runs for the key, if there is one."""
        flight = self.running.get(name)
        # One that has ended is still here if its key was changed meanwhile: see `forget`.
        if flight is None or flight.ended:
            return False
        # The first waiter of a refresh shares its call with no other waiter.
        self.figures.shared += flight.awaited
        flight.waiters.append((waiter, position))
        return True

    def refresh(self, key: Any, value: Any) -> None:
        """Call in the background for a key whose answer is old."""
        # Law L6: no refresh while a call for the key runs, which will bring a new answer anyway.
        name = self.name_of(key)
        if name not in self.running and not any(one.waits_for(name) for one in self.batches):
            flight = self.opened(value, self._now())
            flight.refreshing = True
            self.enter(flight, key, name)
            self.background.append(flight)

    def forget(self, flight: OpenKey) -> None:
        """Remove a flight from the table, if the hash of its key still finds it."""
        # A user may have changed a mutable key. It then stays in the table, and `join` sees that it has ended.
        if flight.name is None:
            return
        # Not `contextlib.suppress`, which takes three times as long as the rest: this runs for every key.
        try:
            if self.running.get(flight.name) is flight:
                del self.running[flight.name]
        except Exception:
            pass


class PendingKeys(OpenKeys):
    """The keys with a flight, and the figures of lookups that have ended.

    It is the `Endings` of `Attempts`, which reports here how the flight of a key has ended.

    Args:
        single: see `LookupPipeline`.
    """

    def __init__(
        self, enricher: Enricher, options: LookupOptions, places: Places, parts: Parts, *, single: bool
    ) -> None:
        super().__init__(parts, places.name)
        self.places = places
        places.refresh = lambda key: self.refresh(key, key)
        self._enricher = enricher
        self._options = options
        self._timed = options.timed
        self.check = places.check
        self._single = single

    def ask(self, key: Any, waiter: Any, position: Any) -> None:
        """Wait for a key that is in no place, with others if a call for it already runs."""
        name = self.name_of(key)
        if not self.join(name, waiter, position):
            pending = self.want(key, waiter, position)
            self.enter(pending, key, name)
            self.background.append(pending)

    def want(self, key: Any, waiter: Any, position: Any) -> OpenKey:
        """A flight for a key that has one waiter, and that no other one can join."""
        pending = self.opened(key, self._now())
        pending.waiters.append((waiter, position))
        return pending

    def leave(self, key: Any, position: Any) -> OpenKey | None:
        """One stops waiting. Returns a flight that was handed out, to be abandoned, if none is left. A refresh goes
        on."""
        pending = self.running.get(self.name_of(key))
        if pending is None:
            return None
        pending.waiters = [one for one in pending.waiters if one[1] is not position]
        if pending.waiters or pending.refreshing:
            return None
        self.forget(pending)
        if pending.handed:
            return pending
        pending.ended = True
        return None

    def end_all(self, outcome: Any) -> None:
        """Give all waiters this outcome."""
        for pending in list(self.running.values()):
            self._end(pending, outcome)

    def found(self, pending: OpenKey, answer: Any, source: str) -> None:
        """The key is known in a place behind. No call was made for it."""
        outcomes = self.places.found((pending.value,), (answer,), source, pending.awaited)
        self.end_uncalled(pending, outcomes[0])
        self.places.refresh_if_old(pending.value)

    # -- how flights end

    def complete(self, pending: OpenKey, answer: Any, attempts: int) -> str:
        try:
            # In columns it has been checked with its whole table.
            answer = answer.answer() if self._single and hasattr(answer, "table") else self.check(answer)
        except ResultError as error:
            if self._single:
                cause, error = error, ResultError(f"the answer for key {describe(pending.value)} is invalid: {error}")
                error.__cause__ = cause
            if pending.call is not None:
                answered_with(error, pending.call.http_status)
            return self.failed(pending, error, attempts)
        call, latency = pending.call, self._latency(pending)
        attempts += pending.copies
        outcome = answer
        if self._timed:
            outcome = Answer(answer, "call", attempts, latency, None, None if call is None else call.http_status)
        # Before the waiters get it: one that asks again at once has to find it.
        latency = self._now() - (pending.started if pending.begun is None else pending.begun)
        calls = Calls(attempts, (latency,), (weights_of(call),))
        self.places.learn([pending.value], [answer], [outcome], calls)
        self._end(pending, outcome)
        return "result"

    def outcomes(
        self, keys: Sequence[Any], answers: Sequence[Any], calls: Calls
    ) -> tuple[Sequence[Any], list[Answer] | None]:
        """What `KeyBatch.store` takes of keys whose first calls have given these answers, as `check` returns them,
        which places learn."""
        reports = None
        if self._timed:
            in_columns = hasattr(answers, "table")
            bare = repeat(IN_COLUMNS, len(answers)) if in_columns else answers
            about = zip(bare, calls.latencies, calls.http_statuses, strict=False)
            reports = [Answer(answer, "call", 1, latency, None, status) for answer, latency, status in about]
        self.places.learn(keys, answers, reports or answers, calls)
        return answers, reports

    def end_uncalled(self, pending: OpenKey, outcome: Any) -> None:
        """No call is made for the key."""
        pending.ended = True
        now = self._now()
        self._recorder.completed(pending, "result", now)
        self._recorder.emitted(None, pending, now)
        self._end(pending, outcome)

    def timed_out(self, pending: OpenKey, attempts: int) -> str:
        self.figures.timeouts += 1
        error = ElementTimeoutError(
            f"the lookup of key {describe(pending.value)} gave no answer within its timeout of {self._options.timeout} "
            "s; raise timeout= if healthy answers take as long"
        )
        return self.failed(pending, error, attempts, None)

    def failed(self, pending: OpenKey, error: BaseException, attempts: int, again: bool | None = False) -> str:
        self.figures.failures += 1
        count_kind(self.figures.errors, error)
        latency = self._latency(pending)
        outcome: Any = None
        hidden = is_ordinary(error) and not ends_the_run(error)
        if hidden and (answer := self.places.stale(pending.value)) is not ABSENT:
            stale = Answer(answer, "stale", attempts + pending.copies, latency, error)
            self._end(pending, stale if self._timed else answer)
            return "result"
        # A refresh that fails concerns no row, so it must not end the run: the old answer stays.
        if pending.waiters or not hidden:
            check_failure(self._enricher, self._options, pending.value, error, attempts, again)
            outcome = Failure(error, latency, again is None, attempts + pending.copies)
        self._end(pending, outcome)
        return "timeout" if again is None else "failed"

    def _end(self, pending: OpenKey, outcome: Any) -> None:
        # First: a waiter may ask for the key again when it gets the outcome, and that is a new lookup.
        self.forget(pending)
        for waiter, position in pending.waiters:
            waiter.answer(position, outcome)
            outcome = as_shared(outcome)

    def _latency(self, pending: OpenKey) -> float:
        if pending.latency is not None:
            return pending.latency
        latency = self._now() - pending.started
        self.figures.latency.add(latency)
        return latency


def weights_of(call: Call | None) -> Mapping[str, float] | None:
    """What each key weighed in a call, which says what all of them weighed together."""
    if call is None or call.weights is None:
        return None
    estimates = {} if call.billed is False else call.weights
    weighed = {unit: amount for unit, amount in estimates.items() if unit not in COUNTED} | (call.settled or {})
    return {unit: amount / call.count for unit, amount in weighed.items()} or None
