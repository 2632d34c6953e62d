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
from typing import TYPE_CHECKING, Any

from asyncio_operator.engine.contracts import Endings, Keys
from asyncio_operator.engine.failures import attempt_timeout_error, element_error, ends_the_run, is_ordinary
from asyncio_operator.engine.flights import SLACK, Flight
from asyncio_operator.engine.recorder import Recorder
from asyncio_operator.engine.schedule import Schedule
from asyncio_operator.errors import FunctionError, count_kind
from asyncio_operator.policies.retry import Retry

if TYPE_CHECKING:
    from asyncio_operator.engine.timers import Timers

logger = logging.getLogger("asyncio_operator.calls")


class Retries:
    """Whether an element gets another attempt after one that failed or gave an unsatisfactory result, and when.

    Args:
        random: gives a number in [0, 1), for the jitter of back-offs.
    """

    def __init__(self, retry: Retry, random: Callable[[], float]) -> None:
        self._retry = retry
        self._random = random
        self._context = copy_context()

    def after_error(self, flight: Flight, error: BaseException, now: float) -> float | None:
        """When the element's next attempt starts; None if there is none. Its `attempts` include the failed one."""
        if not is_ordinary(error) or ends_the_run(error) or not self._retry.retries(error):
            return None
        return self._next_start(flight, error, now)

    def after_result(self, flight: Flight, result: Any, now: float) -> float | None:
        """The same for a result. An attempt that is made again counts as failed.

        Raises:
            FunctionError: `retry.if_result` failed.
        """
        if self._retry.if_result is None:
            return None
        try:
            again = self._context.copy().run(self._retry.unsatisfied, result)
        except BaseException as error:
            remedy = "make it return whether to try again"
            raise element_error("retry.if_result", flight.value, error, remedy, flight.attempts + 1) from error
        if not again:
            return None
        flight.attempts += 1
        return self._next_start(flight, None, now)

    def _next_start(self, flight: Flight, error: BaseException | None, now: float) -> float | None:
        deadline = None if flight.deadline == inf else flight.deadline
        return self._retry.next_start(flight.attempts, error, now, deadline, self._random)


class AttemptEnds:
    """Decides for the elements of a run.

    Args:
        attempt_timeout: seconds that an attempt may take, or infinity.
        timers: of the run.
        news: called when there may be something to start.

    Attributes:
        backing_off: elements that wait for their next attempt.
        latency: seconds from the admission of an element to its outcome.
        errors: by type, those after which there was another attempt.
    """

    def __init__(
        self,
        endings: Endings,
        schedule: Schedule,
        retries: Retries | None,
        keys: Keys | None,
        recorder: Recorder,
        *,
        attempt_timeout: float,
        timers: Timers,
        news: Callable[[], None],
    ) -> None:
        self.backing_off = 0
        self._endings = endings
        self._figures = endings.figures
        self._schedule = schedule
        self._retries = retries
        self._keys = keys
        self._recorder = recorder
        self._attempt_timeout = attempt_timeout
        self._timers = timers
        self._news = news
        self._stopped = False

    def stop(self) -> None:
        """From now on no element ends."""
        self._stopped = True
        self.backing_off = 0

    def result(self, flight: Flight, result: Any, now: float) -> None:
        """An attempt has given a result."""
        self._recorder.attempt_ended(flight, "result", now)
        attempts = flight.attempts + 1
        if self._retries is not None:
            try:
                start = self._retries.after_result(flight, result, now)
            except FunctionError:
                self._figures.failures += 1
                raise
            if start is not None:
                self._back_off(flight, start, now)
                return
        self._end(flight, now, self._endings.complete, result, attempts)

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
        """An attempt for these elements has failed."""
        for flight in flights:
            self._recorder.attempt_ended(flight, "error", now, error)
            self._judge(flight, error, now)

    def _judge(self, flight: Flight, error: BaseException, now: float) -> None:
        """An attempt has failed: wait for the next, or end the element with its error."""
        flight.attempts += 1
        start = None if self._retries is None else self._retries.after_error(flight, error, now)
        if start is None:
            self._end(flight, now, self._endings.failed, error, flight.attempts)
        else:
            kind = count_kind(self._figures.errors, error)
            logger.debug("attempt %d of an element failed with %s", flight.attempts, kind)
            self._back_off(flight, start, now)

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
