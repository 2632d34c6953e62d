"""The errors that runs raise, and the checks whether a result or an error can be handled.

An error of a function is named with its element and its attempt. A run whose own task is cancelled by other code ends
with the error that says so. This module knows neither queues nor lanes.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Sequence
from typing import Any

from asyncio_operator.errors import (
    ElementTimeoutError,
    FunctionError,
    ResultError,
    describe,
    describe_error,
)


def is_ordinary(error: BaseException) -> bool:
    """Whether it may be handled; others, such as ``SystemExit``, ask the process to end."""
    return isinstance(error, Exception | CancelledError)


def function_error(what: str, value: Any, error: BaseException, remedy: str, attempts: int) -> FunctionError:
    """The error that ends a run, for one that the function, or a hook, has raised; to be raised from that."""
    element = describe(value)
    attempt = f" in attempt {attempts}" if attempts else ""
    return FunctionError(
        f"{what} failed for element {element}{attempt} with {describe_error(error)}; {remedy}",
        element=element,
        attempts=attempts,
    )


def attempt_timeout_error(value: Any, attempt: int, seconds: float) -> ElementTimeoutError:
    """What an attempt fails of that takes longer than it may."""
    return ElementTimeoutError(
        f"attempt {attempt} for element {describe(value)} had no result within attempt_timeout={seconds} s"
    )


def aligned(result: Any, count: int, method: str) -> Sequence[Any]:
    """The results of a batch of `count` elements, read once, for what reads them may fail.

    Raises:
        ResultError: they are no sequence of that length, or cannot be read.
    """
    cause: Exception | None = None
    if isinstance(result, Sequence) and not isinstance(result, str | bytes):
        try:
            results = result if type(result) is list else tuple(result)
            if len(results) == count:
                return results
            given = f"{len(results)} results"
        except Exception as error:
            given, cause = f"{type(result).__name__}, which cannot be read ({describe_error(error)}),", error
    else:
        given = type(result).__name__
    raise ResultError(
        f"{method} gave {given} for {count} values; it must give a sequence with one result for each, in their order"
    ) from cause


def stray_cancellation(what: str, element: str = "") -> FunctionError:
    """What a run fails of where its own tasks are cancelled by somebody who has not started them, perhaps in the call
    for that element."""
    call = f" in the call for element {element}" if element else ""
    return FunctionError(
        f"{what}{call}; a function may cancel only tasks that it has started itself, and leave no timer or task behind "
        "that cancels others: what asyncio.all_tasks() gives belongs to all who are on the event loop",
        element=element,
    )


def stray_run(name: str) -> FunctionError:
    """What a run of that function fails of whose task is cancelled by somebody who does not read its results."""
    return stray_cancellation(f"the run of {name} was cancelled, and not by whoever reads its results")
