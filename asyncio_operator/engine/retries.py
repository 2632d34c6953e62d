"""Whether an element gets another attempt after one that failed or gave an unsatisfactory result, and when.

It asks the user's `Retry`, whose hooks run in contexts of their own (law O17). This module knows neither calls nor
waits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from math import inf
from typing import Any

from asyncio_operator.engine.failures import ends_the_run, function_error, is_ordinary
from asyncio_operator.engine.flights import Flight
from asyncio_operator.policies.retry import Retry


class Retries:
    """Decides for the elements of a run.

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
            raise function_error("retry.if_result", flight.value, error, remedy, flight.attempts + 1) from error
        if not again:
            return None
        flight.attempts += 1
        return self._next_start(flight, None, now)

    def _next_start(self, flight: Flight, error: BaseException | None, now: float) -> float | None:
        deadline = None if flight.deadline == inf else flight.deadline
        return self._retry.next_start(flight.attempts, error, now, deadline, self._random)
