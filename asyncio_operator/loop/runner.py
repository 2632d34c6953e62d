"""The synchronous interface: an ordinary thread starts, follows and ends a coroutine on the loop thread.

Another thread reads the input into one channel, the loop runs, and the caller takes the outputs from a second channel.
`channels` explains what a channel is. Law: no thread waits for an event that cannot happen. A loop does not wait for
itself, a forked child does not wait for threads of its parent, and no thread waits for a stopped loop.

The error of a run passes through `encodable` before it reaches the caller.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator
from types import GeneratorType
from typing import Any, Self, TypeVar

from asyncio_operator.checks import FUNCTION
from asyncio_operator.engine.failures import stray_run
from asyncio_operator.engine.timing import End, start_task
from asyncio_operator.errors import ConfigurationError
from asyncio_operator.loop.channels import AHEAD, Bell, FromLoop, ToLoop, call_on, check_elsewhere, runs_here
from asyncio_operator.loop.portable_errors import encodable
from asyncio_operator.loop.thread import loop_thread

T = TypeVar("T")

logger = logging.getLogger("asyncio_operator.loop")


LOOK_AGAIN = 0.1
"""Seconds between two checks that a loop still runs while a thread waits for it. Most waits end before the first."""


Process = Callable[[Any, FromLoop], AsyncGenerator[Any, None]]
"""Returns outputs for an input and for the consumer, which knows how many of them it has not taken yet."""


_running: set[asyncio.Task[Any]] = set()
"""The running tasks. A loop holds its tasks weakly, so a waiting task could be freed with an iterator left open."""


class LoopFrame:
    """A coroutine on the loop between two channels: a thread feeds it, and the caller's thread takes its outputs.

    Entering it starts nothing. Call `start` inside of the ``with`` block: what interrupts the start is followed by the
    end of the block, which ends the coroutine and the feeding, and raises an error that was not raised yet.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        # Gets the channel of its inputs and that of its outputs.
        main: Callable[[ToLoop, FromLoop], Coroutine[Any, Any, None]],
        *,
        patience: float,  # Seconds to wait for the end of a cancelled `main`.
        read_ahead: int = AHEAD,  # The maximum number of inputs that wait for `main`.
        ahead: int = AHEAD,  # The maximum number of outputs that wait for the caller; then `main` waits.
        pulse: float | None = None,  # See `FromLoop`.
        name: str = FUNCTION,  # Name of the function that it runs, for messages.
        bells: tuple[Bell | None, Bell | None] = (None, None),  # Those of the channels; None: new ones.
    ) -> None:
        self.source = ToLoop(loop, read_ahead, bells[0])
        self.sink = FromLoop(loop, ahead, pulse, bells[1])
        self._name = name
        self._loop = loop
        self._main = main
        self._patience = patience
        self._process = os.getpid()
        self._stopped = False
        self._over = Bell()
        self._task: End | None = None

    def __enter__(self) -> Self:
        return self

    def start(self, feed: Callable[[], object]) -> None:
        """Start the coroutine, and then by `feed` the thread that feeds it. Call this once."""
        # The feeder last: nothing can interrupt what it reads from, such as Spark's socket, if the run does not start.
        self._loop.call_soon_threadsafe(self._start)
        feed()

    def _start(self) -> None:
        task = self._task = start_task(self._failure(), loop=self._loop)
        _running.add(task)
        task.add_done_callback(_running.discard)
        task.add_done_callback(lambda task: self._ended(None if task.cancelled() else task.result()))

    async def _failure(self) -> BaseException | None:
        """The error with which it failed. Returned, not raised: a ``SystemExit`` would pass through the loop."""
        try:
            await self._main(self.source, self.sink)
        except asyncio.CancelledError as error:
            if self._stopped:
                return None
            task = asyncio.current_task()
            return stray_run(self._name) if task is not None and task.cancelling() else error
        except BaseException as error:
            return error
        return None

    def _ended(self, error: BaseException | None = None) -> None:
        self.sink.end(None if error is None else encodable(error))
        self._over.ring()

    def _stop(self) -> bool:
        """End the feeding, and cancel the coroutine. Returns whether the caller may wait for its end.

        It may not in a forked child or at the end of the process, where the thread to wait for no longer exists. Nor on
        the loop's own thread, where the garbage collector may find an iterator that was not closed.
        """
        # The channel first: a feeder that waits for room in it ends at once, also when the run ends late.
        self.source.close()
        if self._process != os.getpid() or sys.is_finalizing() or self._loop.is_closed():
            return False
        self._stopped = True
        call_on(self._loop, lambda: self._ended() if self._task is None else self._task.cancel())
        return not runs_here(self._loop)

    def cut(self) -> None:
        """End it from a thread that is not its consumer. A consumer that waits for outputs gets the end now, and the
        error."""
        if self._stop() and self._over.wait(self._patience):
            # For the next one: at the end of a chain two threads may cut the same run.
            self._over.ring()

    def __exit__(self, *error: object) -> None:
        if not self._stop():
            return
        if not self.sink.wait_for_end(self._patience):
            logger.error(
                "a run did not end within %.1f s after it was closed: code in it blocks the event loop, or ignores its "
                "cancellation",
                self._patience,
            )
        self.sink.raise_error()


def iterate(process: Process, elements: Iterable[Any], *, patience: float) -> Iterator[Any]:
    """The outputs of `process` for `elements`, run on the loop thread, as an ordinary iterator.

    A second thread reads `elements`, the loop thread runs, and the caller consumes. Closing the iterator ends the run
    and waits for its end, at most `patience` seconds.

    Raises:
        ConfigurationError: `elements` is not an ordinary iterable.
        StateError: it was called, or `next` was called on it, on the loop thread, which cannot wait for itself.
    """
    if not isinstance(elements, Iterable):
        raise ConfigurationError(
            f"elements is of type {type(elements).__name__}; it must be an ordinary iterable; pass an asynchronous one "
            "to operator.process(elements)"
        )
    check_elsewhere(loop_thread().loop)
    begun: list[Callable[[], None]] = []
    outputs = _iterate(process, iter(elements), patience, begun)
    _cuts[outputs] = begun
    return outputs


_cuts: weakref.WeakKeyDictionary[Generator[Any, None, None], list[Callable[[], None]]] = weakref.WeakKeyDictionary()
"""What ends the run of each iterator that has begun, from any thread. A run whose input is the output of another run
ends that run too (law O17). The iterator of that run cannot be closed while the reader thread waits in it, and a name
or a traceback may keep it open."""


def _cut(elements: Iterator[Any]) -> None:
    """If the elements are the outputs of another run, end that run, and those that it reads."""
    for cut in _cuts.get(elements, ()) if type(elements) is GeneratorType else ():
        cut()


def _iterate(
    process: Process, elements: Iterator[Any], patience: float, begun: list[Callable[[], None]]
) -> Generator[Any, None, None]:
    # Looked up again: the process may have been forked since the iterator was made.
    loop = loop_thread().loop
    check_elsewhere(loop)
    frame = LoopFrame(loop, lambda source, sink: pump(process(source, sink), sink), patience=patience)
    feed = frame.source.feed

    def cut() -> None:
        try:
            frame.cut()
        finally:
            _cut(elements)

    begun.append(cut)
    try:
        with frame:
            reader = threading.Thread(target=feed, args=(elements,), name="asyncio-operator-reader", daemon=True)
            frame.start(reader.start)
            yield from frame.sink
    finally:
        # Nothing is left to cut, and a name for an ended run keeps nothing of its input.
        begun.clear()
        _cut(elements)


async def pump(outputs: AsyncGenerator[Any, None], sink: FromLoop) -> None:
    """Put outputs into a channel, and close them in any case."""
    async with contextlib.aclosing(outputs):
        async for output in outputs:
            await sink.put(output)


def on_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], T]) -> T:
    """The result of `call`, made on the loop. If the loop does not run, `call` is made on the calling thread."""
    if runs_here(loop) or not loop.is_running():
        return call()
    found: concurrent.futures.Future[T] = concurrent.futures.Future()
    answered = Bell()

    def answer() -> None:
        try:
            found.set_result(call())
        except BaseException as error:
            found.set_exception(error)
        answered.ring()

    call_on(loop, answer)
    while not answered.wait(LOOK_AGAIN):
        # A loop that stopped may never make the call. Nothing runs on it, so this thread may.
        if not loop.is_running():
            return call()
    return found.result()
