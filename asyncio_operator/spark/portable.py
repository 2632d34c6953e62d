"""Errors that PySpark can report.

PySpark writes the traceback of a task's error, with all errors that led to it, in UTF-8. If that fails, it writes
nothing, and Spark waits forever (see `encodable`). A text of many megabytes would reach the logs of executor and driver
in full. This module does not know who raised an error.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import TypeVar

from asyncio_operator.loop.portable_errors import MOST_TEXT, encodable, stand_in

T = TypeVar("T")


def portable_errors(outputs: Iterator[T]) -> Iterator[T]:
    """The same outputs. An error is raised in a form that PySpark can report."""
    try:
        yield from outputs
    except BaseException as error:
        reported = portable(error)
        if reported is error:
            raise
        raise reported from reported.__cause__


def portable(error: BaseException) -> BaseException:
    """The error itself, if its whole traceback is text of moderate length; else one that says the same in short."""
    error = encodable(error)
    return error if len("".join(traceback.format_exception(error))) <= MOST_TEXT else stand_in(error)
