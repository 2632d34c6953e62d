"""Calls under a budget: each is weighed before it starts, and reported when it has returned.

A call that a budget does not admit yet waits in the schedule. This module knows neither units nor limits: what is
allowed is decided behind `contracts.Allowance`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from typing import Any

from asyncio_operator.budget.usage import COUNTED, Hint, Weights, checked_weights, is_unbilled, running
from asyncio_operator.engine.contracts import Admission, Allowance
from asyncio_operator.engine.flights import Call
from asyncio_operator.errors import ConfigurationError, ResultError, describe, describe_error
from asyncio_operator.figures import Figures

Weigh = Callable[[Sequence[Any]], Weights]
"""Estimates the weight of a call, from the values that it is called with."""


def overridden(weigh: Weigh, base: object) -> Weigh | None:
    """A method `weigh`; None if it is `base`, that of the base class, which weighs nothing."""
    return None if getattr(weigh, "__func__", None) is base else weigh


def weighed(name: str, weigh: Weigh, values: Sequence[Any]) -> dict[str, float]:
    """What one call for these values weighs. `name` is that of what is called.

    Raises:
        ResultError: it could not be weighed.
    """
    try:
        return checked_weights("its result", weigh(values))
    except ConfigurationError as error:
        raise ResultError(f"{name}.weigh gave no weights for {describe(values)}: {error}") from error
    except Exception as error:
        raise ResultError(
            f"{name}.weigh failed for {describe(values)} with {describe_error(error)}; it must return amounts by unit, "
            'such as {"tokens": 1300}'
        ) from error


class BudgetedCalls:
    """The calls of a run under a budget.

    Args:
        weigh: None: calls weigh nothing beside themselves and their values.
        name: of what is called, for messages.
        clock: gives the seconds of the loop.
        news, fail: see `Allowance.join`.

    Attributes:
        figures: count the seconds in which a call waited for the budget, and no other could start before it.
    """

    def __init__(
        self,
        allowance: Allowance,
        weigh: Weigh | None,
        name: str,
        clock: Callable[[], float],
        news: Callable[[], None],
        fail: Callable[[BaseException], None],
        figures: Figures,
    ) -> None:
        self._figures = figures
        self._allowance = allowance
        self._weigh = weigh
        self._name = name
        self._now = clock
        self._news = news
        self._fail = fail
        self._admission: Admission | None = None
        self._over = False
        self._waits_since: float | None = None
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def leave(self) -> None:
        """No call starts any more."""
        if self._admission is not None and not self._over:
            self._admission.leave()
        self._over = True

    def next_start(self, call: Call, now: float) -> float:
        """See `Admission.next_start`.

        Raises:
            ResultError: the call could not be weighed.
        """
        admission = self._admission
        if admission is None:
            assert not self._over
            admission = self._admission = self._allowance.join(self._news, self._fail)
        if call.weights is None:
            call.weights = self._weights(call)
        start = admission.next_start(call.weights, now)
        if start > now:
            if self._waits_since is None:
                self._waits_since = now
        elif self._waits_since is not None:
            self._figures.budget_seconds += now - self._waits_since
            self._waits_since = None
        return start

    def _weights(self, call: Call) -> Weights:
        counted = {"calls": 1.0, "keys": float(call.count)}
        if self._weigh is None:
            return counted
        # Law O17: what it sets is seen by no call.
        return counted | self._context.copy().run(weighed, self._name, self._weigh, call.values)

    def started(self, call: Call, now: float) -> None:
        """The call starts."""
        assert call.weights is not None
        assert self._admission is not None
        call.admitted = now
        self._admission.started(call.weights, now)

    def returned(self, call: Call) -> None:
        """The call has returned, in time or late."""
        weights, call.weights = call.weights, None
        assert weights is not None
        assert self._admission is not None
        settled, billed = call.settled, call.billed is not False
        self._admission.returned(weights, settled, call.admitted, self._now(), billed)
        estimates = {unit: amount for unit, amount in weights.items() if unit not in COUNTED} if billed else {}
        call.weighed = estimates | (settled or {})

    def within(self, invoke: Callable[[Any], Awaitable[Any]], value_of: Callable[[Call], Any]) -> Callable[..., Any]:
        """A function of a call that makes it, so that `usage` finds the call."""

        async def invoked(call: Call) -> Any:
            mark = running.set(_Reporting(self, call))
            try:
                return await invoke(value_of(call))
            except BaseException as error:
                if is_unbilled(error):
                    self.bill(call, False)
                raise
            finally:
                # Another context resets it only if the loop is gone.
                with contextlib.suppress(ValueError):
                    running.reset(mark)

        return invoked

    def settle(self, call: Call, weights: Weights) -> None:
        if call.weights is None:
            return
        settled = call.settled = call.settled or {}
        for unit, amount in weights.items():
            settled[unit] = settled.get(unit, 0.0) + amount

    def bill(self, call: Call, whether: bool) -> None:
        if call.weights is not None:
            call.billed = whether or bool(call.billed)

    def hint(self, limits: Mapping[str, Hint], retry_after: float | None) -> None:
        if self._admission is not None and not self._over:
            self._admission.hint(limits, retry_after, self._now())

    def on_loop(self, report: Callable[..., None], *arguments: Any) -> None:
        """Call it here on the loop's thread, else there soon; never if the loop is closed."""
        if threading.get_ident() == self._thread:
            report(*arguments)
        else:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(report, *arguments)


class _Reporting:
    """A call, as `usage` sees it. What a thread reports before it ends comes to the loop before its result does."""

    __slots__ = ("_call", "_calls")

    def __init__(self, calls: BudgetedCalls, call: Call) -> None:
        self._calls = calls
        self._call = call

    def settle(self, weights: Weights) -> None:
        self._calls.on_loop(self._calls.settle, self._call, weights)

    def bill(self, whether: bool) -> None:
        self._calls.on_loop(self._calls.bill, self._call, whether)

    def hint(self, limits: Mapping[str, Hint], retry_after: float | None) -> None:
        self._calls.on_loop(self._calls.hint, limits, retry_after)
