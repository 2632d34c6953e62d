"""The one event loop of the process, on a daemon thread of its own.

It starts when it is first asked for, so never before a fork: a process that was forked from one with a running loop
starts its own. It outlives every task of a Spark worker, and so do the clients that were opened on it; at the end of
the process what still runs on it is cancelled. The loop is uvloop's if that is installed, asyncio's own otherwise.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading

from asyncio_operator.shutdown import PROCESS_END

logger = logging.getLogger("asyncio_operator")


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    """A loop and its thread."""

    def __init__(self) -> None:
        self.loop = _new_event_loop()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="asyncio-operator-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._stopping:
            try:
                self.loop.run_forever()
            except BaseException:
                # A task of the user's that raises SystemExit or KeyboardInterrupt throws it through the loop. Whoever
                # awaits that task gets it too, and the loop belongs to others as well.
                with contextlib.suppress(BaseException):
                    logger.exception("an exception passed through the event loop, which goes on")
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    @property
    def ident(self) -> int | None:
        """The identifier of the thread."""
        return self._thread.ident

    def stop(self) -> None:
        """Cancel what runs on the loop, end it, and wait for its thread."""
        self._stopping = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PROCESS_END)


_lock = threading.Lock()
_current: LoopThread | None = None


def loop_thread() -> LoopThread:
    """The loop thread of this process, started if there is none yet."""
    global _current
    with _lock:
        if _current is None:
            _current = LoopThread()
            atexit.register(_current.stop)
        return _current


def _forget() -> None:
    """In a forked child: the thread was not forked, and the lock may be held by one that was not either.

    If it is the thread of the loop that has forked, in a function that runs there, the child goes on with a copy of the
    loop once that function is over. It ends there: the work is its parent's, and so is whatever it would answer.
    """
    global _current, _lock
    if _current is not None:
        atexit.unregister(_current.stop)
        if threading.get_ident() == _current.ident:
            _current.loop.call_soon(os._exit, 1)
    _current = None
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)
