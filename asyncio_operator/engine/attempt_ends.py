"""What follows from the end of an attempt: another one, after a back-off, or the outcome of the element.

The elements that wait here are looked at when their back-off is over, and at their limits. Whether there is another
attempt, and when, says the user's `Retry`, whose hooks run in contexts of their own (law O17). This module starts no
call.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextvars import copy_context
from math import inf
from typing import Any

from asyncio_operator.engine.contracts import Endings, Keys
from asyncio_operator.engine.failures import attempt_timeout_error, element_error, ends_the_run, is_ordinary
from asyncio_operator.engine.flights import SLACK, Flight
from asyncio_operator.engine.recorder import Recorder
from asyncio_operator.engine.schedule import Schedule
from asyncio_operator.engine.timing import COARSEST, Alarm
from asyncio_operator.engine.waits import Waits
from asyncio_operator.errors import FunctionError, count_kind
from asyncio_operator.metrics import Histogram
from asyncio_operator.policies.retry import Retry

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
        clock: gives the seconds of the loop.
        news: called when there may be something to start.
        fail: ends the run with an error.

    Attributes:
        waits: the elements in back-off, and the limits of those that wait for a place in a call.
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
        clock: Callable[[], float],
        news: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.waits = Waits()
        self.latency = Histogram()
        self.errors: Counter[str] = Counter()
        self._endings = endings
        self._schedule = schedule
        self._retries = retries
        self._keys = keys
        self._recorder = recorder
        self._attempt_timeout = attempt_timeout
        self._now = clock
        self._news = news
        self._fail = fail
        self._alarm = Alarm(asyncio.get_running_loop(), clock, self._ring)

    def stop(self) -> None:
        """From now on no element ends."""
        self._alarm.cancel()
        self.waits.clear()

    def result(self, flight: Flight, result: Any, now: float) -> None:
        """An attempt has given a result."""
        self._recorder.attempt_ended(flight, "result", now)
        attempts = flight.attempts + 1
        if self._retries is not None:
            try:
                start = self._retries.after_result(flight, result, now)
            except FunctionError:
                self._endings.failures += 1
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
            kind = count_kind(self.errors, error)
            logger.debug("attempt %d of an element failed with %s", flight.attempts, kind)
            self._back_off(flight, start, now)

    def _back_off(self, flight: Flight, start: float, now: float) -> None:
        """Wait for the next attempt, which starts at this time."""
        flight.call = None
        self._recorder.backing_off(flight, now, start)
        self.waits.back_off(flight, start)
        self.set_alarm()

    def _end(self, flight: Flight, now: float, end: Callable[..., str], *outcome: Any) -> None:
        """Give the element its outputs, by `end`, which says how."""
        try:
            how = end(flight if flight.entry is None else flight.entry, *outcome)
        except BaseException:
            self._recorder.completed(flight, "failed", now)
            raise
        self._schedule.ended(flight)
        flight.call = None
        self.latency.add(now - flight.admitted)
        self._recorder.completed(flight, how, now)
        if flight.entry is None:
            self._recorder.emitted(None, flight, now)
        # An end may free a key, end the run, or leave no element that could join a batch: else the seeker sleeps on.
        if self._keys is not None or not self._schedule.unfinished or self._schedule.forming:
            self._news()

    def look(self, now: float, overdue_by: float) -> None:
        """Handle the elements whose back-off is over, and those that have waited past their limit."""
        for flight in self.waits.overdue(overdue_by):
            if flight.split:
                flight.split = False
                self.pass_limit(flight, now)
            else:
                self.overdue(flight, now)
        for flight in self.waits.ready(now):
            if flight.deadline < now:
                self.overdue(flight, now)
            else:
                self.waits.watch(flight, flight.deadline)
                # Law Q7: calls of one key never overlap, so the next attempt waits for a call that was cut.
                flight.held = self._keys is not None and flight.late > 0
                if not flight.held:
                    self._schedule.again(flight)

    def set_alarm(self, earliest: float = -inf) -> None:
        """Look at the elements that wait when the next of them is due, and not before `earliest`."""
        due = max(self.waits.next_due(), earliest)
        self._alarm.set(due) if due < inf else self._alarm.cancel()

    def _ring(self) -> None:
        now = self._now()
        try:
            self.look(now, now)
        except BaseException as error:
            # Raised here it would go to the loop's handler of exceptions, and the run would wait for ever.
            self._fail(error)
            return
        self.set_alarm(now + COARSEST)
        self._news()
