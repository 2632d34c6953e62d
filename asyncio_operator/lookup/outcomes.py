"""What failed lookups mean: the failure of a key, or the end of the run; and what users are told of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import ElementTimeoutError, FunctionError, ResultError, describe, describe_error
from asyncio_operator.lookup.keys import Failure
from asyncio_operator.outcomes import is_ordinary
from asyncio_operator.policies.retry import Retry


class KeyOutcomes:
    """Makes failures, and counts them.

    Args:
        retry: when lookups are made again, for a message.
        timeout: seconds that a lookup may take, for a message.
        fail: the first failure ends the run.
        remedy: what the user can do about a failure, for the end of a message.
        clock: gives seconds.

    Attributes:
        timeouts: keys that passed their deadline.
        now: gives seconds.
        end: ends the run with an error, here and now; to be set before the first call.
    """

    def __init__(
        self,
        enricher: Enricher,
        *,
        retry: Retry | None = None,
        timeout: float | None,
        fail: bool,
        remedy: str,
        clock: Callable[[], float],
    ) -> None:
        self.timeouts = 0
        self.end: Callable[[BaseException], None]
        self._enricher = enricher
        self._retry = retry
        self._timeout = timeout
        self._failing = fail
        self._remedy = remedy
        self.now = clock

    def failure(
        self, key: Any, error: BaseException, started: float, attempts: int = 1, timed_out: bool = False
    ) -> Failure:
        """The outcome of a key whose lookup failed; if failures are to end the run, they do here."""
        if self._failing or not is_ordinary(error):
            # Nothing goes on without an error that asks the process to end.
            remedy = self._remedy if is_ordinary(error) else ""
            why = "" if self._retry is None or timed_out else self._retry.refusal(error, attempts)
            remedy = f"; {why}{remedy}" if why else remedy
            ended = run_error(self._enricher, key, error, attempts, remedy)
            self.end(ended)
            error = ended
        return Failure(error, self.now() - started, timed_out, attempts)

    def timeout(self, key: Any, started: float, attempts: int = 1) -> Failure:
        """The outcome of a key that passed its deadline."""
        return self.failure(key, self.timeout_error(key), started, attempts, timed_out=True)

    def timeout_error(self, key: Any) -> ElementTimeoutError:
        """What a key fails of at its deadline."""
        self.timeouts += 1
        return ElementTimeoutError(
            f"the lookup of key {describe(key)} gave no answer within its timeout of {self._timeout} s; raise timeout= "
            "if healthy answers take as long"
        )


def run_error(enricher: Enricher, key: Any, error: BaseException, attempts: int, remedy: str) -> FunctionError:
    """What a run ends with for which a lookup failed."""
    what = "gave an unusable answer" if isinstance(error, ResultError) else "failed"
    tried = f" in attempt {attempts}" if attempts > 1 else ""
    failure = FunctionError(
        f"{describe(enricher)} {what} for key {describe(key)}{tried}: {describe_error(error)}{remedy}",
        element=describe(key),
        attempts=attempts,
    )
    failure.__cause__ = error
    return failure
