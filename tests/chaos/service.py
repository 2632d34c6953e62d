"""The service that the jobs ask. It records every request: which attempt of a task sent it, and how it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from asyncio_operator.testing import FakeRequest, FakeService

LATENCY = 0.06
"""Seconds of a call. A task then takes 2.4 seconds, three times what a kill may cost with a journal."""

ENDS = 5.0
"""Seconds: more than a call takes on a busy machine."""

RUN = "chaos.run"
"""The local property of Spark that names the run; tasks send it with each request."""

HEADER = "X-Task"


async def task_header() -> dict[str, str]:
    """The run and the attempt of the task in which a request is sent."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    return {HEADER: f"{task.getLocalProperty(RUN)}/{task.taskAttemptId()}"}


@dataclass(slots=True)
class Call:
    """A request, in seconds of the wall clock, which Spark's events have too."""

    run: str
    task: int
    lookup: int
    key: int
    start: float
    end: float = inf
    outcome: str | None = None


def answer(lookup: int, key: int) -> dict[str, int] | None:
    """The answers: `v` for a key, with a miss in ten; `w` for a `v`."""
    if lookup:
        return {"w": key + 1}
    return None if key % 10 == 3 else {"v": 7 * key}


class CountingService:
    """Answers ``/v/LOOKUP/KEY``.

    Attributes:
        running: requests without an answer.
        hold: called with a request that would be answered now: whether it waits for `release`.
    """

    def __init__(self) -> None:
        self.service = FakeService(handler=self._answer)
        self.running = 0
        self.hold: Callable[[Call], bool] = lambda call: False
        self._calls: dict[str, list[Call]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._released = asyncio.Event()

    @property
    def url(self) -> str:
        return self.service.url

    def calls(self, run: str) -> list[Call]:
        """The calls of a run until now."""
        return list(self._calls.get(run, ()))

    def ended_calls(self, run: str) -> list[Call]:
        """The calls of a run until now. Waits `ENDS` seconds for those that run; there may be later ones meanwhile."""
        calls, deadline = self.calls(run), time.monotonic() + ENDS
        while any(call.outcome is None for call in calls) and time.monotonic() < deadline:
            time.sleep(0.005)
        return calls

    def count(self, run: str, lookup: int | None = None) -> int:
        """The number of calls of a run that were answered."""
        calls = self._calls.get(run, [])
        return sum(call.outcome == "result" and lookup in (None, call.lookup) for call in list(calls))

    def forget(self, run: str) -> None:
        """Drop what is recorded of a run, and of its parts."""
        for name in [name for name in self._calls if name == run or name.startswith(f"{run}-")]:
            del self._calls[name]
        self.service.requests.clear()

    def release(self) -> None:
        """Answer all requests that are held, and hold no more."""
        self.hold = lambda call: False
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._free)

    def _free(self) -> None:
        self._released.set()
        self._released = asyncio.Event()

    async def _answer(self, request: FakeRequest) -> Any:
        self._loop = asyncio.get_running_loop()
        run, _, task = request.headers[HEADER.lower()].partition("/")
        _, _, lookup, key = request.path.split("/")
        call = Call(run, int(task), int(lookup), int(key), time.time())
        self._calls.setdefault(run, []).append(call)
        self.running += 1
        try:
            await asyncio.sleep(LATENCY)
            if self.hold(call):
                await self._released.wait()
            call.end, call.outcome = time.time(), "result"
        except asyncio.CancelledError:
            call.end, call.outcome = time.time(), "cancelled"
            raise
        finally:
            self.running -= 1
        return answer(call.lookup, call.key)
