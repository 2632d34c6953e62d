"""The managed way from the input to the lanes: which call starts next, and what follows from its end.

What may start is asked for by a lane that is free, and looked for in this order: halves of a batch that failed,
elements whose back-off is over, then new ones (`supply`). When there is nothing, the one lane that seeks waits for the
first news: input, room, an element that is due, a key, or the rate limit. An element in back-off holds no lane.

Laws: no attempt starts past its element's deadline (R3); an element that waits for a place ends at its deadline (R2);
the halves of a batch belong to its attempt (B4); a key is free when its record has ended and every call for it has
returned (Q7). What the policies decide is in `policies`, what an outcome means in `outcomes`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from asyncio_operator.batch_former import BatchFormer
from asyncio_operator.buffer import Buffer, wake
from asyncio_operator.errors import ElementTimeoutError, ResultError, describe
from asyncio_operator.flights import Call, Flight, Waits
from asyncio_operator.guards import Guards
from asyncio_operator.metrics import Histogram
from asyncio_operator.outcomes import Outcomes, function_error, is_ordinary
from asyncio_operator.policies.batching import Batching, splits
from asyncio_operator.policies.retry import Retry
from asyncio_operator.recorder import Recorder
from asyncio_operator.supply import Supply

if TYPE_CHECKING:
    from asyncio_operator.lanes import Lanes

SLACK = 1e-6
"""Seconds by which a deadline may be missed through rounding: a call's limit and an element's deadline are sums and
differences of the same times."""


@dataclass(frozen=True, slots=True)
class Attempting:
    """How often and when calls are made: options of the operator, durations in seconds."""

    timeout: float | None = None
    attempt_timeout: float | None = None
    retry: Retry | None = None
    batching: Batching | None = None


class Attempts:
    """The intake of the lanes, and its one window.

    Args:
        clock: gives seconds.
        random: gives a number in [0, 1).

    Attributes:
        driver: the lanes; to be set before they run.
    """

    def __init__(
        self,
        buffer: Buffer,
        supply: Supply,
        outcomes: Outcomes,
        options: Attempting,
        guards: Guards,
        recorder: Recorder,
        *,
        instant: bool,
        clock: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self.lanes = 0
        self.instant = instant
        self.retries = 0
        self.latency = Histogram()
        self.driver: Lanes
        self._buffer = buffer
        self._supply = supply
        self._keyed = supply.keyed
        self._outcomes = outcomes
        self._retry = options.retry
        self._timeout = inf if options.timeout is None else options.timeout
        self._attempt_timeout = inf if options.attempt_timeout is None else options.attempt_timeout
        self._guards = guards
        self._recorder = recorder
        self._now = clock
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._unfinished = 0
        self._waits = Waits()
        self._due: deque[Flight] = deque()
        self._halves: deque[Call] = deque()
        self._former = None if options.batching is None else BatchFormer(options.batching, self._choose_one)
        self._next: tuple[Call, Any] | None = None
        self._try_again = inf
        self._news: asyncio.Future[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def backing_off(self) -> int:
        """Elements that wait for their next attempt."""
        return self._waits.backing_off

    def close(self) -> None:
        """The run is over."""
        if self._alarm is not None:
            self._alarm.cancel()

    # -- the intake of the lanes

    async def window(self) -> Attempts | None:
        while (next_call := self._start()) is None:
            if self._supply.over and not self._unfinished:
                return None
            await self._wait()
        self._next = next_call
        return self

    async def _wait(self) -> None:
        """Wait until there may be something to start."""
        if self._supply.wants_input:
            self._supply.read_ahead(lambda: wake(self._news))
        if self._former is not None and self._former.turning:
            await asyncio.sleep(0)
            self._former.turned()
            return
        news = self._news = self._loop.create_future()
        at = self._try_again
        timer = self._loop.call_at(self._on_loop(at), wake, news) if at < inf else None
        try:
            await self._buffer.wait(news)
        finally:
            self._news = None
            if timer is not None:
                timer.cancel()

    def __iter__(self) -> Iterator[tuple[Call, Any]]:
        return iter(self._take, None)

    def _take(self) -> tuple[Call, Any] | None:
        if (next_call := self._next) is not None:
            self._next = None
            return next_call
        return self._start()

    def _start(self) -> tuple[Call, Any] | None:
        """The call that starts now, and what it is called with; None if none may."""
        guards = self._guards
        self._supply.wants_input = False
        while True:
            now = self._now()
            self._try_again = guards.next_start(now)
            if self._try_again > now:
                return None
            self._try_again = inf
            call = self._choose(now)
            if call is None:
                return None
            refusal = guards.refusal(now)
            self._recorder.circuit(guards.circuit, now)
            if refusal is None:
                guards.started(now)
                flights = call.present
                return call, flights[0].value if self._former is None else [flight.value for flight in flights]
            self.begin(call, now)
            for flight in call.present:
                self._attempt_failed(flight, refusal, now)

    def _choose(self, now: float) -> Call | None:
        while self._halves:
            half = self._halves.popleft()
            half.present = [flight for flight in half.present if not flight.ended]
            if half.present:
                return half
        if self._former is None:
            flight = self._choose_one(now)
            return None if flight is None else Call([flight])
        batch = self._former.batch(now, self._need_not_wait)
        if batch is None and len(self._former):
            self._try_again = self._former.closes
        return None if batch is None else Call(batch)

    def _choose_one(self, now: float) -> Flight | None:
        while self._due:
            flight = self._due.popleft()
            if not flight.ended:
                return flight
        new = self._supply.take(now)
        if new is not None:
            self._unfinished += 1
        return new

    def _need_not_wait(self) -> bool:
        """Whether no other element can come to the batch that is being formed."""
        if self._buffer.is_full():
            return True
        elsewhere = self._unfinished > len(self._former or ()) and (self._retry is not None or self._keyed is not None)
        return self._supply.over and not elsewhere

    # -- the window: what a call comes to

    def begin(self, call: Call, started: float) -> float:
        """A call starts; the seconds that it may take."""
        call.started = started
        for flight in call.present:
            self._waits.leave(flight)
            if not call.half:
                self._begin(flight, started)
        return self._limit(call) - started

    def _begin(self, flight: Flight, now: float) -> None:
        if flight.begun is None:
            flight.deadline = now + self._timeout
        if flight.attempts:
            self.retries += 1
        flight.begun = now
        self._recorder.attempt_started(flight, now)

    def _limit(self, call: Call) -> float:
        """When the call has to be looked at: the first deadline of its elements, or the end of their attempt."""
        return min([min(flight.deadline, (flight.begun or 0.0) + self._attempt_timeout) for flight in call.present])

    def complete(self, call: Call, result: Any) -> None:
        now = self._now()
        self._guards.succeeded(now, call.started)
        self.returned(call)
        flights = call.present
        if self._former is None:
            self._result(flights[0], result, now)
        elif isinstance(result, Sequence) and not isinstance(result, str | bytes) and len(result) == len(flights):
            for flight, one in zip(flights, result, strict=True):
                self._result(flight, one, now)
        else:
            shape = f"{len(result)} results" if isinstance(result, Sequence) else f"{type(result).__name__}"
            error = ResultError(
                f"invoke_batch gave {shape} for {len(flights)} values; it must give a sequence with one result for "
                "each, in their order"
            )
            for flight in flights:
                self._attempt_failed(flight, error, now)

    def _result(self, flight: Flight, result: Any, now: float) -> None:
        self._recorder.attempt_ended(flight, "result", now)
        if self._retry is not None and self._retry.if_result is not None:
            try:
                again = self._retry.unsatisfied(result)
            except Exception as error:
                remedy = "make it say whether the result will not do"
                raise function_error("retry.if_result", flight.value, error, remedy, flight.attempts + 1) from error
            if again:
                flight.attempts += 1
                if self._back_off(flight, None, now):
                    return
        self._outcomes.complete(flight.entry, result)
        self._end(flight, "result", now)

    def failed(self, call: Call, error: BaseException, started: float) -> None:
        now = self._now()
        self._guards.failed(now, started, error)
        self._recorder.circuit(self._guards.circuit, now)
        self.returned(call)
        flights = call.present
        if len(flights) > 1 and isinstance(error, Exception) and splits(error):
            middle = len(flights) // 2
            for half in (flights[:middle], flights[middle:]):
                self._halves.append(Call(half, half=True))
                for flight in half:
                    self._waits.guard(flight)
            self._set_alarm()
            wake(self._news)
            return
        for flight in flights:
            self._attempt_failed(flight, error, now)

    def timed_out(self, call: Call, started: float) -> float | None:
        now = self._now()
        going_on = []
        for flight in call.present:
            begun = flight.begun or 0.0
            if min(flight.deadline, begun + self._attempt_timeout) <= now + SLACK:
                call.late.append(flight)
                flight.late += 1
            else:
                going_on.append(flight)
        late = [flight for flight in call.present if flight not in going_on] if going_on else call.present
        call.present = going_on
        if not going_on:
            self._guards.failed(now, started, None)
            self._recorder.circuit(self._guards.circuit, now)
        for flight in late:
            if self._keyed is not None:
                self._keyed.hold(flight.entry)  # type: ignore[arg-type]
            self._pass_limit(flight, now)
        return self._limit(call) - started if going_on else None

    def _pass_limit(self, flight: Flight, now: float) -> None:
        self._recorder.attempt_ended(flight, "timed_out", now)
        if flight.deadline <= now + SLACK:
            self._outcomes.timed_out(flight.entry, flight.attempts + 1)
            self._end(flight, "timeout", now)
            return
        error = ElementTimeoutError(
            f"attempt {flight.attempts + 1} for element {describe(flight.value)} had no result within attempt_timeout="
            f"{self._attempt_timeout} s"
        )
        self._judge(flight, error, now)

    def returned(self, call: Call) -> None:
        """The call is over."""
        self._guards.returned()
        if self._guards.limit is not None:
            self.driver.resize(self._guards.limit)
        for flight in call.late:
            flight.late -= 1
            self._recorder.call_returned(flight, self._now())
            if self._keyed is not None and not flight.late:
                self._keyed.release(flight.entry)  # type: ignore[arg-type]
                wake(self._news)

    def value_of(self, call: Call) -> Any:
        values = [flight.value for flight in call.present or call.late]
        return values[0] if self._former is None else values

    def left(self) -> None:
        """There is nothing to do: the queue knows what is complete."""

    # -- attempts

    def _attempt_failed(self, flight: Flight, error: BaseException, now: float) -> None:
        self._recorder.attempt_ended(flight, "error", now, error)
        self._judge(flight, error, now)

    def _judge(self, flight: Flight, error: BaseException, now: float) -> None:
        """An attempt has failed: wait for the next, or end the element with its error."""
        flight.attempts += 1
        again = is_ordinary(error) and self._retry is not None and self._retry.retries(error)
        if again and self._back_off(flight, error, now):
            return
        try:
            skipped = self._outcomes.failed(flight.entry, error, flight.attempts)
        except BaseException:
            self._recorder.completed(flight, "failed", now)
            raise
        self._end(flight, "skipped" if skipped else "failed", now)

    def _back_off(self, flight: Flight, error: BaseException | None, now: float) -> bool:
        """Whether there is another attempt; if so, wait for it."""
        assert self._retry is not None
        deadline = None if flight.deadline == inf else flight.deadline
        start = self._retry.next_start(flight.attempts, error, now, deadline, self._random)
        if start is None:
            return False
        self._recorder.backing_off(flight, now, start)
        self._waits.back_off(flight, start)
        self._set_alarm()
        return True

    def _end(self, flight: Flight, how: Any, now: float) -> None:
        """The element has its outputs."""
        self._unfinished -= 1
        self.latency.samples.append(now - flight.admitted)
        self._recorder.completed(flight, how, now)
        if self._keyed is not None or not self._unfinished or self._former:
            wake(self._news)

    # -- waits

    def _set_alarm(self, earliest: float = 0.0) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        due = self._waits.next_due()
        self._alarm = None if due is None else self._loop.call_at(self._on_loop(max(due, earliest)), self._ring)

    def _ring(self) -> None:
        now = self._now()
        ready, overdue = self._waits.due(now)
        try:
            for flight in overdue:
                self._outcomes.timed_out(flight.entry, flight.attempts)
                self._end(flight, "timeout", now)
        except BaseException as error:
            self.driver.fail(error)
            return
        for flight in ready:
            self._due.append(flight)
            self._waits.guard(flight)
        # A loop with a coarse clock may wake too early; a millisecond is the coarsest of them.
        self._set_alarm(now + 0.001)
        wake(self._news)

    def _on_loop(self, at: float) -> float:
        """The loop's time for one of the run's clock."""
        return self._loop.time() + (at - self._now())
