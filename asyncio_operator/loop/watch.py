"""Watches the loop thread from another thread, and reports a user's function that holds it.

A function that does not await delays every other call without an error: a blocking client in an `async def` is only
slow. So another thread takes samples of the loop thread's stack. If nearly all samples are inside of a user's function,
a warning is logged, once in a process for each name. A sample takes some microseconds, and the loop is not stopped.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from os.path import dirname, sep
from types import FrameType

from asyncio_operator.engine.lanes import Lanes

logger = logging.getLogger("asyncio_operator.loop")

LOOKS = 5
HELD = 4
"""A function holds the loop if this many of the last `LOOKS` samples are inside of it. A function that awaits is rarely
in a single sample. One that is in nearly all of them leaves no time for other calls, whether it blocks or computes."""

# Not with Path, which would remove the "./" of a file in an archive that was sent with a job.
_OURS = tuple(
    f"{dirname(dirname(dirname(__file__)))}{sep}{package}{sep}" for package in ("asyncio_operator", "enrichers")
)

_warned: set[str] = set()


class LoopWatch:
    """Watches the thread of a loop.

    Args:
        thread: its identifier.
        name: the name in the warning, of the user's function.
    """

    def __init__(self, thread: int | None, name: str) -> None:
        self._thread = thread
        self._name = name
        self._looks: deque[bool] = deque(maxlen=LOOKS)

    def look(self) -> None:
        """Take one sample. It is called at regular intervals."""
        frames = _frames(sys._current_frames().get(self._thread or 0))
        self._looks.append(bool(frames))
        if frames and sum(self._looks) >= HELD and self._name not in _warned:
            _warned.add(self._name)
            places = ", called by ".join(f"{f.f_code.co_filename}:{f.f_lineno} ({f.f_code.co_name})" for f in frames)
            logger.warning(
                "%s holds the event loop: %d of %d looks found it in %s. Code that does not await stops all others: "
                "await an asynchronous client there, or put a blocking one into a BlockingEnricher or BlockingFunction",
                self._name,
                sum(self._looks),
                len(self._looks),
                places,
            )


def _frames(innermost: FrameType | None) -> list[FrameType]:
    """If a lane has called a user's function: the innermost frame, and the frame of that function if it is another."""
    # Not every frame outside of our files is the user's: the loop itself is library code. Only what a lane has called
    # counts.
    frame, user = innermost, None
    while frame is not None and frame.f_code is not Lanes._work.__code__:
        if not frame.f_code.co_filename.startswith(_OURS):
            user = frame
        frame = frame.f_back
    if frame is None or user is None or innermost is None:
        return []
    return [innermost] if innermost is user else [innermost, user]
