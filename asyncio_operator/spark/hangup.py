"""Whether anybody still takes what a task gives.

Spark does, and ends a task by closing its end of a socket; or a thread of this package does, a `TakingThread`.
"""

from __future__ import annotations

import select
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class TakingThread(threading.Thread):
    """A thread on which the results of a task are taken in place of Spark.

    It may wait for them for ever, and nobody can interrupt it; so the task has to look.

    Args:
        work: what the thread does.
        look: raises if it needs no more results.
    """

    def __init__(self, name: str, work: Callable[[], None], look: Callable[[], None]) -> None:
        super().__init__(target=work, name=name, daemon=True)
        self.look = look


def spark_watch() -> Callable[[], None] | None:
    """What a task does from time to time: hand what is ready to Spark, and raise if Spark is gone.

    Spark's own buffer leaves for the JVM when 64 KB are in it; a task that waits for a slow answer would keep the rows
    of the fast ones that long. And Spark ends a task that has failed, or has enough rows (`limit`), by closing its end
    of the socket, which a worker that waits would notice only at its next write. It has to write something before each
    look: while input that it does not read yet fills the socket, the end of the connection waits behind that, and only
    data that nobody takes any more is answered by the kernel at once. Where the socket, which is not handed to user
    code, is not found on the stack, all this comes late.
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
    """None on Windows, and where Spark forks no daemon: there it kills the worker when the task ends."""
    if not hasattr(select, "poll"):
        return None
    poll = select.poll()
    try:
        poll.register(output.fileno(), getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR)
    except OSError:
        return None
    return poll
