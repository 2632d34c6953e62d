"""Errors whose whole traceback is text that can be written down.

A file name or a JSON document that is no UTF-8 is enough for an error that nobody can print: PySpark, which writes the
traceback to Spark, would write nothing and let it wait for ever. It knows neither threads nor Spark.
"""

from __future__ import annotations

import contextlib
import traceback
from typing import Any

from asyncio_operator.errors import FunctionError, describe_error, text_of

MOST_TEXT = 100_000
"""Characters of a traceback that stands for another at most; some hundred times the usual."""

LONGEST_LINE = 2_000

MOST_CAUSES = 200
"""Errors behind one that are written anew; with more of them another stands for it."""

TEXTS = ("filename", "msg", "reason", "strerror", "text")
"""Attributes in which errors of Python keep text, beside ``args``."""


class OriginalError(Exception):
    """Stands for an error that cannot be told as it is; its text is that one's traceback, as far as it can be."""


def encodable(error: BaseException) -> BaseException:
    """The error, so that its traceback, with all that led to it, is text in UTF-8.

    What cannot be encoded is written as its code, in the error itself, so that its type stays. One that cannot be
    changed is replaced by what `stand_in` gives. It raises nothing, because somebody waits for the error: one whose
    attributes cannot be read is told by its type and its text.
    """
    try:
        return _encodable(error)
    except BaseException:
        return FunctionError(describe_error(error))


def _encodable(error: BaseException) -> BaseException:
    if _is_text(error):
        return error
    causes = _with_causes(error)
    # Each is told with all that led to it, which takes the square of their number.
    for one in causes if len(causes) <= MOST_CAUSES else ():
        with contextlib.suppress(Exception):
            if not _is_text(one, alone=True):
                _escape(one)
    return error if _is_text(error) else stand_in(error)


def stand_in(error: BaseException) -> FunctionError:
    """An error that says the same as far as that can be told, with an `OriginalError` as its cause."""
    if isinstance(error, FunctionError):
        same = FunctionError(text_of(error, MOST_TEXT), element=text_of(error.element), attempts=error.attempts)
    else:
        same = FunctionError(describe_error(error))
    before = [one for one in (error.__cause__, error.__context__) if one is not None]
    same.__cause__ = OriginalError(_readable([*before, error][0]))
    same.__traceback__ = error.__traceback__
    # The paths of the code that has raised it stand there.
    return same if _is_text(same) else same.with_traceback(None)


def _is_text(error: BaseException, alone: bool = False) -> bool:
    """Whether it can be encoded what a traceback says: of the error and what led to it, or of the error alone."""
    try:
        "".join(traceback.format_exception_only(error) if alone else traceback.format_exception(error)).encode()
    except BaseException:
        return False
    return True


def _with_causes(error: BaseException) -> list[BaseException]:
    """The error, and all that a traceback of it tells, each once."""
    found: dict[int, BaseException] = {}
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None and id(one) not in found:
            found[id(one)] = one
            # An attribute that is called as that of a group may be anything, and reading one may raise.
            with contextlib.suppress(Exception):
                left += [one.__cause__, one.__context__]
                left += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
    return list(found.values())


def _escape(error: BaseException) -> None:
    """Write what cannot be encoded as its code, in the texts of one error."""

    def escaped(value: Any) -> Any:
        return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value

    error.args = tuple(map(escaped, error.args))
    for name in (*vars(error), *TEXTS):
        value = getattr(error, name, None)
        if isinstance(value, str) and escaped(value) != value:
            setattr(error, name, escaped(value))
    if hasattr(error, "__notes__"):
        error.__notes__ = list(map(escaped, error.__notes__))


def _readable(error: BaseException) -> str:
    """Its traceback with long lines cut, and without what cannot be encoded."""
    try:
        lines = "".join(traceback.format_exception(error)).split("\n")
    except BaseException:
        return describe_error(error)
    text = "\n".join([text_of(line, LONGEST_LINE) for line in lines])
    if len(text) > MOST_TEXT:
        text = f"{text[: MOST_TEXT // 2]}\n...\n{text[-MOST_TEXT // 2 :]}"
    return f"\n\n{text}"
