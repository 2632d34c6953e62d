"""The one gate of a run: whether a call may start now, and what its end means for all limits.

    next_start   when any call may start, as far as the rate limit and the capacity are concerned
    admit        when this call may start, as far as the circuit breaker and the budget are; or why it never may
    started      it starts, and gets a ticket
    ended        it has returned, in time or late: once for each ticket

To ask takes nothing: only `started` does, which follows at the time for which was asked. So a call that is not made
after all loses no place. What the limits of a budget are is decided behind `contracts.Allowance`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from asyncio_operator.budget.usage import ONE, Hint, Weigh, Weights, is_unbilled, weighing
from asyncio_operator.engine.contracts import Admission, Allowance
from asyncio_operator.engine.flights import Ticket
from asyncio_operator.errors import BudgetExceeded, CircuitOpenError, CoordinatorError, ResultError
from asyncio_operator.policies.limits import Limits
from asyncio_operator.policies.rate_limit import RateWindow

if TYPE_CHECKING:
    from asyncio_operator.engine.options import CallOptions
    from asyncio_operator.engine.recorder import Recorder
    from asyncio_operator.figures import Figures

REFUSED = (CircuitOpenError, BudgetExceeded, CoordinatorError, ResultError)
"""What `admit` and `weights` raise about a call that may not start."""

REFUSALS = 100
"""Refused calls in a row after which the loop turns, so that other code runs."""


class Gate(Limits):
    """The limits of one run, a budget included. Each may be missing.

    Args:
        name: of what is called, for messages.
        clock: gives the seconds of the loop.
        news, fail: see `Allowance.join`.
        figures: count the seconds in which a call waited for the budget, and no other could start before it.
        resize: called with the maximum number of calls in flight when a call has returned, if that is adaptive.
        limiter: see `Limits`.
        breaker_clock: see `Limits`; None: the time of the loop.
        weigh: None: calls weigh nothing beside themselves and their values.

    Attributes:
        now: gives the time.
        weighs: whether there is a budget.
        weights: see `weighing`.
        one: what a call for one value weighs, if that is known.
        hears: whether a limit has to hear how calls end.
        limits: whether there is any.
    """

    def __init__(
        self,
        options: CallOptions,
        name: str,
        clock: Callable[[], float],
        news: Callable[[], None],
        fail: Callable[[BaseException], None],
        figures: Figures,
        recorder: Recorder,
        resize: Callable[[int], None],
        limiter: RateWindow | None,
        breaker_clock: Callable[[], float] | None,
        allowance: Allowance | None,
        weigh: Weigh | None,
    ) -> None:
        limits = (options.capacity, options.rate_limit, options.circuit_breaker, limiter)
        super().__init__(*limits, breaker_clock or clock, recorder.circuit)
        self.weighs = allowance is not None
        self.weights = weighing(name, weigh)
        self.one = None if weigh and self.weighs else ONE
        self.hears = self.weighs or self._breaker is not None or self._controller is not None
        self.limits = self.hears or self._limiter is not None
        self._resize = resize
        self._allowance = allowance
        self._admission: Admission | None = None
        self.now = clock
        self._news = news
        self._fail = fail
        self._figures = figures
        self._over = False
        self._waits_since: float | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def leave(self) -> None:
        """No call starts any more."""
        if self._admission is not None and not self._over:
            self._admission.leave()
        self._over = True

    def admit(self, weights: Weights, now: float) -> float:
        """When the circuit breaker and the budget let a call start; see `Admission.next_start`.

        Raises:
            CircuitOpenError: it is refused.
            BudgetExceeded, CoordinatorError: see `Admission.next_start`.
        """
        self.check_circuit()
        # After the refusal: a call that is not made takes nothing of the budget, and does not wait for it.
        if self._allowance is None:
            return now
        admission = self._admission
        if admission is None:
            assert not self._over
            admission = self._admission = self._allowance.join(self._news, self._fail)
        start = admission.next_start(weights, now)
        if start > now:
            if self._waits_since is None:
                self._waits_since = now
        elif self._waits_since is not None:
            self._figures.budget_seconds += now - self._waits_since
            self._waits_since = None
        return start

    def started(self, weights: Weights, now: float) -> Ticket:
        """A call starts that `next_start` and `admit` have let start at this time."""
        ticket = Ticket(self, weights, now)
        self.start(ticket, now)
        if self._admission is not None:
            self._admission.started(weights, now)
        return ticket

    def ended(self, ticket: Ticket, now: float, error: BaseException | None = None) -> None:
        """The call has returned, with a result or an error, in time or late."""
        if not ticket.judged:
            self.judge(ticket, now, error)
        ticket.over = True
        self.calls -= 1
        if self._admission is not None:
            if error is not None and is_unbilled(error):
                ticket.billed = bool(ticket.billed)
            self._admission.returned(ticket.weights, ticket.settled, ticket.started, now, ticket.billed is not False)
        if self._controller is not None:
            self._resize(self._controller.limit)

    # -- reports of a running call

    def hint(self, limits: Mapping[str, Hint], retry_after: float | None) -> None:
        if self._admission is not None and not self._over:
            self._admission.hint(limits, retry_after, self.now())

    def on_loop(self, report: Callable[..., None], *arguments: Any) -> None:
        """Call it here on the loop's thread, else there soon; never if the loop is closed."""
        if threading.get_ident() == self._thread:
            report(*arguments)
        else:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(report, *arguments)
