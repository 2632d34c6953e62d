"""What failed lookups mean: the failure of a key, or the end of the run; and what users are told of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncio_operator.enricher import Enricher, failed_import, missing_here
from asyncio_operator.environment import remedy as remedy_of
from asyncio_operator.errors import (
    ElementTimeoutError,
    FunctionError,
    MissingKeyError,
    ResultError,
    describe,
    describe_error,
    said,
)
from asyncio_operator.lookup.keys import Failure
from asyncio_operator.outcomes import is_ordinary
from asyncio_operator.policies.retry import Retry


class KeyOutcomes:
    """Makes failures, and counts them.

    Args:
        retry: when lookups are made again, for a message.
        timeout: seconds that a lookup may take, for a message.
        fail: the first failure ends the run; else only one does of which a key cannot be to blame, because the process
            lacks something. None: no failure ends it.
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
        fail: bool | None,
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
        lacking = self._failing is not None and is_lacking(error)
        if self._failing or lacking or not is_ordinary(error):
            if lacking:
                remedy = remedy_of(error) or "; that is of this Python worker, and no key is to blame"
            else:
                why = "" if self._retry is None or timed_out else self._retry.refusal(error, attempts)
                # Nothing goes on without an error that asks the process to end.
                without = self._remedy if is_ordinary(error) else ""
                remedy = f"{remedy_of(error)}{f'; {why}' if why else ''}{without}"
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


def is_lacking(error: BaseException) -> bool:
    """Whether the process lacks what every key needs: an import failed, or what blames no key wants a variable."""
    if failed_import(error) is not None:
        return True
    return bool(said(error, "any_key", bool)) and missing_here(error) is not None


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


def missing_key_error(enricher: Enricher, key: Any) -> MissingKeyError:
    """The error for a key without a row where every key must have one. None in the key is a null, or what Python cannot
    hold."""
    name, text = describe(enricher), describe(key)
    if key is None or (isinstance(key, tuple) and None in key):
        problem = f"{name} has no row for key {text}: a part of it is null, or a value that Python cannot hold"
        remedy = "leave such rows out before"
    else:
        problem, remedy = f"{name} has no row for key {text}", "add the row to the source"
    return MissingKeyError(
        f'{problem}; how="required" fails the task for that: {remedy}, or use how="left", which gives nulls, or '
        '"inner", which drops the row',
        key=text,
    )
