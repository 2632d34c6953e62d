"""The errors that runs raise, and the checks whether a result or an error can be handled.

The texts of failed calls and of timeouts stand here for all faces: the operator, lookups, and tasks of Spark.
An error of a function is named with its element and its attempt. A run whose own task is cancelled by other code ends
with the error that says so. This module knows neither queues nor lanes.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Sequence
from typing import Any, Final

from asyncio_operator.errors import (
    BudgetExceeded,
    CoordinatorError,
    FunctionError,
    ResultError,
    describe,
    describe_error,
    function_error,
    members,
)

logger = logging.getLogger("asyncio_operator.calls")

WATCHED: Final = 1_000
"""Elements whose batch has failed and that are watched. One that is never answered keeps its place."""


def is_ordinary(error: BaseException) -> bool:
    """Whether `on_error` and retries may handle it. Other errors, such as ``SystemExit``, ask the process to end."""
    return isinstance(error, Exception | CancelledError)


def ends_the_run(error: BaseException) -> bool:
    """Whether no option may hide the error (laws G6 and G7)."""
    return any(isinstance(one, BudgetExceeded | CoordinatorError) and not is_over_budget(one) for one in members(error))


def is_over_budget(error: BaseException) -> bool:
    """Whether the error ends its element only, without a result, because the budget says so (law G12)."""
    return isinstance(error, BudgetExceeded) and error.on_spent == "null"


def element_error(what: str, value: Any, error: BaseException, remedy: str, attempts: int) -> FunctionError:
    """The error that ends a run because the function, or a hook, raised `error`, which is its cause."""
    tried = f" in attempt {attempts}" if attempts else ""
    says = f"{tried} with {describe_error(error)}; {remedy}"
    return function_error(f"{what} failed", says, element=describe(value), attempts=attempts, cause=error)


def call_error(
    failed: str, unit: str, element: str, error: BaseException, attempts: int, remedy: str, text: str | None = None
) -> FunctionError:
    """The error that ends a task of Spark, or a lookup's run, because a call failed. Its cause is `error`.

    Args:
        failed: what failed, such as "fetch failed".
        unit: what an element is there: a key, or arguments.
        element: the description of the element.
        remedy: the end of the message, with its separator.
        text: what the error says; None: its type and all of its text.
    """
    tried = f" in attempt {attempts}" if attempts > 1 else ""
    says = f"{tried}: {text or describe_error(error)}{remedy}"
    return function_error(failed, says, unit=unit, element=element, attempts=attempts, cause=error)


def aligned(result: Any, count: int, method: str) -> Sequence[Any]:
    """The results of a batch of `count` elements. They are read once, because reading them may fail, unless they say
    with `is_read` that they were.

    Raises:
        ResultError: they are not a sequence of that length, or cannot be read.
    """
    cause: Exception | None = None
    if isinstance(result, Sequence) and not isinstance(result, str | bytes):
        try:
            results = result if type(result) is list or hasattr(result, "is_read") else tuple(result)
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
    """The error that ends a run when outside code cancels the run's own tasks; `element` names the call that it hit."""
    return function_error(
        f"{what} in the call" if element else what,
        "; a function may cancel only tasks that it has started itself, and leave no timer or task behind "
        "that cancels others: asyncio.all_tasks() returns the tasks of all code on the event loop",
        element=element,
        cause=None,
    )


def stray_run(name: str) -> FunctionError:
    """The error that ends a run of that function when code that does not read its results cancels its task."""
    return stray_cancellation(f"the run of {name} was cancelled by code that does not read its results")


class FailingBatches:
    """Notices that calls with several elements always fail, though each of their elements alone is answered.

    Then all results are right, and each element costs a call of its own (B4): only the log can say so. The sign is a
    pair that failed while both were answered alone, in a run in which no call with several has succeeded.

    Args:
        name: of what is called.
        method: what a call with several elements is called.
        watching: whether calls may have several elements.
    """

    def __init__(self, name: str, method: str, watching: bool) -> None:
        self._name = name
        self.method = method
        self._watching = watching
        # The elements of pairs that failed: each with the error, and those of its pair that were answered alone.
        self._pairs: dict[Any, tuple[BaseException, list[Any]]] = {}

    def divided(self, elements: Sequence[Any], error: BaseException) -> None:
        """A call for several elements has failed, and each half of it is called."""
        if len(elements) == 2 and self._watching and len(self._pairs) < WATCHED:
            self._pairs.update(dict.fromkeys(elements, (error, [])))

    def answered(self, elements: Sequence[Any]) -> None:
        if not self._watching:
            return
        if len(elements) > 1:
            self.end()
        elif (pair := self._pairs.pop(elements[0], None)) is not None:
            error, alone = pair
            alone.append(elements[0])
            if len(alone) == 2:
                self.end()
                logger.warning(
                    "%s: every call of %s with several values has failed so far, and the same values succeed one by "
                    "one. So no value is to blame, and each one costs a call of its own. Correct how several values "
                    "are asked for and how their answer is read, or turn batching off with a batch size of 1. The last "
                    "error: %s",
                    self._name,
                    self.method,
                    describe_error(error),
                )

    def failed(self, elements: Sequence[Any]) -> None:
        """Elements have failed, and are not divided any more."""
        for element in elements:
            self._pairs.pop(element, None)

    def end(self) -> None:
        """A call for several elements has succeeded: nothing is watched any more."""
        self._watching = False
        self._pairs.clear()
