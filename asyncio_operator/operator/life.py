"""The life of a run: its task opens the function, runs the lanes, and closes the input and the function.

Law: once a run has begun, its function is closed exactly once, however the run ends. Each closing has a limited time;
code that ignores its cancellation is logged and no longer awaited. This module knows neither elements nor outputs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Protocol

from asyncio_operator.engine.ending import End, close_within, drop, error_of, wait_through
from asyncio_operator.engine.failures import stray_run
from asyncio_operator.engine.inputs import Reader
from asyncio_operator.engine.lanes import Lanes
from asyncio_operator.engine.recorder import Recorder
from asyncio_operator.engine.timing import start_task
from asyncio_operator.errors import describe, describe_error
from asyncio_operator.policies.shutdown import FINAL_WAIT, longest_end

if TYPE_CHECKING:
    from asyncio_operator.engine.timers import Timers

logger = logging.getLogger("asyncio_operator.calls")


class Opened(Protocol):
    """What is opened before the first call, and closed after the last."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class Life:
    """Begins when it is made, on the running loop.

    Args:
        timers: of the run; closed when its lanes have ended.
        grace_period: seconds for each wait at the end.

    Attributes:
        task: ends when every call has ended and the function is closed; see `_live` for its result.
        loop: the loop of the run.
        abandoned: whether the consumer wants no more outputs.
    """

    def __init__(
        self,
        function: Opened,
        lanes: Lanes,
        reader: Reader,
        recorder: Recorder,
        timers: Timers,
        grace_period: float,
    ) -> None:
        self.abandoned = False
        self.loop = asyncio.get_running_loop()
        self._function = function
        self._lanes = lanes
        self._reader = reader
        self._recorder = recorder
        self._timers = timers
        self._grace_period = grace_period
        self._closing = False
        self._stranded = False
        self._failure: BaseException | None = None
        self._phase = "opening the function"
        self._last_tasks: list[End] = []
        self.task: End = start_task(self._live())

    async def _live(self) -> BaseException | None:
        """Open, run, close. Returns the first error; an error of `close` becomes a note on it.

        It returns the error, and does not raise it: ``SystemExit`` would pass through the loop, and a
        ``CancelledError`` of the input or of the function would look like a run without a failure.
        """
        failure: BaseException | None = None
        try:
            await self._function.open()
            if not self.abandoned:
                self._phase = "a call"
                await self._lanes.run()
        except BaseException as error:
            failure = error
        self._closing = True
        self._timers.close()
        for what, closing in await self._close():
            if failure is None or (self.abandoned and isinstance(failure, asyncio.CancelledError)):
                failure = closing
            else:
                failure.add_note(f"closing {what} failed too: {describe_error(closing)}")
        return failure

    async def _close(self) -> list[tuple[str, BaseException]]:
        """End the reading of the input and close the function, once each, even if this task is cancelled.

        Returns:
            the names of those that failed to close, with their errors.
        """
        self._recorder.ended(self._timers.clock())
        if not self.loop.is_running():
            # The loop is gone, and this coroutine is thrown away: `close` gets the one step that is left.
            closing_step = error_of(self._function.close)
            with contextlib.suppress(StopIteration):
                closing_step.send(None)
            closing_step.close()
            return []
        # Each in a task of its own: a cancellation of this one must not cut a clean-up in the middle.
        grace = self._grace_period
        self._phase = "closing the input"
        reading = start_task(error_of(lambda: self._reader.close(grace)))
        self._last_tasks.append(reading)
        interrupted = await wait_through(reading, grace + FINAL_WAIT)
        self._phase = "closing the function"
        remedy = "; raise grace_period, or close faster"
        closed = await close_within(
            "the function",
            self._function.close,
            grace,
            limit="grace_period=",
            remedy=remedy,
            tasks=self._last_tasks,
        )
        errors = {"the input": reading.result() if reading.done() else None}
        if not reading.done():
            logger.error("closing the input ignores its cancellation, and is left behind")
        errors["the function"] = interrupted if closed is None else closed
        return [(what, error) for what, error in errors.items() if error is not None]

    def strand(self) -> bool:
        """Whether the loop was closed before the run had ended. Then no task of it can go on, and the run is over.

        It is logged once, here. asyncio would log every task by itself, and would not name the run.
        """
        if self.task.done() or not self.loop.is_closed():
            return False
        if not self._stranded:
            self._stranded = True
            logger.warning(
                "the event loop was closed while a run of %s was open: its calls are dropped, and the function may not "
                "have been closed; end a run before its loop, as asyncio.run does",
                describe(self._function),
            )
            for task in (self.task, self._reader.reading, *self._lanes.tasks(), *self._last_tasks):
                if task is not None:
                    drop(task)
        return True

    def fail(self, error: BaseException) -> None:
        """End the run with an error that no call has raised, also if the last call has ended already."""
        self._failure = error
        self._lanes.fail(error)

    async def end(self) -> None:
        """Cancel what runs, wait for it, and raise the error with which the run failed."""
        task = self.task
        if self.loop.is_closed():
            return
        if self.loop is not asyncio.get_running_loop() and not task.done():
            # Nothing on this loop can wait for it.
            self.loop.call_soon_threadsafe(task.cancel)
            return
        if not task.done():
            self.abandoned = True
            self._lanes.stop()
            if not self._closing:
                task.cancel()
            # A task that ignores its cancellation longer than this is left behind. If the consumer is cancelled again,
            # it waits no longer, and the run ends without it.
            await asyncio.wait([task], timeout=longest_end(self._grace_period))
        if not task.done():
            logger.error(
                "a run did not end within %.1f s: %s ignores its cancellation; it is no longer waited for",
                longest_end(self._grace_period),
                self._phase,
            )
            return
        failure = asyncio.CancelledError() if task.cancelled() else task.result()
        if isinstance(failure, asyncio.CancelledError) and task.cancelling() and not self.abandoned:
            failure = stray_run(describe(self._function))
        if self._failure is not None and failure is not self._failure:
            if failure is not None:
                self._failure.add_note(f"the end of the run failed too: {describe_error(failure)}")
            failure = self._failure
        if failure is not None and not (self.abandoned and isinstance(failure, asyncio.CancelledError)):
            raise failure
