"""Errors as PySpark can tell them.

PySpark writes the traceback of what a task failed of, with all that led to it, in UTF-8. If that cannot be done it
writes nothing, and Spark waits for ever; a text of many megabytes reaches the logs of executor and driver as it is. Who
raised the error does not matter: a file name or a JSON document is enough for text that is no UTF-8.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import TypeVar

from asyncio_operator.errors import FunctionError, describe_error, text_of

T = TypeVar("T")

LONGEST = 100_000
"""Characters of a traceback at most; some hundred times the usual."""

LONGEST_LINE = 2_000


class OriginalError(Exception):
    """Stands for an error that cannot be told as it is; its text is that one's traceback, as far as it can be."""


def portable_errors(outputs: Iterator[T]) -> Iterator[T]:
    """The same outputs; an error comes as PySpark can tell it."""
    try:
        yield from outputs
    except BaseException as error:
        told = portable(error)
        if told is error:
            raise
        raise told from told.__cause__


def portable(error: BaseException) -> BaseException:
    """The error, if its whole traceback is text that travels; else one that says the same as far as that goes."""
    with contextlib.suppress(BaseException):
        told = "".join(traceback.format_exception(error))
        told.encode()
        if len(told) <= LONGEST:
            return error
    if isinstance(error, FunctionError):
        same = FunctionError(text_of(error, LONGEST), element=text_of(error.element), attempts=error.attempts)
    else:
        same = FunctionError(describe_error(error))
    same.__cause__ = OriginalError(_readable(error.__cause__ or error.__context__ or error))
    return same.with_traceback(error.__traceback__)


def _readable(error: BaseException) -> str:
    """Its traceback with long lines cut, and without what cannot be encoded."""
    try:
        lines = "".join(traceback.format_exception(error)).split("\n")
    except BaseException:
        return describe_error(error)
    text = "\n".join([text_of(line, LONGEST_LINE) for line in lines])
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]}\n...\n{text[-LONGEST // 2 :]}"
    return f"\n\n{text}"
