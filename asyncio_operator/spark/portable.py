"""Errors as PySpark can tell them.

PySpark writes the traceback of what a task failed of, with all that led to it, in UTF-8. If that cannot be done it
writes nothing, and Spark waits for ever (see `encodable`); a text of many megabytes reaches the logs of executor and
driver as it is. Who raised the error does not matter.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import TypeVar

from asyncio_operator.told_errors import MOST_TEXT, encodable, stand_in

T = TypeVar("T")


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
    error = encodable(error)
    return error if len("".join(traceback.format_exception(error))) <= MOST_TEXT else stand_in(error)
