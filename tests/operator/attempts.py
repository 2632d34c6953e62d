"""Functions that do, attempt by attempt, what their arguments say, and write down when."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncio_operator import BatchAsyncFunction, FixedBackoff, Retry
from tests.operator.helpers import now

SAME: Any = object()


@dataclass(frozen=True)
class Act:
    """What one attempt does: it takes its time, and then raises its error, or gives its result.

    Attributes:
        deaf: seconds that it goes on for after each cancellation, before it gives its result all the same.
    """

    seconds: float = 0.0
    error: BaseException | None = None
    result: Any = SAME
    deaf: float = 0.0


OK = Act()
BAD = Act(error=ValueError("bad"))


class Script:
    """A function of one value. Its acts are given by value; behind the last it gives the value at once."""

    def __init__(self, acts: Mapping[Any, Sequence[Act]] | Callable[[Any, int], Act]) -> None:
        self.acts = acts
        self.starts: list[tuple[Any, float]] = []
        self.ends: list[tuple[Any, float]] = []
        self.running: Counter[Any] = Counter()
        self.most = 0
        self._attempts: Counter[Any] = Counter()

    async def __call__(self, value: Any) -> Any:
        self.starts.append((value, now()))
        attempt = self._attempts[value]
        self._attempts[value] += 1
        self.running[value] += 1
        self.most = max(self.most, self.running.total())
        try:
            return await self._act(value, self._act_of(value, attempt))
        finally:
            self.running[value] -= 1
            self.ends.append((value, now()))

    def _act_of(self, value: Any, attempt: int) -> Act:
        if not isinstance(self.acts, Mapping):
            return self.acts(value, attempt)
        acts = self.acts.get(value, ())
        return acts[attempt] if attempt < len(acts) else OK

    async def _act(self, value: Any, act: Act) -> Any:
        try:
            if act.seconds:
                await asyncio.sleep(act.seconds)
        except asyncio.CancelledError:
            if not act.deaf:
                raise
            await asyncio.sleep(act.deaf)
        if act.error is not None:
            raise act.error
        return value if act.result is SAME else act.result

    def times(self, value: Any) -> list[float]:
        """When the attempts for a value started."""
        return [at for called, at in self.starts if called == value]


class Batches(BatchAsyncFunction[Any, Any]):
    """A function of many values; `act` is given the values and the number of the call, and may be async."""

    def __init__(self, act: Callable[[list[Any], int], Any] | None = None, seconds: float = 0.0) -> None:
        self.act = act
        self.seconds = seconds
        self.calls: list[list[Any]] = []
        self.times: list[float] = []
        self.running = 0
        self.most = 0

    async def invoke_batch(self, values: Sequence[Any]) -> Sequence[Any]:
        number = len(self.calls)
        self.calls.append(list(values))
        self.times.append(now())
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self.seconds:
                await asyncio.sleep(self.seconds)
            if self.act is None:
                return list(values)
            result = self.act(list(values), number)
            return await result if asyncio.iscoroutine(result) else result  # type: ignore[no-any-return]
        finally:
            self.running -= 1


def retry(max_attempts: int = 3, delay: float = 1.0, **options: Any) -> Retry:
    """Retries after a fixed time."""
    return Retry(max_attempts=max_attempts, backoff=FixedBackoff(delay), **options)


MODES: dict[str, dict[str, Any]] = {
    "ordered": {"mode": "ordered"},
    "unordered": {"mode": "unordered"},
    "key_ordered": {"mode": "key_ordered", "key": lambda value: value % 3},
}


async def stop(run: Any, task: asyncio.Future[Any] | None = None) -> None:
    """Close a run, after the task that reads it."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
    await run.aclose()
