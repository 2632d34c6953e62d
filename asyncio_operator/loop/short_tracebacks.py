"""Tracebacks without the frames of this library, which say nothing to those who use it.

Errors of this library explain themselves, so all its frames are cut. From other errors they are cut if the error was
raised outside of the library: then they only separate the program from the code that failed. Otherwise the error is a
defect of this library, and they show where the defect is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import TracebackType

from asyncio_operator.errors import AsyncOperatorError

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARY = (_HERE + os.sep, os.path.join(os.path.dirname(_HERE), "enrichers") + os.sep)
"""Where the files of the library are."""


def cut_frames(error: BaseException) -> None:
    """Cut them from the traceback of the error, and from those of the errors that led to it."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            # A class of the user may have anything under these names.
            with contextlib.suppress(Exception):
                one.__traceback__ = _cut(one.__traceback__, everywhere=isinstance(one, AsyncOperatorError))
                left += [one.__cause__, one.__context__]


def _cut(traceback: TracebackType | None, everywhere: bool) -> TracebackType | None:
    frames = [*_frames(traceback)]
    if frames and not everywhere and _is_ours(frames[-1]):
        return traceback
    found: TracebackType | None = None
    for one in reversed(frames):
        if not _is_ours(one):
            found = TracebackType(found, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return found


def _frames(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_ours(one: TracebackType) -> bool:
    return one.tb_frame.f_code.co_filename.startswith(LIBRARY)
