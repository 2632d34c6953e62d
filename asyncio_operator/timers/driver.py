"""The driver of processing-time timers: one alarm on the running loop, for the earliest timer.

It knows no timers: a service, or a manager of several, says when it needs time next, fires one timer at a time, and
reports when an earlier one was registered. The law (T7): what is due fires without a call of the user; after `quiesce`
nothing fires; the error of a callback loses no other timer. Callbacks may keep the loop for `TURN` seconds at a time
(T10), then other work of the loop has its turn. Source: Flink's ``SystemProcessingTimeService``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from types import TracebackType
from typing import Any, Protocol, Self

from asyncio_operator.checks import must_be, plain_function
from asyncio_operator.errors import StateError, describe, describe_error

logger = logging.getLogger("asyncio_operator.timers")

TURN = 0.002
"""Seconds for which callbacks that return at once may keep the loop: long beside the few microseconds that a turn of
the loop costs, and short beside the 10 ms that law T10 allows, also on a machine with other work."""

STANDING = 1000  # Timers of one turn if the loop's time stands still, as that of a test does.


class Timed(Protocol):
    """The methods of one timer service that a driver uses."""

    def advance_processing_time(self, limit: int | None = None) -> bool: ...

    def next_processing_time(self) -> int | None: ...

    def current_processing_time(self) -> int: ...


class Driven(Protocol):
    """A timer service, or a manager: the services it has now, and `watch`, which reports an earlier timer."""

    @property
    def services(self) -> Sequence[Timed]: ...

    def watch(self, listener: Callable[[], object] | None) -> None: ...


class ProcessingTimeDriver:
    """Fires the processing-time timers of a service when they are due. ``async with`` starts and ends it.

    Timers are registered on the thread of the loop. In tests, give the service ``clock=loop.time``: on a virtual loop
    its timers then fire in virtual time.

    Args:
        service: an `InternalTimerService`, or a `TimerServiceManager`, of whose services each gets its turn.
        on_error: called with the error of a callback; the driver goes on. Without it the error ends the driver, is
            logged, and is raised when the block is left. Timers that have not fired stay registered.

    Raises:
        ConfigurationError: the service is none, or `on_error` is no plain function.
    """

    def __init__(self, service: Driven, *, on_error: Callable[[BaseException], object] | None = None) -> None:
        if isinstance(service, type) or not (hasattr(service, "services") and hasattr(service, "watch")):
            raise must_be("service", service, "an InternalTimerService or a TimerServiceManager")
        if on_error is not None:
            plain_function("on_error", on_error, "a function of the error, or None", "the error")
        self._service = service
        self._on_error = on_error
        self._loop: Any = None  # On which it was started.
        self._context: Context | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alive = self._firing = False
        self._idle: asyncio.Future[None] | None = None
        self._error: BaseException | None = None

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise StateError(f"{self!r} was started before: make a new ProcessingTimeDriver")
        self._loop = asyncio.get_running_loop()
        # One context for all callbacks, else each would run in that of the code that registered the earliest timer.
        self._context = copy_context()
        self._service.watch(self._registered)
        self._alive = True
        try:
            self._set_alarm()
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
        if self._error is not None and error is None:
            raise self._error
        if self._error is not None and error is not None and error is not self._error:
            error.add_note(f"A timer's callback had ended the driver before: {describe_error(self._error)}")

    async def quiesce(self) -> None:
        """Fires nothing more, and returns when no callback runs. Timers stay. On another loop it is a `StateError`."""
        if self._alive and self._loop is not asyncio.get_running_loop() and not self._loop.is_closed():
            raise StateError(f"{self!r} must be ended on the event loop that started it")
        self._end()
        while self._firing:
            # Only a task that a callback started, and that began to run at once, comes here.
            self._idle = self._idle or self._loop.create_future()
            await asyncio.shield(self._idle)

    aclose = quiesce
    """Ends the driver; another one may then be made for the service."""

    def _end(self) -> None:
        if self._alive:
            self._alive = False
            self._service.watch(None)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _registered(self) -> None:
        """An earlier timer was registered. While callbacks run, the alarm is set after the last of them."""
        if not self._firing:
            self._set_alarm()

    def _set_alarm(self) -> None:
        waits = [
            at - service.current_processing_time()
            for service in self._service.services
            if (at := service.next_processing_time()) is not None
        ]
        if not waits:
            return
        when = self._loop.time() + max(0, min(waits)) / 1000
        if self._alarm is None or when < self._alarm.when():
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = self._loop.call_at(when, self._ring, context=self._context)

    def _ring(self) -> None:
        self._alarm = None
        self._firing = True
        try:
            self._fire()
        except (SystemExit, KeyboardInterrupt) as error:
            self._ended_by(error)
            raise
        except BaseException as error:
            try:
                if self._on_error is None:
                    raise
                self._on_error(error)
            except BaseException as raised:
                self._ended_by(raised)
        finally:
            self._firing = False
            if self._idle is not None:
                self._idle.set_result(None)
                self._idle = None
        if self._alive:
            try:
                self._set_alarm()
            except Exception as error:  # No time, or no timers: a broken clock, a closed database.
                self._ended_by(error)

    def _fire(self) -> None:
        """Fires one timer of each service in turn, so that none of them waits for all timers of another one."""
        ends = self._loop.time() + TURN
        for _ in range(STANDING):
            more = False
            for service in self._service.services:
                more |= service.advance_processing_time(limit=1)
                if not self._alive:
                    return
            if not more or self._loop.time() >= ends:
                return

    def _ended_by(self, error: BaseException) -> None:
        self._end()
        self._error = error
        logger.error("%r has ended: %s", self, describe_error(error))

    def __repr__(self) -> str:
        state = "driving" if self._alive else "not started" if self._loop is None else "ended"
        return f"<ProcessingTimeDriver of {describe(self._service)}, {state}>"
