"""Keys that are looked up and have a flight: what the end of a flight means for those who wait for it.

The keys of a batch get a flight only if their call is in trouble (`key_source`). Those of a `Lookup` have one each,
because each may be abandoned, and so have refreshes of a cache.

Laws: L2 (the error of a call goes to all who wait for it, and is not kept), L6 (an expired answer may replace a
failure).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asyncio_operator.arrow.key_identity import identity
from asyncio_operator.budget.usage import COUNTED
from asyncio_operator.engine.failures import ends_the_run, is_ordinary
from asyncio_operator.engine.flights import Call, Flight
from asyncio_operator.engine.recorder import SILENT, Recorder
from asyncio_operator.errors import ResultError
from asyncio_operator.lookup.key_batch import Answer
from asyncio_operator.lookup.key_batch import shared as as_shared
from asyncio_operator.lookup.key_failures import KeyFailures
from asyncio_operator.lookup.open_keys import OpenKey, OpenKeys
from asyncio_operator.state.cells import ABSENT
from asyncio_operator.telemetry.annotations import answered_with

if TYPE_CHECKING:
    from asyncio_operator.lookup.places import Places


class PendingKeys(OpenKeys):
    """The keys with a flight, and the figures of lookups that have ended.

    It is the `Endings` of `Attempts`, which reports here how the flight of a key has ended, and the `Owner` of flights
    that wait for a call: each is its own position, and may be abandoned.

    Args:
        timed: outcomes say where they came from and how long they took (`Answer`).
        check: converts an answer to the form that is cached and returned, or raises what is wrong with it.
    """

    eager = True

    def __init__(
        self,
        failures: KeyFailures,
        places: Places,
        *,
        timed: bool,
        check: Callable[[Any, Any], Any] | None = None,
        recorder: Recorder = SILENT,
        name_of: Callable[[Any], Any] = identity,
    ) -> None:
        super().__init__(failures.figures, failures.now, recorder, name_of=name_of)
        self.places = places
        places.refresh = lambda key: self.refresh(key, key)
        self._key_failures = failures
        self._timed = timed
        self._check = check

    def ask(self, key: Any, waiter: Any, position: Any, now: float) -> OpenKey | None:
        """Wait for a key that is in no place. Returns its flight, or None if a call for it already runs."""
        name = self.name_of(key)
        if self.join(name, waiter, position):
            return None
        pending = self.opened(key, now)
        pending.waiters.append((waiter, position))
        self.enter(pending, key, name)
        return pending

    def want(self, key: Any, waiter: Any, position: int) -> OpenKey:
        """A flight for a key that has one waiter, and that no other one can join."""
        pending = self.opened(key, self._now())
        pending.waiters.append((waiter, position))
        return pending

    def leave(self, key: Any, position: Any) -> OpenKey | None:
        """One stops waiting. Returns the flight, to be abandoned, if none is left. A refresh goes on."""
        pending: OpenKey | None = self.running.get(self.name_of(key))
        if pending is None:
            return None
        pending.waiters = [one for one in pending.waiters if one[1] is not position]
        if pending.waiters or pending.refreshing:
            return None
        self.forget(pending)
        return pending

    def end_all(self, outcome: Any) -> None:
        """Give all waiters this outcome."""
        for pending in list(self.running.values()):
            self._end(pending, outcome)

    # -- the owner of flights

    def values(self, positions: Sequence[OpenKey]) -> Sequence[Any]:
        return [flight.value for flight in positions]

    def flights(self, positions: Sequence[OpenKey]) -> Sequence[Flight]:
        """They are handed out now, save those that were abandoned."""
        flights = [flight for flight in positions if not flight.ended]
        for flight in flights:
            flight.handed = True
        return flights

    def found(self, positions: Sequence[OpenKey], answers: Sequence[Any], source: str) -> None:
        """These keys are known in a place behind. No call was made for them."""
        for flight, answer in zip(positions, answers, strict=True):
            if not flight.ended:
                outcomes = self.places.found((flight.value,), (answer,), source, flight.awaited)
                self.end_uncalled(flight, outcomes[0])
                self.places.refresh_if_old(flight.value)

    # -- how flights end

    def complete(self, pending: OpenKey, answer: Any, attempts: int) -> str:
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
        call = pending.call
        latency = self._now() - (pending.started if pending.begun is None else pending.begun)
        weights = weights_of(call)
        self.places.learn((pending.value,), (answer,), (outcome,), attempts, latency, weights)
        self._end(pending, outcome)
        return "result"

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

    def end_uncalled(self, pending: OpenKey, outcome: Any) -> None:
        """No call is made for the key."""
        pending.ended = True
        now = self._now()
        self._recorder.completed(pending, "result", now)
        self._recorder.emitted(None, pending, now)
        self._end(pending, outcome)

    def failed(self, pending: OpenKey, error: BaseException, attempts: int) -> str:
        return self._fail(pending, error, attempts)

    def timed_out(self, pending: OpenKey, attempts: int) -> str:
        return self._fail(pending, self._key_failures.timeout_error(pending.value), attempts, timed_out=True)

    def _fail(self, pending: OpenKey, error: BaseException, attempts: int, timed_out: bool = False) -> str:
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
        if pending.waiters or not hidden:
            outcome = self._key_failures.failure(pending.value, error, pending.started, attempts, timed_out)
            outcome.attempts += pending.copies
        else:
            self._key_failures.count(error)
        self._end(pending, outcome)
        return "timeout" if timed_out else "failed"

    def _end(self, pending: OpenKey, outcome: Any) -> None:
        # First: a waiter may ask for the key again when it gets the outcome, and that is a new lookup.
        self.forget(pending)
        for waiter, position in pending.waiters:
            waiter.answer(position, outcome)
            outcome = as_shared(outcome)

    def _latency(self, pending: OpenKey) -> float:
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
