"""Errors that can be reported from another thread, or by PySpark.

PySpark writes the traceback of a task's error, with all errors that led to it, in UTF-8. If a file name or a document
in it is not UTF-8, PySpark cannot write it and sends nothing, and Spark waits for ever. And a text of many megabytes
would reach the logs of executor and driver in full.

Frames of this library say nothing to those who use it. Errors of this library explain themselves, so all its frames
are cut. From other errors they are cut if the error was raised outside of the library: then they only separate the
program from the code that failed. Otherwise the error is a defect of this library, and they show where the defect is.
This module knows neither threads nor Spark.
"""

from __future__ import annotations

import contextlib
import logging
import os
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any, TypeVar

from asyncio_operator.errors import AsyncOperatorError, FunctionError, describe_error, keep_verdict, text_of

logger = logging.getLogger("asyncio_operator.tasks")

MOST_TEXT = 100_000
"""The maximum number of characters of a replaced traceback; a usual traceback is hundreds of times shorter."""

LONGEST_LINE = 2_000

MOST_CAUSES = 200
"""The maximum number of causes that are rewritten one by one. An error with more causes is replaced as a whole."""

TEXTS = ("filename", "msg", "reason", "strerror", "text")
"""Attributes in which Python's own errors keep text, besides ``args``."""


_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARY = (_HERE + os.sep, os.path.join(os.path.dirname(_HERE), "enrichers") + os.sep)
"""Where the files of the library are."""


class OriginalError(Exception):
    """Replaces an error that cannot be encoded. Its text is the traceback of that error, as far as it can be read."""


def encodable(error: BaseException) -> BaseException:
    """The error, changed if needed so that its traceback, with all errors that led to it, is text in UTF-8.

    Characters that cannot be encoded are written as their codes, inside the error itself, so its type stays. An error
    that cannot be changed is replaced by the result of `stand_in`. This function raises nothing, because a caller waits
    for the error: an error whose attributes cannot be read is replaced by its type and its text.
    """
    try:
        if _is_text(error):
            return error
        causes = _with_causes(error)
        # Each cause is printed with the errors that led to it, so the cost grows with the square of their number.
        for one in causes if len(causes) <= MOST_CAUSES else ():
            with contextlib.suppress(Exception):
                if _is_text(one, alone=True):
                    continue
                one.args = tuple(map(_escaped, one.args))
                for name in (*vars(one), *TEXTS):
                    value = getattr(one, name, None)
                    if isinstance(value, str) and _escaped(value) != value:
                        setattr(one, name, _escaped(value))
                if hasattr(one, "__notes__"):
                    one.__notes__ = list(map(_escaped, one.__notes__))
        return error if _is_text(error) else stand_in(error)
    except BaseException:
        return keep_verdict(FunctionError(describe_error(error)), error)


def stand_in(error: BaseException) -> FunctionError:
    """An error with the same text, as far as it can be encoded, and an `OriginalError` as its cause."""
    if isinstance(error, FunctionError):
        same = FunctionError(text_of(error, MOST_TEXT), element=text_of(error.element), attempts=error.attempts)
    else:
        group = f"{type(error).__name__} of " if isinstance(error, BaseExceptionGroup) else ""
        same = FunctionError(f"{group}{describe_error(error)}")
    keep_verdict(same, error)
    before = [one for one in (error.__cause__, error.__context__) if one is not None]
    cause = [*before, error][0]
    try:
        lines = "".join(traceback.format_exception(cause)).split("\n")
    except BaseException:
        text = describe_error(cause)
    else:
        text = "\n".join([text_of(line, LONGEST_LINE) for line in lines])
        if len(text) > MOST_TEXT:
            text = f"{text[: MOST_TEXT // 2]}\n...\n{text[-MOST_TEXT // 2 :]}"
        text = f"\n\n{text}"
    same.__cause__ = keep_verdict(OriginalError(text), cause)
    same.__traceback__ = error.__traceback__
    # The traceback contains paths of source files, which may be the text that cannot be encoded.
    return same if _is_text(same) else same.with_traceback(None)


def _is_text(error: BaseException, alone: bool = False) -> bool:
    """Whether a traceback can be encoded: of the error and what led to it, or, if `alone`, of the error only."""
    try:
        "".join(traceback.format_exception_only(error) if alone else traceback.format_exception(error)).encode()
    except BaseException:
        return False
    return True


def _with_causes(error: BaseException) -> list[BaseException]:
    """The error and all errors that its traceback shows, each once."""
    found: dict[int, BaseException] = {}
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None and id(one) not in found:
            found[id(one)] = one
            # A user's class may have any attribute under these names, and reading it may raise.
            with contextlib.suppress(Exception):
                left += [one.__cause__, one.__context__]
                left += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
    return list(found.values())


def _escaped(value: Any) -> Any:
    """A text with the characters that cannot be encoded replaced by their codes; any other value as it is."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


# -- tracebacks without the frames of this library


def cut_frames(error: BaseException) -> None:
    """Cut the frames of this library from the traceback of the error, and from those of the errors that led to it."""
    for one in _with_causes(error):
        # A class of the user may have anything under this name.
        with contextlib.suppress(Exception):
            frames, left = [], one.__traceback__
            while left is not None:
                frames.append(left)
                left = left.tb_next
            ours = [frame.tb_frame.f_code.co_filename.startswith(LIBRARY) for frame in frames]
            if frames and ours[-1] and not isinstance(one, AsyncOperatorError):
                continue
            found: TracebackType | None = None
            for frame, own in zip(reversed(frames), reversed(ours), strict=True):
                if not own:
                    found = TracebackType(found, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
            one.__traceback__ = found


# -- what a task raises

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
    """The error itself, if its whole traceback is text of moderate length; else a short one with the same text.

    The frames of this library are cut, unless its logger for tasks is at DEBUG.
    """
    if not logger.isEnabledFor(logging.DEBUG):
        cut_frames(error)
    error = encodable(error)
    return error if len("".join(traceback.format_exception(error))) <= MOST_TEXT else stand_in(error)
