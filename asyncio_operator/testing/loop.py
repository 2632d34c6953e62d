"""An event loop whose time jumps: what waits a minute is tested in a moment, and at exactly the same times every run.

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())

Time stands still while anything is ready to run. When nothing is, it jumps to the next timer; there is no other way
for it to pass. While work handed to `run_in_executor` is outstanding it does not jump, because the result belongs
before the next timer. Of threads that were started otherwise, and report back by `call_soon_threadsafe`, the loop knows
nothing: if timers are pending too, keep an executor call open until such a thread is done, or time may jump ahead of
it. Sockets within the process are served before time jumps; for a peer outside of it time does not wait.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


RESOLUTION = 1e-9
"""Seconds; what asyncio takes for the resolution of its clock."""


class _Selector(selectors.DefaultSelector):
    """Asks `jump` before it waits; if that gives True, time has passed instead."""

    jump: Callable[[], bool]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        # What has come meanwhile is older than the next timer.
        events = super().select(0)
        if events or self.jump():
            return events
        return super().select(None)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A selector event loop on virtual time.

    Args:
        start: the first time it shows, in seconds.
    """

    def __init__(self, start: float = 0.0) -> None:
        selector = _Selector()
        selector.jump = self._jump
        self._outstanding = 0
        super().__init__(selector)
        self._go_to(start)

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        call = super().run_in_executor(executor, func, *args)
        self._outstanding += 1
        call.add_done_callback(self._returned)
        return call

    async def shutdown_default_executor(self, *args: Any) -> None:
        self._outstanding += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self._outstanding -= 1

    def _returned(self, call: asyncio.Future[Any]) -> None:
        self._outstanding -= 1

    def _jump(self) -> bool:
        """Go to the next timer, unless there is none before infinity, or work is outstanding in another thread."""
        if self._outstanding:
            return False
        # The timer's own time, because the sum of now and the time until then may be a rounding error away from it.
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        due = timers[0].when()
        if due == math.inf:
            return False
        self._go_to(due)
        return True

    def _go_to(self, time: float) -> None:
        """A timer runs when it is due in less than the resolution; far from zero floats are coarser than that."""
        self._now = time
        self._clock_resolution = max(RESOLUTION, math.ulp(time))

    def __repr__(self) -> str:
        return f"<VirtualTimeLoop at {self._now} s>"
