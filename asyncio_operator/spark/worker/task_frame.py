"""The frame of every task in a Python worker: three threads, and what ends them.

A feeder thread reads Spark's input. A coroutine on the loop thread does the work. The task's main thread takes its
outputs and gives them to Spark. Threads share nothing but two channels. The feeder and the coroutine end when the task
ends, in whatever way. The loop thread stays for the next task.

A task also ends when the reader of its results has ended: Spark, which closes its end of a socket, or the feeder of
another task of the same Python stage, a `TakingThread`.

Spark's Python worker collects garbage at the end of every task, and looks at all objects of the process. So everything
is frozen (`gc.freeze`) when the first task ends: the modules. What caches hold is in columns, or on the disk.

A task whose calls change something makes none ahead of the rows that Spark takes (law X15). Spark reads the next row
only when it needs one. But what a worker writes goes into the buffers of its connection, so a write says nothing about
the reader. The kernel knows how many bytes were not delivered (`SIOCOUTQ`; for a Unix socket that is all: they were not
read), and for a TCP connection of this machine, which Spark's is, how many the other end has not read (`sock_diag(7)`
of Linux), each in some microseconds. Both are needed: on a busy machine a small write is delivered some milliseconds
later, and until then the other end has nothing to read. Elsewhere nothing is known, and all that was written counts as
read.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import socket
import struct
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from functools import partial
from types import FrameType
from typing import Any, Final

from asyncio_operator.engine.timing import wake
from asyncio_operator.loop.channels import AHEAD, PULSE, FromLoop, ToLoop, call_on
from asyncio_operator.loop.runner import LoopFrame
from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.policies.shutdown import TASK_END, WATCH_INTERVAL
from asyncio_operator.telemetry.propagation import Propagated, extracted, in_task

ASKED: Any = object()  # An output that says that the next input is waited for.
READ_AHEAD = 2  # The number of batches read from Spark ahead of the loop: one is processed while the next is read.


def outputs_of(
    inputs: Iterable[Any],  # Read on a thread of its own, and passed to `main`.
    main: Callable[[ToLoop, FromLoop], Coroutine[Any, Any, None]],
    *,
    name: str,  # Name of the user's function, for the log.
    patience: float = TASK_END,  # Seconds to wait for the end of a cancelled `main`.
    ahead: int = AHEAD,  # The maximum number of outputs that wait for the main thread; then `main` waits.
    read_ahead: int = READ_AHEAD,  # The maximum number of inputs that wait for `main`.
    watch: float = WATCH_INTERVAL,  # Seconds between two pulses.
    # Raises if outputs are no longer read; by default the result of `spark_watch`.
    check_taker: Callable[[], None] | None = None,
    propagated: Propagated | None = None,  # The driver's trace context, and the function that sets up OpenTelemetry.
    singly: bool = False,  # `main` hands outputs over with `one_by_one`.
    asks: bool = False,  # An `ASKED` comes before each input is read.
) -> Generator[Any]:
    """Yields what `main` puts into its channel, for the task's main thread. The caller must close it in any case.

    Every `watch` seconds it yields a `PULSE`. The caller must then write something to Spark, however little: only after
    a write can the end of Spark's connection be seen.

    Raises:
        BrokenPipeError: Spark has ended the task, or another task that reads this one's outputs has ended.
        BaseException: the error of reading the input, or of `main`.
    """
    thread = loop_thread()
    check = check_taker or spark_watch()
    wait_until_read = until_spark_reads() if singly else None

    async def in_trace_context(source: ToLoop, sink: FromLoop) -> None:
        with extracted(propagated):
            await main(source, sink)

    frame = LoopFrame(
        thread.loop, in_trace_context, patience=patience, read_ahead=read_ahead, ahead=ahead, pulse=watch, name=name
    )
    source, sink = frame.source, frame.sink

    def asking() -> Iterator[Any]:
        call_on(thread.loop, lambda: sink.put_nowait(ASKED))
        for one in inputs:
            yield one
            call_on(thread.loop, lambda: sink.put_nowait(ASKED))

    def still_read() -> None:
        if source.closed:
            raise BrokenPipeError("the task that reads these results has ended")

    with in_task(propagated), frame:
        read = asking() if asks else inputs
        frame.start(TakingThread(lambda: source.feed(read), still_read).start)
        for output in sink:
            # After the yield, because only then has the caller written something that Spark can read, or refuse.
            if output is PULSE:
                yield output
                if check is not None:
                    check()
            elif wait_until_read is not None:
                taken, one = output
                yield one
                wait_until_read()
                taken()
            else:
                yield output
    # Spark's worker collects garbage next, if it is one that runs several tasks. It throws away one whose task failed.
    if "SPARK_REUSE_WORKER" in os.environ and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


class TakingThread(threading.Thread):
    """A thread that reads the results of a task instead of Spark.

    It may wait for results for ever, and no other thread can interrupt it. So the task itself has to check.
    """

    def __init__(self, work: Callable[[], None], look: Callable[[], None]) -> None:
        super().__init__(target=work, name="asyncio-operator-feeder", daemon=True)
        self.look = look  # Raises if the thread needs no more results.


def until_spark_reads() -> Callable[[], None]:
    """A function for a task to call when it has written a row: it sends the row, and waits until Spark has read it.

    It raises a `BrokenPipeError` if Spark has closed the socket. Where the socket is not found, it does not wait.
    """
    frame = None if isinstance(threading.current_thread(), TakingThread) else spark_frame()
    if frame is None:
        return lambda: None
    output, never = frame["outfile"], threading.Event()
    unread, is_closed = unread_by(output), _closed_by_spark(output)

    def wait() -> None:
        output.flush()
        pause = FIRST_LOOK
        while unread is not None:
            try:
                left, gone = unread(), is_closed()
            except GoneError:
                left, gone = 0, True
            # First: Java shuts a connection down before it closes it, and then nothing in it counts as unread.
            if gone:
                raise BrokenPipeError(_CLOSED)
            if not left:
                return
            never.wait(pause)
            pause = min(2 * pause, LAST_LOOK)

    return wait


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
    is_closed = _closed_by_spark(output)

    def watch() -> None:
        output.flush()
        if is_closed():
            raise BrokenPipeError(_CLOSED)

    return watch


_CLOSED = "Spark has closed the connection to this Python worker: the task is over"


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


def _closed_by_spark(output: Any) -> Callable[[], bool]:
    """Whether Spark has closed its end of the socket. Never on Windows, and where Spark forks no daemon: there it kills
    the worker."""
    if not hasattr(select, "poll"):
        return lambda: False
    poll = select.poll()
    # POLLRDHUP, where the system has it, is the end of Spark's half alone; POLLHUP waits for both halves.
    try:
        poll.register(output.fileno(), getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR)
    except OSError:
        return lambda: False
    return lambda: bool(poll.poll(0))


async def one_by_one(
    outputs: AsyncGenerator[Any], sink: FromLoop, made: Callable[[Any], Any] = lambda output: output
) -> None:
    """Hand outputs from the loop to the task's main thread, as `made` makes them: the next one when Spark has read the
    one before (law X15)."""
    loop = asyncio.get_running_loop()
    async with contextlib.aclosing(outputs):
        async for output in outputs:
            taken = loop.create_future()
            sink.put_nowait((partial(call_on, loop, partial(wake, taken)), made(output)))
            await taken


SOCK_DIAG: Final = 4  # NETLINK_SOCK_DIAG
BY_FAMILY: Final = 20  # SOCK_DIAG_BY_FAMILY

UNREAD_AT: Final = 72
"""Where `idiag_rqueue` is in the answer: behind its head, four bytes, two addresses, and `idiag_expires`."""

ANY: Final = 2**32 - 1

FIRST_LOOK = 0.0001
LAST_LOOK = 0.02  # Seconds between two looks at a reader: at first as long as reading a row takes.


class GoneError(Exception):
    """The other end is closed."""


def unread_by(output: Any) -> Callable[[], int] | None:
    """A function for the number of bytes that the reader of a file over a socket has not read, or None if this cannot
    be known. The function raises `GoneError` if the other end is closed."""
    if not sys.platform.startswith("linux"):
        return None
    import fcntl
    import termios

    def undelivered() -> int:
        answer = bytearray(4)
        fcntl.ioctl(output.fileno(), termios.TIOCOUTQ, answer)
        return int.from_bytes(answer, sys.byteorder)

    try:
        with socket.socket(fileno=os.dup(output.fileno())) as connection:
            look = undelivered if connection.family == socket.AF_UNIX else _unread_in_tcp(connection, undelivered)
        look()
    except (OSError, ValueError, GoneError):
        return None
    return look


def _unread_in_tcp(connection: socket.socket, undelivered: Callable[[], int]) -> Callable[[], int]:
    def address(name: Any) -> bytes:
        return socket.inet_pton(connection.family, name[0]).ljust(16, b"\0")

    # Otherwise a small write waits for the acknowledgement of the one before, up to 40 ms, and is unread nowhere.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    own, other = connection.getsockname(), connection.getpeername()
    # The socket of the other end, whose own address is this end's peer. No interface, and no cookie.
    names = struct.pack("!HH", other[1], own[1]) + address(other) + address(own) + struct.pack("=III", 0, ANY, ANY)
    question = struct.pack("=BBBBI", connection.family, socket.IPPROTO_TCP, 0, 0, ANY) + names
    message = struct.pack("=IHHII", 16 + len(question), BY_FAMILY, 1, 0, 0) + question
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, SOCK_DIAG)

    def look() -> int:
        # First: what is delivered between the two questions is counted by the second.
        if left := undelivered():
            return left
        kernel.send(message)
        answer = kernel.recv(8192)
        if struct.unpack_from("=H", answer, 4)[0] != BY_FAMILY:
            raise GoneError
        return int(struct.unpack_from("=I", answer, UNREAD_AT)[0])

    return look
