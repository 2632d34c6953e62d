"""Time in tests: a clock that moves only when the test moves it, and an event loop on virtual time.

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())

A wait of a minute takes no real time, and every run has exactly the same times. Time stands still while anything is
ready to run. When nothing is ready, time jumps to the next timer. It passes in no other way, except by `advance`, which
does what code does that blocks the loop. While work in `run_in_executor` is outstanding, time does not jump, because
the result belongs before the next timer. The loop does not know threads that were started in another way and report
back by `call_soon_threadsafe`. If timers are pending too, keep an executor call open until such a thread has ended;
otherwise time may jump too early. Sockets within the process are served before time jumps. Time does not wait for a
peer outside of the process.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

from asyncio_operator.checks import LARGEST, Duration, duration, number
from asyncio_operator.errors import ConfigurationError


class ManualClock:
    """A clock for tests: a callable that returns seconds as a float, moved by hand.

    Args:
        start: the first time it shows, in seconds.
    """

    __slots__ = ("_now",)

    def __init__(self, start: float = 0.0) -> None:
        self._now = _time("start", start)

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: Duration) -> float:
        """Moves the clock forward and returns its new time.

        Raises:
            ConfigurationError: `seconds` is negative; `set` moves a clock back.
        """
        self._now += duration("seconds (use set() to move a clock back)", seconds)
        return self._now

    def set(self, seconds: float) -> None:
        """Sets the time, forward or back."""
        self._now = _time("seconds", seconds)

    def __repr__(self) -> str:
        return f"ManualClock({self._now})"


def _time(name: str, value: float) -> float:
    return number(name, value, "of seconds", lambda seconds: abs(seconds) <= LARGEST)


T = TypeVar("T")
Ts = TypeVarTuple("Ts")

RESOLUTION = 1e-9  # Seconds; what asyncio is to take as the resolution of its clock.


class _Selector(selectors.DefaultSelector):
    """Calls `jump` before it waits. If `jump` returns True, time has passed and there is nothing to wait for."""

    jump: Callable[[float | None], bool]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        # An event that is ready now is older than the next timer, so it goes first.
        events = super().select(0)
        if events or self.jump(timeout):
            return events
        return super().select(None)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A selector event loop on virtual time.

    Args:
        start: the initial time in seconds.
    """

    _closed = True  # Until it is made: with a wrong start there is nothing to close.

    def __init__(self, start: float = 0.0) -> None:
        start, self._outstanding = _time("start", start), 0
        selector = _Selector()
        selector.jump = self._jump
        super().__init__(selector)
        self._go_to(start)

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def advance(self, seconds: Duration) -> None:
        """Let time pass at once, as it does while something blocks the loop: timers that are due run late.

        Raises:
            ConfigurationError: `seconds` is negative.
        """
        self._go_to(self._now + duration("seconds", seconds))

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

    def _jump(self, timeout: float | None) -> bool:
        """Go to the next timer, unless there is none before infinity, or another thread still works for the loop.
        `timeout` is the seconds until then; None: there is none."""
        if self._outstanding or timeout is None:
            return False
        # The timer's own time is used: now plus the time until then may differ from it by a rounding error.
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if (due := timers[0].when()) == math.inf:
            return False
        self._go_to(due)
        return True

    def _go_to(self, time: float) -> None:
        """Set the time. A timer runs if it is due within the resolution, and large floats are coarser than 1e-9."""
        self._now = time
        self._clock_resolution = max(RESOLUTION, math.ulp(time))

    def __repr__(self) -> str:
        return f"<VirtualTimeLoop at {self._now} s>"


def require_no_loop(tool: str, call: str) -> None:
    """Check that no loop runs in this thread, for a tool, such as `tool`, that runs loops of its own.
    ConfigurationError if one runs; it shows what to give to `asyncio.to_thread` instead, `call`."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigurationError(
        f"{tool} was called in a running loop, but runs loops of its own: call it from an ordinary function, or in a "
        f"thread, as in `await asyncio.to_thread({call})`"
    )
