"""Time, and processes whose loops run in turn on one thread.

The world has one true time. Each process has an event loop with a clock of its own, which may be ahead and too fast. A
loop runs until nothing is ready on it; then the loop whose next timer comes first runs, and time is what that timer
says. A process that is killed never runs again.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from math import inf
from typing import Any, TypeVar, TypeVarTuple

from asyncio_operator.testing.time import VirtualTimeLoop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH = 1_700_000_000.0
"""What a clock on the wall shows when a simulation begins."""


ROUNDING = 1e-6
"""Seconds that a timer may be later than the time that was computed from it."""


class ProcessLoop(VirtualTimeLoop):
    """The loop of a process. `run_forever` returns when nothing is ready."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__(start)
        # No file is watched, and this saves a system call in every turn.
        self._selector.select = self._select  # type: ignore[attr-defined]

    def _select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self._jump(timeout)
        return []

    def _write_to_self(self) -> None:
        """Nothing is asleep: there is one thread."""

    def _run_once(self) -> None:
        timers = self._timers()
        # Such a timer runs now. What it calls must see that its time has come, or it would wait for it again.
        if timers and 0 < timers[0].when() - self.time() < ROUNDING:
            self._go_to(timers[0].when())
        super()._run_once()  # type: ignore[misc]

    def _jump(self, timeout: float | None) -> bool:
        """Stop, unless the next timer is due now but for a rounding error."""
        if timeout is not None and timeout < ROUNDING:
            self._go_to(self._timers()[0].when())
        else:
            self.stop()
        return True

    def _timers(self) -> list[asyncio.TimerHandle]:
        return self._scheduled  # type: ignore[attr-defined,no-any-return]

    def go_to(self, time: float) -> None:
        """Set the time."""
        self._go_to(time)

    def next_time(self) -> float:
        """When the loop has something to do; infinity: never, unless another process gives it something."""
        if self._ready:  # type: ignore[attr-defined]
            return -inf
        timers = self._timers()
        return timers[0].when() if timers else inf

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """The work is done at once, and its result comes in a later turn."""
        done: asyncio.Future[T] = self.create_future()

        def end(result: Any, error: BaseException | None) -> None:
            if done.cancelled():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        try:
            self.call_soon(end, func(*args), None)
        except Exception as error:
            self.call_soon(end, None, error)
        return done


class Process:
    """A process of the simulated world.

    Args:
        ahead: how much its clock on the wall is ahead.
        fast: by how much its clocks are too fast.

    Attributes:
        errors: what was reported to the loop, and no code has handled.
    """

    def __init__(self, world: World, ahead: float = 0.0, fast: float = 0.0) -> None:
        self._world = world
        self._ahead = ahead
        self._speed = 1.0 + fast
        self._begun = world.now
        self.loop = ProcessLoop(0.0)
        self.dead = False
        self.errors: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.errors.append(context))
        world.processes.append(self)

    def wall(self) -> float:
        """What its clock on the wall shows."""
        return EPOCH + self._ahead + self._begun + self.loop.time()

    def due(self) -> float:
        """The true time at which the process has something to do."""
        at = self.loop.next_time()
        return at if at in (inf, -inf) else max(self._world.now, self._begun + at / self._speed)

    def run(self) -> None:
        """Run until nothing is ready. The time is that of the world."""
        at, now = self.loop.next_time(), (self._world.now - self._begun) * self._speed
        # A timer that is due may be a rounding error later than the time that was computed from it.
        if at != inf and now < at < now + ROUNDING:
            now = at
        self.loop.go_to(max(now, self.loop.time()))
        self.loop.run_forever()

    def end(self) -> None:
        """Cancel all that is left, and let it end, in no time of the world."""
        loop = self.loop
        for _ in range(100):
            tasks = asyncio.all_tasks(loop)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            for _ in range(50):
                loop.run_forever()
                at = loop.next_time()
                if at == inf:
                    break
                loop.go_to(max(at, loop.time()))
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()


class World:
    """The true time, and what happens in it.

    Attributes:
        now: seconds since the simulation began.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.processes: list[Process] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def at(self, time: float, what: Callable[[], None]) -> None:
        """Let something happen at a time."""
        heapq.heappush(self._events, (max(time, self.now), next(self._count), what))

    def run(self, until: float, over: Callable[[], bool]) -> bool:
        """Let time pass until everything is over. False if that is not so at a time, or nothing happens any more."""
        while not over():
            process = min((one for one in self.processes if not one.dead), key=Process.due, default=None)
            due = inf if process is None else process.due()
            if self._events and self._events[0][0] <= due:
                at, _, what = heapq.heappop(self._events)
                self.now = max(self.now, at)
                what()
                continue
            if process is None or due > until:
                return False
            self.now = max(self.now, due)
            process.run()
        return True
