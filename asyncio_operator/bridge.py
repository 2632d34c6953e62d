"""Between an ordinary thread and the loop thread: two one-way channels, and the synchronous face built from them.

Each channel has one producer and one consumer, and no lock: a `deque` is its buffer, and the side that waits says so in
a flag *before* it looks at the buffer once more, so that the other side, which looks at the flag *after* it has changed
the buffer, cannot miss it. Handing over an element costs an append; a thread is only woken when it waits.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

from asyncio_operator.clock import monotonic
from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.loop_thread import loop_thread
from asyncio_operator.run import AHEAD
from asyncio_operator.waiting import wake

T = TypeVar("T")

logger = logging.getLogger("asyncio_operator")


PULSE: Any = object()
"""Comes from a channel in place of an element, so that a thread that waits, or is busy, can look around."""


Process = Callable[[Any, Callable[[], int]], AsyncGenerator[Any, None]]
"""Gives outputs for an input; it may ask how many of them the consumer has not taken yet."""


class ToLoop:
    """Elements from a thread to the loop; an `Input` of the operator."""

    instant = True

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int = AHEAD) -> None:
        self._loop = loop
        self._limit = limit
        self._items: deque[Any] = deque()
        self._room = threading.Event()
        self._waiting: asyncio.Future[None] | None = None
        self._ended = False
        self._closed = False
        self._error: BaseException | None = None

    # -- the thread's side

    def put(self, item: Any) -> bool:
        """Hand an element over; waits while the channel is full. False if the loop's side has closed it."""
        self._items.append(item)
        if self._waiting is not None:
            self._wake_loop()
        while len(self._items) >= self._limit and not self._closed:
            self._room.clear()
            if len(self._items) >= self._limit and not self._closed:
                self._room.wait()
        return not self._closed

    def end(self, error: BaseException | None = None) -> None:
        """No more elements; with an error, the loop's side gets it behind the last element."""
        self._error = error
        self._ended = True
        self._wake_loop()

    def _wake_loop(self) -> None:
        if not self._closed:
            _call(self._loop, self._wake)

    # -- the loop's side

    def _wake(self) -> None:
        wake(self._waiting)

    async def ready(self) -> bool:
        while not self._items:
            if self._ended:
                if self._items:
                    break
                if self._error is not None:
                    raise self._error
                return False
            self._waiting = self._loop.create_future()
            try:
                if not self._items and not self._ended:
                    await self._waiting
            finally:
                self._waiting = None
        return True

    def has_some(self) -> bool:
        return bool(self._items)

    def read_ahead(self) -> list[Any]:
        return list(self._items)

    def __iter__(self) -> Iterator[Any]:
        items, few, room = self._items, self._limit // 2, self._room
        while items:
            item = items.popleft()
            if len(items) == few:
                room.set()
            yield item

    def exhausted(self) -> None:
        """There may be more later."""

    def close(self) -> None:
        """Nobody reads any more: a thread that waits, or comes later, is told."""
        self._closed = True
        self._room.set()


class FromLoop:
    """Elements from the loop to a thread.

    Args:
        pulse: seconds after which the thread gets a `PULSE`, whether elements come meanwhile or not; None for never.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int = AHEAD, pulse: float | None = None) -> None:
        self._loop = loop
        self._pulse = pulse
        self._limit = limit
        self._items: deque[Any] = deque()
        self._filled = threading.Event()
        self._room: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self.ended = threading.Event()

    # -- the loop's side

    async def put(self, item: Any) -> None:
        """Hand an element over; waits while the channel is full."""
        self.put_nowait(item)
        while len(self._items) >= self._limit:
            self._room = self._loop.create_future()
            try:
                if len(self._items) >= self._limit:
                    await self._room
            finally:
                self._room = None

    def put_nowait(self, item: Any) -> None:
        """Hand an element over, whatever the limit."""
        self._items.append(item)
        # Setting it takes a lock, and it is clear only while the thread waits or is about to look again.
        if not self._filled.is_set():
            self._filled.set()

    def waiting(self) -> int:
        """How many elements the thread has not taken."""
        return len(self._items)

    def end(self, error: BaseException | None = None) -> None:
        """No more elements. An error takes the place of those that the thread has not taken yet."""
        if error is not None:
            self._items.clear()
        self._error = error
        self.ended.set()
        self._filled.set()

    def _wake(self) -> None:
        wake(self._room)

    # -- the thread's side

    def __iter__(self) -> Iterator[Any]:
        """The elements, as they come; raises the error behind the last."""
        items, few, pulse = self._items, self._limit // 2, self._pulse
        due = 0.0 if pulse is None else monotonic() + pulse
        while True:
            while items:
                try:
                    item = items.popleft()
                except IndexError:
                    break
                if self._room is not None and len(items) == few:
                    _call(self._loop, self._wake)
                yield item
                if pulse is not None and monotonic() >= due:
                    break
            if pulse is not None and monotonic() >= due:
                yield PULSE
                due = monotonic() + pulse
            self._filled.clear()
            ended = self.ended.is_set()
            if items:
                continue
            if ended:
                self.raise_error()
                return
            self._filled.wait(None if pulse is None else max(0.0, due - monotonic()))

    def raise_error(self) -> None:
        """Raise the error that the channel ended with, unless that has been done."""
        error, self._error = self._error, None
        if error is not None:
            raise error


_running: set[asyncio.Task[Any]] = set()
"""A loop holds its tasks weakly: one that waits would be collected with the iterator that nobody has closed."""


class LoopTask:
    """A coroutine on the loop, started and cancelled by another thread; its end is the end of a `FromLoop`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, main: Callable[[], Coroutine[Any, Any, None]], sink: FromLoop
    ) -> None:
        self._loop = loop
        self._sink = sink
        self._process = os.getpid()
        self._stopped = False
        self._task: asyncio.Task[BaseException | None]
        loop.call_soon_threadsafe(self._start, main)

    def _start(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._task = self._loop.create_task(self._failure_of(main))
        _running.add(self._task)
        self._task.add_done_callback(_running.discard)
        self._task.add_done_callback(lambda task: self._sink.end(None if task.cancelled() else task.result()))

    async def _failure_of(self, main: Callable[[], Coroutine[Any, Any, None]]) -> BaseException | None:
        """What it failed of. Not raised, because ``SystemExit`` would pass through the loop."""
        try:
            await main()
        except asyncio.CancelledError as error:
            return None if self._stopped else error
        except BaseException as error:
            return error
        return None

    def _cancel(self) -> None:
        self._task.cancel()

    def stop(self, patience: float) -> None:
        """Cancel it and wait for its end, `patience` seconds at most; raise what it failed of, if nobody has yet.

        In a forked child, and when the process ends, there is no thread left that could be waited for. On the loop's
        own thread, where the garbage collector may meet an iterator that nobody has closed, it ends without being
        waited for.
        """
        if self._process != os.getpid() or sys.is_finalizing():
            return
        self._stopped = True
        _call(self._loop, self._cancel)
        if _runs_here(self._loop):
            return
        if not self._sink.ended.wait(patience):
            logger.error("a run did not end within %.0f s of being closed; something blocks the event loop", patience)
        self._sink.raise_error()


def iterate(process: Process, elements: Iterable[Any], *, patience: float) -> Iterator[Any]:
    """What `process` gives for `elements` on the loop thread, as an ordinary iterator.

    A thread reads `elements`; the loop thread runs; the caller consumes. Closing the iterator ends the run and waits
    for its end, `patience` seconds at most.

    Raises:
        ConfigurationError: `elements` is not an ordinary iterable.
        StateError: called on the loop thread, which cannot wait for itself.
    """
    if not isinstance(elements, Iterable):
        raise ConfigurationError(
            f"elements is of type {type(elements).__name__}; it must be an ordinary iterable; an asynchronous one goes "
            "to operator.process(elements)"
        )
    thread = loop_thread()
    if thread.is_current():
        raise StateError(
            "the synchronous face was called on the loop thread, which would wait for itself; use "
            "`async for ... in operator.process(elements)` there"
        )
    return _iterate(process, iter(elements), thread.loop, patience)


def _iterate(
    process: Process,
    elements: Iterator[Any],
    loop: asyncio.AbstractEventLoop,
    patience: float,
) -> Iterator[Any]:
    source, sink = ToLoop(loop), FromLoop(loop)
    threading.Thread(target=_read, args=(elements, source), name="asyncio-operator-reader", daemon=True).start()
    run = LoopTask(loop, lambda: _pump(process, source, sink), sink)
    try:
        yield from sink
    finally:
        source.close()
        run.stop(patience)


def _read(elements: Iterator[Any], source: ToLoop) -> None:
    try:
        for element in elements:
            if not source.put(element):
                return
    except BaseException as error:
        source.end(error)
    else:
        source.end()


async def _pump(process: Process, source: ToLoop, sink: FromLoop) -> None:
    async with contextlib.aclosing(process(source, sink.waiting)) as outputs:
        async for output in outputs:
            await sink.put(output)


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call it on the loop. One that is closed, as it is at the end of the process, has nobody left to tell."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the caller runs on the loop, which cannot wait for itself."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def on_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], T]) -> T:
    """What `call` gives on the loop, from whatever thread; here and now where the loop does not run."""
    if _runs_here(loop) or not loop.is_running():
        return call()
    found: concurrent.futures.Future[T] = concurrent.futures.Future()

    def answer() -> None:
        try:
            found.set_result(call())
        except BaseException as error:
            found.set_exception(error)

    loop.call_soon_threadsafe(answer)
    return found.result()
