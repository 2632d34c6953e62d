"""Looks at the loop thread from another thread, and tells of a user's function that holds it.

What does not await holds up every other call, and no error ever says so: a blocking client in an `async def` is just
slow. So the stack of the loop's thread is looked at from time to time; if it stands inside of a user's function nearly
always, this is logged, once in a process for every name. A look costs some microseconds, and the loop nothing.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from os.path import dirname, sep
from types import FrameType

from asyncio_operator.lanes import Lanes

logger = logging.getLogger("asyncio_operator")

LOOKS = 5
HELD = 4
"""Looks, of the last `LOOKS`, in which a function has to hold the loop: a function that awaits is rarely met once, and
one that is met as often leaves the loop to nobody else, whether it blocks or computes."""

# Not by Path, which drops the "./" of a file in an archive that travelled with a job.
_OURS = tuple(f"{dirname(dirname(__file__))}{sep}{package}{sep}" for package in ("asyncio_operator", "enrichers"))

_told: set[str] = set()


class LoopWatch:
    """Watches the thread of a loop.

    Args:
        thread: its identifier.
        name: whose functions run there.
    """

    def __init__(self, thread: int | None, name: str) -> None:
        self._thread = thread
        self._name = name
        self._looks: deque[bool] = deque(maxlen=LOOKS)

    def look(self) -> None:
        """Look once; to be called at regular intervals."""
        frames = _frames(sys._current_frames().get(self._thread or 0))
        self._looks.append(bool(frames))
        if frames and sum(self._looks) >= HELD and self._name not in _told:
            _told.add(self._name)
            places = ", called by ".join(f"{f.f_code.co_filename}:{f.f_lineno} ({f.f_code.co_name})" for f in frames)
            logger.warning(
                "%s holds the event loop: %d of %d looks found it in %s. What does not await holds up all other calls: "
                "await an asynchronous client there, or put a blocking one into a BlockingEnricher or BlockingFunction",
                self._name,
                sum(self._looks),
                len(self._looks),
                places,
            )


def _frames(innermost: FrameType | None) -> list[FrameType]:
    """Where the thread stands, if it is inside of a user's function that a lane has called: the innermost frame, and
    the user's function, if that is another."""
    frame, user = innermost, None
    while frame is not None and frame.f_code is not Lanes._work.__code__:
        if not frame.f_code.co_filename.startswith(_OURS):
            user = frame
        frame = frame.f_back
    if frame is None or user is None or innermost is None:
        return []
    return [innermost] if innermost is user else [innermost, user]
