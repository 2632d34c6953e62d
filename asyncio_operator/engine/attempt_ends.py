"""What follows from the end of an attempt: another one, after a back-off, or the outcome of the element.

The elements that wait here are looked at when their back-off is over, and at their limits. Whether there is another
attempt, and when, says the user's `Retry`, whose hooks run in contexts of their own (law O17). This module starts no
call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import copy_context
from math import inf, nextafter
from random import random
from typing import TYPE_CHECKING, Any

from asyncio_operator.engine.contracts import Endings, Keys
from asyncio_operator.engine.failing_batches import FailingBatches
from asyncio_operator.engine.failures import attempt_timeout_error, element_error, ends_the_run, is_ordinary
from asyncio_operator.engine.flights import SLACK, Flight
from asyncio_operator.engine.recorder import Recorder
from asyncio_operator.engine.schedule import Schedule
from asyncio_operator.errors import count_kind
from asyncio_operator.policies.batching import splits

if TYPE_CHECKING:
    from asyncio_operator.engine.options import CallOptions
    from asyncio_operator.engine.timers import Timers

logger = logging.getLogger("asyncio_operator.calls")


class AttemptEnds:
    """Decides for the elements of a run.

    Args:
        timers: of the run.
        news: called when there may be something to start.

    Attributes:
        backing_off: elements that wait for their next attempt.
    """

    def __init__(
        self,
        endings: Endings,
        schedule: Schedule,
        options: CallOptions,
        keys: Keys | None,
        recorder: Recorder,
        failing: FailingBatches,
        timers: Timers,
        news: Callable[[], None],
    ) -> None:
        self.backing_off = 0
        self._endings = endings
        self._figures = endings.figures
        self._schedule = schedule
        self._retry = options.retry
        self._context = copy_context()
        self._keys = keys
        self._recorder = recorder
        self._failing = failing
        self._attempt_timeout = inf if options.attempt_timeout is None else options.attempt_timeout
        self._timers = timers
        self._news = news
        self._stopped = False

    def stop(self) -> None:
        """From now on no element ends."""
        self._stopped = True
        self.backing_off = 0

    def is_satisfied(self, value: Any, result: Any, attempts: int = 1) -> bool:
        """Whether the result of an attempt is the last one.

        Raises:
            FunctionError: `retry.if_result` failed.
        """
        if self._retry is None or self._retry.if_result is None:
            return True
        try:
            return not self._context.copy().run(self._retry.unsatisfied, result)
        except BaseException as error:
            self._figures.failures += 1
            remedy = "make it return whether to try again"
            raise element_error("retry.if_result", value, error, remedy, attempts) from error

    def result(self, flight: Flight, result: Any, now: float, satisfied: bool | None) -> None:
        """An attempt has given a result. `satisfied` says whether it is the last one, if that is known."""
        self._recorder.attempt_ended(flight, "result", now)
        attempts, start = flight.attempts + 1, None
        if satisfied is None:
            satisfied = self.is_satisfied(flight.value, result, attempts)
        if not satisfied:
            flight.attempts = attempts
            start = self._next_start(flight, None, now)
        if start is None:
            self._end(flight, now, self._endings.complete, result, attempts)
        else:
            self._back_off(flight, start, now)

    def pass_limit(self, flight: Flight, now: float) -> None:
        """An attempt has reached the element's deadline, or its own limit."""
        self._recorder.attempt_ended(flight, "timed_out", now)
        if flight.deadline <= now + SLACK:
            self._end(flight, now, self._endings.timed_out, flight.attempts + 1)
            return
        self._judge(flight, attempt_timeout_error(flight.value, flight.attempts + 1, self._attempt_timeout), now)

    def overdue(self, flight: Flight, now: float) -> None:
        """An element has reached its deadline, and no attempt runs for it."""
        self._end(flight, now, self._endings.timed_out, flight.attempts)

    def failed(self, flights: list[Flight], error: BaseException, now: float) -> None:
        """A call for these elements has failed: each half of them is called, or their attempt has failed."""
        if len(flights) > 1 and isinstance(error, Exception) and splits(error):
            # Law B4: the halves belong to this attempt, so its limit goes on while they wait for a place.
            self._schedule.split(flights)
            self._failing.divided(flights, error)
            for flight in flights:
                flight.call = None
                self.watch(flight, flight.limit(self._attempt_timeout))
            self._news()
            return
        self._failing.failed(flights)
        self.fail(flights, error, now)

    def fail(self, flights: list[Flight], error: BaseException, now: float) -> None:
        """An attempt for these elements has failed."""
        for flight in flights:
            self._recorder.attempt_ended(flight, "error", now, error)
            self._judge(flight, error, now)

    def _judge(self, flight: Flight, error: BaseException, now: float) -> None:
        """An attempt has failed: wait for the next, or end the element with its error."""
        flight.attempts += 1
        start = None
        if self._retry is not None and is_ordinary(error) and not ends_the_run(error) and self._retry.retries(error):
            start = self._next_start(flight, error, now)
        if start is None:
            self._end(flight, now, self._endings.failed, error, flight.attempts)
        else:
            kind = count_kind(self._figures.errors, error)
            logger.debug("attempt %d of an element failed with %s", flight.attempts, kind)
            self._back_off(flight, start, now)

    def _next_start(self, flight: Flight, error: BaseException | None, now: float) -> float | None:
        """When the element's next attempt starts; None if there is none. Its `attempts` include the latest one."""
        assert self._retry is not None
        deadline = None if flight.deadline == inf else flight.deadline
        return self._retry.next_start(flight.attempts, error, now, deadline, random)

    def _back_off(self, flight: Flight, start: float, now: float) -> None:
        """Wait for the next attempt, which starts at this time."""
        flight.call = None
        self._recorder.backing_off(flight, now, start)
        flight.wakes = start
        self.backing_off += 1
        self._timers.set(start, self._wake, flight)

    def _end(self, flight: Flight, now: float, end: Callable[..., str], *outcome: Any) -> None:
        """Give the element its outputs, by `end`, which says how."""
        try:
            how = end(flight if flight.entry is None else flight.entry, *outcome)
        except BaseException:
            self._recorder.completed(flight, "failed", now)
            raise
        self._schedule.ended(flight)
        flight.call = None
        self._recorder.completed(flight, how, now)
        if flight.entry is None:
            self._recorder.emitted(None, flight, now)
        else:
            self._figures.latency.add(now - flight.admitted)
        # An end may free a key, end the run, or leave no element that could join a batch: else the seeker sleeps on.
        if self._keys is not None or not self._schedule.unfinished or self._schedule.forming:
            self._news()

    def watch(self, flight: Flight, until: float) -> None:
        """Watch the limit of an element that waits for a place in a call."""
        if until < inf:
            flight.wakes = until
            self._timers.set(until, self._pass_wait, flight)

    def leave(self, flight: Flight) -> None:
        """The element no longer waits for a place."""
        if flight.wakes < inf:
            self._timers.delete(flight.wakes, self._pass_wait, flight)
            flight.wakes = inf

    def forget(self, flight: Flight) -> None:
        """The element no longer waits, neither in back-off nor for a place."""
        if flight.wakes < inf and self._timers.delete(flight.wakes, self._wake, flight):
            self.backing_off -= 1
        self.leave(flight)

    def _wake(self, flight: Flight, now: float) -> None:
        """The back-off of an element is over."""
        flight.wakes = inf
        if self._stopped:
            return
        self.backing_off -= 1
        if flight.deadline < now:
            self.overdue(flight, now)
        else:
            # Law R3: an attempt may start at the deadline, and not after it.
            self.watch(flight, max(flight.deadline, nextafter(now, inf)))
            # Law Q7: calls of one key never overlap, so the next attempt waits for a call that was cut.
            flight.held = self._keys is not None and flight.late > 0
            if not flight.held:
                self._schedule.again(flight)
        self._news()

    def _pass_wait(self, flight: Flight, now: float) -> None:
        """An element has waited for a place until its limit."""
        flight.wakes = inf
        if self._stopped:
            return
        if flight.split:
            flight.split = False
            self.pass_limit(flight, now)
        else:
            self.overdue(flight, now)
        self._news()
