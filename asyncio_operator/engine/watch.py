"""Watches the threads of running loops from another thread, and reports a user's function that holds one.

A function that does not await delays all other calls. So a thread takes samples of the stacks, and logs a warning.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from os.path import dirname, sep
from types import CodeType, FrameType

from asyncio_operator.loop.forks import forget_in_child

logger = logging.getLogger("asyncio_operator.loop")

INTERVAL = 1.0  # Seconds between two samples. What blocks for less than some seconds in all is not worth a warning.

LOOKS = 5
HELD = 4
"""A function holds the loop if this many of the last `LOOKS` samples are inside of it. A function that awaits is rarely
in a single sample. One that is in nearly all of them leaves no time for other calls, whether it blocks or computes."""

# Not with Path, which would remove the "./" of a file in an archive that was sent with a job.
_OURS = tuple(
    f"{dirname(dirname(dirname(__file__)))}{sep}{package}{sep}" for package in ("asyncio_operator", "enrichers")
)

_LIBRARIES = ("aiohttp", "asyncpg", "numpy", "opentelemetry", "pyarrow", "redis", "rocksdict", "sqlalchemy", "yarl")
"""What the enrichers call. A user's function is called by the library itself, before anything that it calls."""

_warned: set[str] = set()

_runs: dict[object, LoopWatch] = {}  # The runs of this process that are watched.
_thread: threading.Thread | None = None  # Looks at them while there are any.


def _start() -> None:
    global _thread
    _thread = threading.Thread(target=_look, name="asyncio-operator-watch", daemon=True)
    _thread.start()


def _look() -> None:
    global _thread
    pause = threading.Event()
    while _runs:
        pause.wait(INTERVAL)
        for watch in list(_runs.values()):
            watch.look()
    _thread = None
    # A run that began meanwhile may have taken this thread for one that goes on.
    if _runs and _thread is None:
        _start()


def _forget() -> None:
    """The thread of the parent was not forked."""
    global _thread
    _runs.clear()
    _thread = None


forget_in_child(_forget)


@contextmanager
def watched(name: str, lane: CodeType) -> Iterator[None]:
    """Watch the loop of this thread while it is entered.

    Args:
        name: of the user's function, for the warning.
        lane: the code of the coroutine that calls it.
    """
    mark = object()
    _runs[mark] = LoopWatch(threading.get_ident(), name, lane)
    if _thread is None:
        _start()
    try:
        yield
    finally:
        # None in a forked child, which ends the runs of its parent too.
        _runs.pop(mark, None)


class LoopWatch:
    """Watches the thread of a loop, which has this identifier; see `watched`."""

    def __init__(self, thread: int | None, name: str, lane: CodeType) -> None:
        self._thread = thread
        self._name = name
        self._lane = lane
        self._looks: deque[bool] = deque(maxlen=LOOKS)

    def look(self) -> None:
        """Take one sample. It is called at regular intervals."""
        frames = _frames(sys._current_frames().get(self._thread or 0), self._lane)
        self._looks.append(bool(frames))
        if frames and sum(self._looks) >= HELD and self._name not in _warned:
            _warned.add(self._name)
            places = ", called by ".join(f"{f.f_code.co_filename}:{f.f_lineno} ({f.f_code.co_name})" for f in frames)
            logger.warning(
                "%s blocked the event loop (%d of %d samples, at %s). Code that does not await stops all other calls, "
                "and no deadline can cut it: a late result counts as in time. Await an asynchronous client there, or "
                "put a blocking one into a BlockingEnricher or BlockingFunction",
                self._name,
                sum(self._looks),
                len(self._looks),
                places,
            )


def _frames(innermost: FrameType | None, lane: CodeType) -> list[FrameType]:
    """If a lane has called a user's function: the innermost frame, and the frame of that function if it is another."""
    # Not every frame outside of our files is the user's: the loop itself is library code. Only what a lane has called
    # counts.
    frame, user = innermost, None
    while frame is not None and frame.f_code is not lane:
        if not frame.f_code.co_filename.startswith(_OURS):
            user = frame
        frame = frame.f_back
    if frame is None or user is None or innermost is None:
        return []
    package = str(user.f_globals.get("__name__", "")).partition(".")[0]
    if package in _LIBRARIES or package in sys.stdlib_module_names:
        # A library that our files call, and no function of a user.
        return []
    return [innermost] if innermost is user else [innermost, user]
