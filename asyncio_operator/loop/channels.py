"""Two one-way channels between an ordinary thread and the event loop.

Each channel has one producer and one consumer, and no lock. Its buffer is a `deque`. The side that waits first sets a
flag, *then* looks at the buffer once more. The other side first changes the buffer, *then* looks at the flag. So no
wake-up is lost. Handing over an element costs one append. A thread is woken only when it waits.

Law: the loop's side never waits for anything that a thread can hold. A waiting thread may be interrupted, by a signal
or by the garbage collector, with code that waits for the loop. And after a fork, a lock that another thread held stays
locked forever.
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
from asyncio_operator.engine.contracts import Input
from asyncio_operator.engine.timing import wake
from asyncio_operator.errors import StateError

AHEAD = 128
"""Outputs that may be on their way to a consumer on another thread: hundreds of microseconds of work, as much as
waking a thread costs."""

PULSE: Any = object()
"""A channel yields it between elements at regular times, so that a waiting or busy thread can do other checks."""


class Bell:
    """Wakes the one thread that waits for it now or later; an `Event` that `wait` clears.

    It is a bare lock, because ringing must never wait: an `Event` holds its inner lock while a thread begins to wait.
    """

    def __init__(self) -> None:
        # The bell is silent while the lock is held, and ringing releases it.
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """Wake the thread. A second ring before the thread has heard the first one changes nothing."""
        if self._silent.locked():
            with contextlib.suppress(RuntimeError):  # Another thread has just released it.
                self._silent.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the first ring that was not heard yet. False if none comes within `seconds`."""
        return self._silent.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))


class ToLoop(Input):
    """Elements from a thread to the loop. It is an `Input` of the operator. `bell` wakes the thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int = AHEAD, bell: Bell | None = None) -> None:
        self._loop = loop
        self._limit = limit
        self._items: deque[Any] = deque()
        self._room = bell or Bell()
        self._waiting: asyncio.Future[None] | None = None
        self._ended = False
        self.closed = False  # Whether the reader has ended.
        self._error: BaseException | None = None

    # -- the thread's side

    def put(self, item: Any) -> bool:
        """Add an element; waits while the channel is full. False if the loop's side has closed it."""
        # The buffer first, then the flag: the loop's side does the opposite, so one of both sees the other.
        self._items.append(item)
        if self._waiting is not None and not self.closed:
            call_on(self._loop, lambda: wake(self._waiting))
        # In a loop, because a ring may be an old one, for room that is full again.
        while len(self._items) >= self._limit and not self.closed:
            self._room.wait()
        return not self.closed

    def is_full(self) -> bool:
        """Whether `put` waits on the bell."""
        return len(self._items) >= self._limit and not self.closed

    def end(self, error: BaseException | None = None) -> None:
        """End the elements. The loop's side gets the error, if there is one, after the last element."""
        # The error first: the loop's side reads it as soon as it sees the end.
        self._error = error
        self._ended = True
        if not self.closed:
            call_on(self._loop, lambda: wake(self._waiting))

    def feed(self, items: Iterable[Any]) -> None:
        """Add all items, then the end, or the error that reading them raised. It runs on a thread of its own."""
        try:
            for item in items:
                if not self.put(item):
                    return
        except BaseException as error:
            self.end(error)
        else:
            self.end()

    # -- the loop's side

    async def ready(self) -> bool:
        while not self._items:
            if self._ended:
                if self._items:  # Added between the two checks, before the end.
                    break
                if self._error is not None:
                    raise self._error
                return False
            # The flag first, then one more look: see the module's docstring.
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
            if len(items) == few:  # Half empty: a full channel would otherwise wake the thread for each element.
                room.ring()
            yield item

    def close(self) -> None:
        """End reading. A thread that waits in `put`, or calls it later, gets False."""
        # The flag first: the thread that the ring wakes looks at it.
        self.closed = True
        self._room.ring()


class FromLoop:
    """Elements from the loop to a thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limit: int = AHEAD,  # The most elements that wait for the thread, but for those of `put_nowait`.
        # Seconds after which the thread gets a `PULSE`, even if elements came meanwhile; None for never.
        pulse: float | None = None,
        bell: Bell | None = None,  # Wakes the thread; None: a new one.
    ) -> None:
        self._loop = loop
        self._pulse = pulse
        self.limit = limit
        self._items: deque[Any] = deque()
        self._filled = bell or Bell()
        self._room: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self.ended = False  # Whether no more elements come.
        self._taken_back = 0
        self._process = os.getpid()

    # -- the loop's side

    async def put(self, item: Any) -> None:
        """Add an element; waits while the channel is full."""
        self.put_nowait(item)
        while len(self._items) >= self.limit:
            # The flag first, then one more look: the thread may have emptied the buffer before it could see the flag.
            self._room = self._loop.create_future()
            try:
                if len(self._items) >= self.limit:
                    await self._room
            finally:
                self._room = None

    def put_nowait(self, item: Any) -> None:
        """Add an element, whatever the limit."""
        self._items.append(item)
        self._filled.ring()

    def waiting(self) -> int:
        """The number of elements that the thread has not taken, those that an error took back included."""
        return len(self._items) + self._taken_back

    def end(self, error: BaseException | None = None) -> None:
        """End the elements. An error replaces the elements that the thread has not taken yet."""
        if error is not None:
            # One at a time, because the thread may take elements at the same time. From the end, so those that it gets
            # are the first ones, in order.
            with contextlib.suppress(IndexError):
                while True:
                    self._items.pop()
                    self._taken_back += 1
        self._error = error
        self.ended = True
        self._filled.ring()

    # -- the thread's side

    def __iter__(self) -> Iterator[Any]:
        """The elements in order. After the last one the error is raised, if there is one."""
        items, few, pulse = self._items, self.limit // 2, self._pulse
        due = 0.0 if pulse is None else monotonic() + pulse
        while True:
            while items:
                try:
                    item = items.popleft()
                except IndexError:  # The loop's side took it back.
                    break
                # The loop waits only while the buffer is full, so its flag is set before this length is reached.
                if self._room is not None and len(items) == few:
                    call_on(self._loop, lambda: wake(self._room))
                yield item
                # A consumer that never waits, because elements come fast, needs its pulses too.
                if pulse is not None and monotonic() >= due:
                    break
            if pulse is not None and monotonic() >= due:
                yield PULSE
                due = monotonic() + pulse
            ended = self.ended  # Read before the buffer: elements that came before the end must not be missed.
            if items:
                continue
            if ended:
                self.raise_error()
                return
            # Each time: the iterator may have come to another thread, or through a fork, since the last wait.
            check_elsewhere(self._loop)
            if self._process != os.getpid():
                raise StateError(
                    "the outputs come from a run of another process, from which this one was forked; only that process "
                    "can read them: start a new run in this one"
                )
            self._filled.wait(None if pulse is None else max(0.0, due - monotonic()))

    def is_ready(self) -> bool:
        """Whether iterating goes on without a wait. The bell rings when that becomes true."""
        return bool(self._items) or self.ended

    def wait_for_end(self, seconds: float) -> bool:
        """Wait for the end of the elements. False if it does not come within `seconds`."""
        ends = monotonic() + seconds
        while not self.ended:
            if not self._filled.wait(max(0.0, ends - monotonic())):
                return self.ended
        return True

    def raise_error(self) -> None:
        """Raise the error with which the channel ended, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call it on the loop. If the loop is closed, as at the end of the process, the call is dropped."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


def runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the caller runs on the loop. The loop cannot wait for itself."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def check_elsewhere(loop: asyncio.AbstractEventLoop) -> None:
    """Raise a `StateError` if the caller runs on the loop."""
    if runs_here(loop):
        raise StateError(
            "the synchronous interface was called on the loop thread, which would wait for itself; use "
            "`async for ... in operator.process(elements)` there"
        )
