"""The frame of every task in a Python worker: three threads, and what ends them.

A feeder thread reads Spark's input. A coroutine on the loop thread does the work. The task's main thread takes its
outputs and gives them to Spark. Threads share nothing but two channels. The feeder and the coroutine end when the task
ends, in whatever way. The loop thread stays for the next task.

A task also ends when the reader of its results has ended: Spark, which closes its end of a socket, or a thread of this
package, a `TakingThread`.

Spark's Python worker collects garbage at the end of every task, and looks at all objects of the process: beside a
million cached keys that takes half a second. So everything is frozen (`gc.freeze`) when the first task ends: the
modules, and what caches have on the heap. Frozen objects are still freed when nothing refers to them; only cycles among
them are not found. So everything is thawed, collected and frozen again when there are many more keys than the last time
or many fewer, or when many were replaced.
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from types import FrameType
from typing import Any, Final

from asyncio_operator.engine.timing import wake
from asyncio_operator.lookup.cache_directories import caches, open_caches
from asyncio_operator.loop.channels import AHEAD, PULSE, FromLoop, ToLoop, call_on
from asyncio_operator.loop.runner import LoopFrame
from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.policies.shutdown import TASK_END, WATCH_INTERVAL
from asyncio_operator.spark.worker.unread import wait_until_read
from asyncio_operator.telemetry.propagation import Propagated, extracted, in_task

READ_AHEAD = 2
"""The number of batches read from Spark ahead of the loop: one is processed while the next is read."""


def outputs_of(
    inputs: Iterable[Any],
    main: Callable[[ToLoop, FromLoop], Coroutine[Any, Any, None]],
    *,
    name: str,
    patience: float = TASK_END,
    ahead: int = AHEAD,
    read_ahead: int = READ_AHEAD,
    watch: float = WATCH_INTERVAL,
    check_taker: Callable[[], None] | None = None,
    propagated: Propagated | None = None,
) -> Generator[Any]:
    """Yields what `main` puts into its channel, for the task's main thread. The caller must close it in any case.

    Every `watch` seconds it yields a `PULSE`. The caller must then write something to Spark, however little: only after
    a write can the end of Spark's connection be seen.

    Args:
        inputs: read on a thread of its own, and passed to `main`.
        name: name of the user's function, for the log.
        patience: seconds to wait for the end of a cancelled `main`.
        ahead: the maximum number of outputs that wait for the main thread; then `main` waits.
        read_ahead: the maximum number of inputs that wait for `main`.
        watch: seconds between two pulses.
        check_taker: raises if outputs are no longer read; by default the result of `spark_watch`.
        propagated: the driver's trace context, and the function that sets up OpenTelemetry.

    Raises:
        BrokenPipeError: Spark has ended the task, or another task that reads this one's outputs has ended.
        BaseException: the error of reading the input, or of `main`.
    """
    thread = loop_thread()
    check = check_taker or spark_watch()

    async def in_trace_context(source: ToLoop, sink: FromLoop) -> None:
        with extracted(propagated):
            await main(source, sink)

    frame = LoopFrame(
        thread.loop, in_trace_context, patience=patience, read_ahead=read_ahead, ahead=ahead, pulse=watch, name=name
    )
    source = frame.source

    def still_read() -> None:
        if source.closed:
            raise BrokenPipeError("the task that reads these results has ended")

    with in_task(propagated), frame:
        frame.start(TakingThread("asyncio-operator-feeder", lambda: source.feed(inputs), still_read))
        for output in frame.sink:
            yield output
            # After the yield, because only then has the caller written something that Spark can refuse.
            if output is PULSE and check is not None:
                check()
    # Spark's worker collects garbage next, if it is one that runs several tasks. It throws away one whose task failed.
    if "SPARK_REUSE_WORKER" in os.environ:
        frozen.look(sum(cache.keys_on_heap for cache in open_caches(caches)))


class TakingThread(threading.Thread):
    """A thread that reads the results of a task instead of Spark.

    It may wait for results for ever, and no other thread can interrupt it. So the task itself has to check.

    Args:
        work: what the thread does.
        look: raises if the thread needs no more results.
        wait_until_read: waits until Spark has read what the thread was given; None: reading it is all.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        look: Callable[[], None],
        wait_until_read: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(target=work, name=name, daemon=True)
        self.look = look
        self.wait_until_read = wait_until_read


def until_spark_reads() -> Callable[[], None]:
    """A function for a task to call when it has written a row: it waits until Spark has read it.

    It raises a `BrokenPipeError` if Spark has closed the socket. Where the socket is not found, it does not wait.
    """
    taker = threading.current_thread()
    if isinstance(taker, TakingThread):
        return taker.wait_until_read or _nothing
    frame = spark_frame()
    if frame is None:
        return _nothing
    output = frame["outfile"]
    poll = _poll_for_hangup(output)
    return wait_until_read(output, lambda: poll is not None and bool(poll.poll(0)))


def _nothing() -> None:
    """Wait for nothing."""


def spark_watch() -> Callable[[], None] | None:
    """A function for a task to call regularly: it sends ready results to Spark, and raises if Spark closed the socket.

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
    frame = spark_frame()
    if frame is None:
        return None
    output = frame["outfile"]
    poll = _poll_for_hangup(output)

    def watch() -> None:
        output.flush()
        if poll is not None and poll.poll(0):
            raise BrokenPipeError("Spark has closed the connection to this Python worker: the task is over")

    return watch


def spark_frame(*names: str) -> Mapping[str, Any] | None:
    """The variables of the innermost frame of this thread that has the file "outfile", to which it writes for Spark,
    and others of these names; None if there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        found = frame.f_locals
        if hasattr(found.get("outfile"), "flush") and all(name in found for name in names):
            return found
        frame = frame.f_back
    return None


def _poll_for_hangup(output: Any) -> Any:
    """A poll object for the socket. None on Windows, and where Spark forks no daemon: there it kills the worker."""
    if not hasattr(select, "poll"):
        return None
    poll = select.poll()
    # POLLRDHUP, where the system has it, is the end of Spark's half alone; POLLHUP waits for both halves.
    try:
        poll.register(output.fileno(), getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR)
    except OSError:
        return None
    return poll


class Handoff:
    """Hands outputs from the loop to the task's main thread one at a time: the next one when the thread has passed on
    the one before.

    Args:
        sink: the channel between them.
    """

    def __init__(self, sink: FromLoop) -> None:
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._taken: asyncio.Future[None] | None = None

    async def give(self, output: Any) -> None:
        """Give the thread an output, and wait until it has called `taken`. Called on the loop."""
        self._taken = self._loop.create_future()
        self._sink.put_nowait((self, output))
        await self._taken

    def taken(self) -> None:
        """The output was passed on. Called by the thread."""
        call_on(self._loop, self._wake)

    def _wake(self) -> None:
        wake(self._taken)


LEAST: Final = 10_000
"""Cached keys that are worth another time: a collection beside fewer takes some milliseconds."""

GROWTH: Final = 1.5
"""How many times the keys of the last time: all times together take as long as three of the spared collections."""


class Frozen:
    """What is frozen for the caches of a process."""

    def __init__(self) -> None:
        self._keys = 0
        self._frozen = 0

    def look(self, keys: int) -> None:
        """Freeze everything, if that is worth it beside this number of cached keys. Called on the main thread of a
        task, at its end: it may take as long as one collection, which would hold up what runs on the loop."""
        least, most = self._keys / GROWTH, max(LEAST, self._keys) * GROWTH
        # Replaced are as many objects as there were keys. A key has two or more.
        replaced = self._frozen - gc.get_freeze_count() >= self._keys
        if self._frozen and (keys < most if self._keys < LEAST else least < keys < most and not replaced):
            return
        # What the task that ends now leaves behind is found the next time.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._keys, self._frozen = keys, gc.get_freeze_count()


frozen = Frozen()
"""Of this process."""
