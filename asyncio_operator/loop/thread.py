"""The one event loop of the process, on a daemon thread of its own.

It starts on first use. A process that was forked from one with a running loop starts its own. The loop outlives every
task of a Spark worker, and so do the clients that were opened on it. At the end of the process every task on it is
cancelled. It is uvloop's loop if uvloop is installed, else asyncio's own.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading

from asyncio_operator.loop.forks import forget_in_child
from asyncio_operator.policies.shutdown import PROCESS_END

logger = logging.getLogger("asyncio_operator.loop")


class LoopThread:
    """A loop and its thread."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop
        try:
            import uvloop
        except ImportError:
            self.loop = asyncio.new_event_loop()
        else:
            self.loop = uvloop.new_event_loop()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="asyncio-operator-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._stopping:
            try:
                self.loop.run_forever()
            except BaseException:
                # A user's task that raises SystemExit or KeyboardInterrupt passes it through the loop. The code that
                # awaits the task gets the error too, and other users of the loop must go on.
                with contextlib.suppress(BaseException):
                    logger.exception("a task raised an exception that stopped the event loop; the loop starts again")
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def stop(self) -> None:
        """Cancel all tasks on the loop, end the loop, and wait for its thread."""
        self._stopping = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PROCESS_END)


_lock = threading.Lock()
_current: LoopThread | None = None


def loop_thread() -> LoopThread:
    """The loop thread of this process. The first call starts it."""
    global _current
    # Several threads may come first at the same time, and the process must have one loop.
    with _lock:
        if _current is None:
            _current = LoopThread()
            atexit.register(_current.stop)
        return _current


def _forget() -> None:
    """Drop the loop thread in a forked child: its thread was not forked, and the lock may be held by a lost thread."""
    global _current, _lock
    if _current is not None:
        # Its thread does not exist here, so waiting for it at the end of the process would never end.
        atexit.unregister(_current.stop)
        # A function has forked on the loop's own thread. When it ends, the child would go on with a copy of the loop,
        # and do the work of its parent a second time.
        if threading.get_ident() == _current._thread.ident:
            _current.loop.call_soon(os._exit, 1)
    _current = None
    _lock = threading.Lock()


forget_in_child(_forget)
