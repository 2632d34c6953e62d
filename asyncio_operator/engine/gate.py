"""The one gate of a run: whether a call may start now, and what its end means for all limits.

    next_start   when any call may start, as far as the rate limit and the capacity are concerned
    start        starts this call, if the circuit breaker and the budget let it; else when they do, or why it never may
    ended        it has returned, in time or late

To ask takes nothing, so a call that is not made after all loses no place. What the limits of a budget are is decided
behind `share.Reservation`.
"""

from __future__ import annotations

import contextlib
import threading
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from asyncio_operator.engine.flights import Call
from asyncio_operator.engine.recorder import SILENT, Recorder
from asyncio_operator.errors import BudgetExceeded, CircuitOpenError, CoordinatorError, ResultError, members, said
from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity, Controller
from asyncio_operator.policies.circuit_breaker import Breaker
from asyncio_operator.policies.rate_limit import LocalWindow
from asyncio_operator.policies.retry import asked_wait, refusal_wait
from asyncio_operator.quota.usage import COUNTED, ONE, FreeStarts, Hint, Weights, is_unbilled, weighing

if TYPE_CHECKING:
    from asyncio_operator.engine.options import Called, CallOptions
    from asyncio_operator.engine.timers import Timers
    from asyncio_operator.figures import Figures
    from asyncio_operator.policies.hedge import Hedger
    from asyncio_operator.quota.share import Reservation, Seat
    from asyncio_operator.quota.spec import Budget

REFUSED = (CircuitOpenError, BudgetExceeded, CoordinatorError, ResultError)
"""What `start` and `weights` raise about a call that may not start."""

REFUSALS = 100  # Refused calls in a row after which the loop turns, so that other code runs.


def only_counts(budget: Budget) -> bool:
    """Whether only starts and ends of calls matter to a budget: all weights are known before."""
    return not budget.spend and all(limit.unit in COUNTED for limit in budget.limits)


def is_overload(error: BaseException) -> bool:
    """Whether an error of a call says that the source has too much to do."""
    return any(isinstance(one, TimeoutError) for one in members(error)) or refusal_wait(error) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limited:
    """What limits a run, and is there before it and after it."""

    allowance: Reservation | None = None  # What the run may take of a budget; None: there is none.
    limiter: LocalWindow | None = None  # The window of the rate limit; None: a new one.
    hedger: Hedger | None = None  # Of an earlier run with the same `hedge`; None: a new one.
    # Returns the seconds by which the circuit breaker measures the age of failures, and how long it has been open;
    # None: the time of the loop.
    breaker_clock: Callable[[], float] | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """What the parts of a run have in common."""

    options: CallOptions
    called: Called
    limited: Limited
    timers: Timers  # Who has made them closes them.
    recorder: Recorder
    figures: Figures  # What the run counts.


class Gate:
    """The limits of one run: rate limit, circuit breaker, adaptive capacity and budget. Each may be missing.

    Args:
        news: called when a call may start that could not before.
        resize: called with how many calls may run when one has returned, if that is adaptive.
    """

    def __init__(self, parts: Parts, news: Callable[[], None], resize: Callable[[int], None]) -> None:
        options, called, limited, timers = parts.options, parts.called, parts.limited, parts.timers
        rate_limit, breaker, capacity = options.rate_limit, options.circuit_breaker, options.capacity
        # The number of running calls, including those past their limit, save those of whose end no limit has to hear.
        self.calls = 0
        self._limiter = limited.limiter
        if self._limiter is None and rate_limit is not None:
            self._limiter = LocalWindow(rate_limit)
        self.breaker = None if breaker is None else Breaker(breaker)  # The circuit breaker; None: there is none.
        self._controller = Controller(capacity) if isinstance(capacity, AdaptiveCapacity) else None
        self._breaker_clock = limited.breaker_clock or timers.clock
        self._recorder = None if parts.recorder is SILENT else parts.recorder
        self._allowance = limited.allowance
        self.weighs = self._allowance is not None  # Whether there is a budget.
        self.weights = weighing(called.name, called.weigh, (Exception, CancelledError))
        counts = not called.weigh and options.budget is not None and only_counts(options.budget)
        # With a clock of its own, the breaker has to know by that when a call started.
        # Whether a limit has to hear what calls say, so that each is a `Call`.
        self.listens = (self.weighs and not counts) or (breaker is not None and limited.breaker_clock is not None)
        hears = self.breaker is not None or self._controller is not None
        self.limits = hears or self.weighs or self._limiter is not None  # Whether there is any.
        # If it is the only limit, the window of the rate limit says it: one function less for each key.
        alone = self._limiter is not None and not (self.weighs or hears)
        # Starts a call for one value without an object, at the time that it is given, if it may start by then. It
        # returns when it may, as far as that is known, or raises `BudgetExceeded` or `CoordinatorError`.
        self.take: Callable[[float], float] = self._limiter.take if alone else self._take  # type: ignore[union-attr]
        # Called with the time, and the start of such a call that has given its result; None: no limit hears.
        self.answered = self._answered if hears else None
        # Calls for one value that may start without a question. When there is none left, `take` is asked.
        self.free = FreeStarts(heard=self.weighs)
        # Of the run, in the shares of its budget; None before the first call, or without a budget.
        self.seat: Seat | None = None
        self.now = timers.clock
        self._timers = timers
        self._news = news
        self._resize = resize
        # They count the seconds in which a call waited for the budget, and no other could start before it.
        self._figures = parts.figures
        self._waits_since: float | None = None
        self._thread = threading.get_ident()

    def next_start(self, now: float) -> float:
        """The earliest time, not before `now`, at which a call may start or is refused. Infinity: when one returns."""
        if self._controller is not None and self.calls >= self._controller.limit:
            return inf
        if self._limiter is None:
            return now
        breaker = self.breaker
        if breaker is not None and breaker.state != "closed" and breaker.refuses(self._breaker_clock()):
            # A call that is refused is not made, so it needs no token: its error must not wait for one.
            return now
        return self._limiter.next_start(now)

    def start(self, call: Call, now: float) -> float:
        """Start a call, if all limits let it. Returns when they do; see `next_start` and `Seat.take`. Weighed once.

        Raises:
            CircuitOpenError: it is refused.
            ResultError: it cannot be weighed.
            BudgetExceeded, CoordinatorError: see `Seat.take`.
        """
        if call.refusal is not None:
            # The budget has counted it.
            error, call.refusal = call.refusal, None
            raise error
        if (start := self.next_start(now)) > now:
            return start
        if self.weighs and call.weights is None:
            call.weights = self.weights(call.count, call.values)
        breaker = self.breaker
        if breaker is not None:
            # By the clock of the breaker, which compares it with the time at which it opened.
            age = call.age = self._breaker_clock()
            if breaker.state != "closed" and breaker.refuses(age):
                opens = breaker.opens_again_at
                when = "while another call tries it" if opens <= age else f"for another {opens - age:.3f} s"
                raise CircuitOpenError(f"the circuit breaker refuses calls {when}: too many of the latest have failed")
        # After the refusal: a call that is not made takes nothing of the budget, and does not wait for it.
        if call.weights is not None and (start := self._permitted(call.weights, now)) > now:
            return start
        call.gate, call.running, call.let_start = self, True, now
        self.calls += 1
        if self._limiter is not None:
            self._limiter.start(now)
        if breaker is not None:
            breaker.allow(call.age)
            if self._recorder is not None:
                self._recorder.circuit(breaker.state, now)
        return now

    def _permitted(self, weights: Weights, now: float) -> float:
        """Start a call of these weights, if the budget lets it. Returns when it does."""
        start = (self.seat or self._joined()).take(weights, now)
        if start > now:
            if self._waits_since is None:
                self._waits_since = now
        elif self._waits_since is not None:
            self._figures.budget_seconds += now - self._waits_since
            self._waits_since = None
        return start

    def _joined(self) -> Seat:
        assert self._allowance is not None
        self.seat = self._allowance.join(self._news, self._timers.fail)
        if self.answered is None and self._limiter is None:
            self.free = self.seat.free
        return self.seat

    def _take(self, now: float) -> float:
        limiter, breaker, controller = self._limiter, self.breaker, self._controller
        if breaker is not None and breaker.state != "closed":
            return inf
        if controller is not None and self.calls >= controller.limit:
            return inf
        if limiter is not None and (start := inf if now < limiter.proven else limiter.next_start(now)) > now:
            return start
        if self.weighs and (start := self._permitted(ONE, now)) > now:
            return start
        if limiter is not None:
            limiter.start(now)
        if self.answered is not None:
            self.calls += 1
        return now

    def _answered(self, now: float, started: float) -> None:
        controller, calls = self._controller, self.calls
        self.calls = calls - 1
        if self.breaker is not None:
            self.breaker.succeeded(now, started)
        if controller is not None:
            before = controller.limit
            controller.completed(now, now - started, calls)
            if calls >= before or controller.limit != before:
                self._resize(controller.limit)

    def judge(self, call: Call, now: float, error: BaseException | None) -> None:
        """The call has returned a result or an error, or has passed its limit: `TimeoutError`."""
        call.judged = True
        if self.breaker is not None:
            end = self.breaker.succeeded if error is None or isinstance(error, ResultError) else self.breaker.failed
            end(self._breaker_clock(), call.age)
            if self._recorder is not None:
                self._recorder.circuit(self.breaker.state, now)
        if self._controller is not None:
            latency = now - call.let_start
            if error is None:
                self._controller.completed(now, latency, self.calls)
            else:
                self._controller.failed(now, latency, self.calls, is_overload(error))

    def abandoned(self, call: Call) -> None:
        """The call is cancelled because no element needs its result. It proves nothing."""
        call.judged = True
        if self.breaker is not None:
            self.breaker.abandoned(call.age)

    def ended(self, call: Call, now: float, error: BaseException | None = None) -> None:
        """The call has returned, with a result or an error, in time or late. Its budget waits as an error asks (G5)."""
        if self._limiter is not None and self._limiter.ended(call.let_start, now, error):
            self._news()
        if error is not None and self.seat is not None and not said(error, "reported") and (wait := asked_wait(error)):
            self.hint({}, wait)
        if not call.running:
            return
        if not call.judged and self.answered is not None:
            self.judge(call, now, error)
        call.running = False
        self.calls -= 1
        if self.seat is not None and call.weights is not None:
            if error is not None and is_unbilled(error):
                call.billed = bool(call.billed)
            self.seat.returned(call.weights, call.settled, call.let_start, now, call.billed is not False)
        if self._controller is not None:
            self._resize(self._controller.limit)

    # -- reports of a running call

    def hint(self, limits: Mapping[str, Hint], retry_after: float | None) -> None:
        if self.seat is not None:
            self.seat.share.hint(limits, retry_after, self.now())

    def on_loop(self, report: Callable[..., None], *arguments: Any) -> None:
        """Call it here on the loop's thread, else there soon; never if the loop is closed."""
        if threading.get_ident() == self._thread:
            report(*arguments)
        else:
            with contextlib.suppress(RuntimeError):
                self._timers.loop.call_soon_threadsafe(report, *arguments)
