"""Two one-way channels between an ordinary thread and the loop.

Each has one producer and one consumer, and no lock: a `deque` is its buffer, and the side that waits says so in a flag
*before* it looks at the buffer once more, so that the other side, which looks at the flag *after* it has changed the
buffer, cannot miss it. Handing over an element costs an append; a thread is only woken when it waits.

Law: the loop's side waits for nothing that a thread can hold. A thread that waits may be called away, by a signal or by
the garbage collector, to something that waits for the loop; and a fork may leave whatever is held, held for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from asyncio_operator.clock import monotonic
from asyncio_operator.errors import StateError
from asyncio_operator.run import AHEAD
from asyncio_operator.waiting import wake

PULSE: Any = object()
"""Comes from a channel in place of an element, so that a thread that waits, or is busy, can look around."""


class Bell:
    """Wakes the one thread that waits for it, or will; an `Event` that its `wait` clears.

    A bare lock, on which ringing never waits: an `Event` holds a lock of its own while it begins to wait.
    """

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """Wake it; if nobody has heard the last ring yet, that will do."""
        if self._silent.locked():
            with contextlib.suppress(RuntimeError):
                self._silent.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for a ring since the last one that was heard; False if there is none in so many seconds."""
        return self._silent.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))


class ToLoop:
    """Elements from a thread to the loop; an `Input` of the operator."""

    instant = True

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int = AHEAD) -> None:
        self._loop = loop
        self._limit = limit
        self._items: deque[Any] = deque()
        self._room = Bell()
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
            self._room.wait()
        return not self._closed

    def end(self, error: BaseException | None = None) -> None:
        """No more elements; with an error, the loop's side gets it behind the last element."""
        self._error = error
        self._ended = True
        self._wake_loop()

    def feed(self, items: Iterable[Any]) -> None:
        """Hand all of them over, then the end, or what reading them has raised; to be called on a thread of its own."""
        try:
            for item in items:
                if not self.put(item):
                    return
        except BaseException as error:
            self.end(error)
        else:
            self.end()

    def _wake_loop(self) -> None:
        if not self._closed:
            call_on(self._loop, self._wake)

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
                room.ring()
            yield item

    def exhausted(self) -> None:
        """There may be more later."""

    @property
    def closed(self) -> bool:
        """Whether nobody reads any more."""
        return self._closed

    def close(self) -> None:
        """Nobody reads any more: a thread that waits, or comes later, is told."""
        self._closed = True
        self._room.ring()


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
        self._filled = Bell()
        self._room: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._ended = False
        self._taken_back = 0
        self._process = os.getpid()

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
        self._filled.ring()

    def waiting(self) -> int:
        """How many elements the thread has not taken, those among them that an error took back."""
        return len(self._items) + self._taken_back

    def end(self, error: BaseException | None = None) -> None:
        """No more elements. An error takes the place of those that the thread has not taken yet."""
        if error is not None:
            # One at a time, because the thread may be taking them too.
            with contextlib.suppress(IndexError):
                while True:
                    self._items.pop()
                    self._taken_back += 1
        self._error = error
        self._ended = True
        self._filled.ring()

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
                    call_on(self._loop, self._wake)
                yield item
                if pulse is not None and monotonic() >= due:
                    break
            if pulse is not None and monotonic() >= due:
                yield PULSE
                due = monotonic() + pulse
            ended = self._ended
            if items:
                continue
            if ended:
                self.raise_error()
                return
            self._check_wait()
            self._filled.wait(None if pulse is None else max(0.0, due - monotonic()))

    def _check_wait(self) -> None:
        """Raise a `StateError` where nothing could come while the thread waits."""
        check_elsewhere(self._loop)
        if self._process != os.getpid():
            raise StateError(
                "the outputs come from a run of another process, which this one was forked from; only that process can "
                "read on, and this one starts a run of its own"
            )

    def wait_for_end(self, seconds: float) -> bool:
        """Wait until there will be no more elements; False if that takes longer."""
        ends = monotonic() + seconds
        while not self._ended:
            if not self._filled.wait(max(0.0, ends - monotonic())):
                return self._ended
        return True

    def raise_error(self) -> None:
        """Raise the error that the channel ended with, unless that has been done."""
        error, self._error = self._error, None
        if error is not None:
            raise error


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call it on the loop. One that is closed, as it is at the end of the process, has nobody left to tell."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


def runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the caller runs on the loop, which cannot wait for itself."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def check_elsewhere(loop: asyncio.AbstractEventLoop) -> None:
    """Raise a `StateError` if the caller runs on the loop."""
    if runs_here(loop):
        raise StateError(
            "the synchronous face was called on the loop thread, which would wait for itself; use "
            "`async for ... in operator.process(elements)` there"
        )
