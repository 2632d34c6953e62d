"""Detects that the reader of a task's results has ended.

The reader is Spark, which ends a task by closing its end of a socket, or a thread of this package, a `TakingThread`.
"""

from __future__ import annotations

import select
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class TakingThread(threading.Thread):
    """A thread that takes the results of a task in Spark's place.

    It may wait for results forever, and no other thread can interrupt it. So the task itself must check.

    Args:
        work: what the thread does.
        look: raises if the thread needs no more results.
    """

    def __init__(self, name: str, work: Callable[[], None], look: Callable[[], None]) -> None:
        super().__init__(target=work, name=name, daemon=True)
        self.look = look


def spark_watch() -> Callable[[], None] | None:
    """What a task calls from time to time: it sends ready results to Spark, and raises if Spark has closed the socket.

    Spark's own buffer is sent to the JVM only when it holds 64 KB. A task that waits for a slow answer would keep the
    rows of fast answers that long. And when Spark ends a task that has failed or has enough rows (`limit`), it closes
    its end of the socket, which a waiting worker would notice only at its next write.

    The task must write something before each check. While unread input fills the socket, the end of the connection is
    queued behind that input; only data that Spark no longer accepts is answered by the kernel at once. The socket is
    not passed to user code, so it is looked up in the frames of the stack. If it is not found there, results and the
    end of a task are noticed late.
    """
    taker = threading.current_thread()
    if isinstance(taker, TakingThread):
        return taker.look
    frame: FrameType | None = sys._getframe()
    while frame is not None and not hasattr(frame.f_locals.get("outfile"), "flush"):
        frame = frame.f_back
    if frame is None:
        return None
    output: Any = frame.f_locals["outfile"]
    poll = _poll_for_hangup(output)

    def watch() -> None:
        output.flush()
        if poll is not None and poll.poll(0):
            raise BrokenPipeError("Spark has closed the connection to this Python worker: the task is over")

    return watch


def _poll_for_hangup(output: Any) -> Any:
    """A poll object for the socket. None on Windows, and where Spark forks no daemon: there it kills the worker."""
    if not hasattr(select, "poll"):
        return None
    poll = select.poll()
    try:
        poll.register(output.fileno(), getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR)
    except OSError:
        return None
    return poll
