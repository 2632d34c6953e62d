"""The synchronous face: a coroutine on the loop thread, started, followed and ended by an ordinary thread.

A thread of its own reads the input into one channel, the loop runs, the caller takes the outputs from another. Law:
nobody waits for what cannot come. A loop does not wait for itself, a forked child not for its parent's threads, and
nobody for a loop that has stopped. What a channel is stands in `channels`.

What a run failed of comes across as an error that can be told: `encodable` says why.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

from asyncio_operator.channels import Bell, FromLoop, ToLoop, call_on, check_elsewhere, runs_here
from asyncio_operator.errors import ConfigurationError
from asyncio_operator.loop_thread import loop_thread
from asyncio_operator.policies.options import FUNCTION
from asyncio_operator.run import stray_run
from asyncio_operator.told_errors import encodable

T = TypeVar("T")

logger = logging.getLogger("asyncio_operator")


LOOK_AGAIN = 0.1
"""Seconds between two looks whether a loop that is waited for still runs: rarely more than one, and soon enough."""


Process = Callable[[Any, Callable[[], int]], AsyncGenerator[Any, None]]
"""Gives outputs for an input; it may ask how many of them the consumer has not taken yet."""


_running: set[asyncio.Task[Any]] = set()
"""A loop holds its tasks weakly: one that waits would be collected with the iterator that nobody has closed."""


class LoopTask:
    """A coroutine on the loop, started and cancelled by another thread; its end is the end of a `FromLoop`.

    Making one does nothing yet: `start` goes where an interruption of it is followed by `stop`.

    Args:
        name: of the function that it runs, for messages.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        main: Callable[[], Coroutine[Any, Any, None]],
        sink: FromLoop,
        name: str = FUNCTION,
    ) -> None:
        self._name = name
        self._loop = loop
        self._main = main
        self._sink = sink
        self._process = os.getpid()
        self._stopped = False
        self._task: asyncio.Task[BaseException | None] | None = None

    def start(self) -> None:
        """Start it, once."""
        self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        running = self._failure()
        try:
            task = self._task = self._loop.create_task(running)
        except BaseException as error:
            # Whatever a function has done to the loop, nobody is to wait for what will not come.
            running.close()
            self._sink.end(encodable(error))
            return
        _running.add(task)
        task.add_done_callback(_running.discard)
        task.add_done_callback(self._end)

    async def _failure(self) -> BaseException | None:
        """What it failed of. Not raised, because ``SystemExit`` would pass through the loop."""
        try:
            await self._main()
        except asyncio.CancelledError as error:
            if self._stopped:
                return None
            task = asyncio.current_task()
            return stray_run(self._name) if task is not None and task.cancelling() else error
        except BaseException as error:
            return error
        return None

    def _end(self, task: asyncio.Task[BaseException | None]) -> None:
        error = None if task.cancelled() else task.result()
        self._sink.end(None if error is None else encodable(error))

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            self._sink.end()

    def stop(self, patience: float) -> None:
        """Cancel it and wait for its end, `patience` seconds at most; raise what it failed of, if nobody has yet.

        In a forked child, and at the end of the process, no thread is left that could be waited for. On the loop's own
        thread, where the garbage collector may meet an iterator that nobody has closed, it ends without being waited
        for.
        """
        if self._process != os.getpid() or sys.is_finalizing() or self._loop.is_closed():
            return
        self._stopped = True
        call_on(self._loop, self._cancel)
        if runs_here(self._loop):
            return
        if not self._sink.wait_for_end(patience):
            logger.error(
                "a run did not end within %.1f s of being closed: something blocks the event loop, or ignores its "
                "cancellation there",
                patience,
            )
        self._sink.raise_error()


def iterate(process: Process, elements: Iterable[Any], *, patience: float) -> Iterator[Any]:
    """What `process` gives for `elements` on the loop thread, as an ordinary iterator.

    A thread reads `elements`; the loop thread runs; the caller consumes. Closing the iterator ends the run and waits
    for its end, `patience` seconds at most.

    Raises:
        ConfigurationError: `elements` is not an ordinary iterable.
        StateError: called, or stepped, on the loop thread, which cannot wait for itself.
    """
    if not isinstance(elements, Iterable):
        raise ConfigurationError(
            f"elements is of type {type(elements).__name__}; it must be an ordinary iterable; an asynchronous one goes "
            "to operator.process(elements)"
        )
    check_elsewhere(loop_thread().loop)
    return _iterate(process, iter(elements), patience)


def _iterate(process: Process, elements: Iterator[Any], patience: float) -> Iterator[Any]:
    # The process may have been forked since the iterator was made.
    loop = loop_thread().loop
    check_elsewhere(loop)
    source, sink = ToLoop(loop), FromLoop(loop)
    run = LoopTask(loop, lambda: _pump(process, source, sink), sink)
    try:
        run.start()
        threading.Thread(target=source.feed, args=(elements,), name="asyncio-operator-reader", daemon=True).start()
        yield from sink
    finally:
        source.close()
        run.stop(patience)


async def _pump(process: Process, source: ToLoop, sink: FromLoop) -> None:
    async with contextlib.aclosing(process(source, sink.waiting)) as outputs:
        async for output in outputs:
            await sink.put(output)


def on_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], T]) -> T:
    """What `call` gives on the loop, from whatever thread; here and now where the loop does not run."""
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
        if not loop.is_running():
            return call()
    return found.result()
