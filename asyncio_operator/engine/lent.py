"""What a process keeps for the tasks that run in it: open clients, caches, the windows of limits, readers, connections.

A task borrows a thing by its key and gives it back, and the next task with an equal key gets the same one. A thing that
no task has is kept for a while, and then ended. A forked child keeps nothing: its parent's loop does not run in it.

Everything here runs on the loop, so it needs no lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from math import inf
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from asyncio_operator.engine.timing import COARSEST, clock_of, start_task
from asyncio_operator.loop.forks import forget_in_child

K = TypeVar("K")
T = TypeVar("T")

IDLE = 60.0
"""Seconds for which an unused thing is kept: longer than the pause between two micro-batches of most streams, and
shorter than a person's pause. Open pools that stay would use up a server's connections after some dozens of queries."""


class Lent(Generic[K, T]):
    """Things by their keys.

    Args:
        together: tasks that have one key at the same time have the same thing. Otherwise each has one of its own.
        most: how many unused ones are kept. The one that was given back first goes first.
        seconds: for which an unused thing is kept. None: `IDLE`, as it is then.
        end: ends a thing that is not kept any more. It logs its errors.
    """

    def __init__(
        self,
        *,
        together: bool = True,
        most: int = sys.maxsize,
        seconds: float | None = None,
        end: Callable[[T], Coroutine[Any, Any, object]] | None = None,
    ) -> None:
        self._together = together
        self._most = most
        self._seconds = seconds
        self._end = end
        # Of things that tasks have together: each with the number of these tasks.
        self._used: dict[K, tuple[T, int]] = {}
        # Each with its key, and the time until which it is kept. In the order in which they were given back.
        self._unused: list[tuple[K, T, float]] = []
        self._ending: dict[K, asyncio.Task[object]] = {}
        self._alarm: asyncio.TimerHandle | None = None
        _all.add(self)

    def borrow(self, key: K, make: Callable[[], T]) -> T:
        """The thing with this key that was given back last, or a new one. Return it with `give_back`."""
        if key in self._used:
            thing, users = self._used[key]
        else:
            users = 0
            place = next((i for i, one in reversed([*enumerate(self._unused)]) if one[0] == key), None)
            thing = make() if place is None else self._unused.pop(place)[1]
        if self._together:
            self._used[key] = thing, users + 1
        return thing

    def give_back(self, key: K, thing: T, *, keep: bool = True) -> None:
        """A task needs it no longer.

        Args:
            keep: whether another task may get it. If not, it is ended as soon as no task has it.
        """
        if self._together:
            users = self._used[key][1] - 1
            if users:
                self._used[key] = thing, users
                return
            del self._used[key]
        lasts = (IDLE if self._seconds is None else self._seconds) if keep else -inf
        self._unused.append((key, thing, _now() + lasts))
        self._look()

    @contextlib.contextmanager
    def lent(self, key: K, make: Callable[[], T]) -> Iterator[T]:
        """The thing that `borrow` returns, while it is entered."""
        thing = self.borrow(key, make)
        try:
            yield thing
        finally:
            self.give_back(key, thing)

    def ending(self, key: K) -> asyncio.Task[object] | None:
        """The end of an earlier thing with this key, while it goes on."""
        return self._ending.get(key)

    def all(self) -> list[T]:
        """All that is kept or lent to several tasks. Any thread may call it."""
        return [thing for thing, _ in list(self._used.values())] + [thing for _, thing, _ in list(self._unused)]

    def forget_all(self) -> None:
        """Keep nothing, and end nothing. For a forked child."""
        self._used.clear()
        self._unused.clear()
        self._ending.clear()
        self._alarm = None

    def _look(self) -> None:
        """End what is not kept any more, and look again when the next one is not."""
        now = _now()
        kept = [one for one in self._unused if one[2] > now][-self._most :]
        gone = [one for one in self._unused if not any(one is other for other in kept)]
        self._unused = kept
        for key, thing, _ in gone:
            if self._end is not None:
                ending = self._ending[key] = start_task(self._end(thing))
                ending.add_done_callback(partial(self._ended, key))
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        first = min((until for *_, until in kept), default=inf)
        if first < inf:
            self._alarm = asyncio.get_running_loop().call_later(max(first - now, COARSEST), self._look)

    def _ended(self, key: K, ending: asyncio.Task[object]) -> None:
        if self._ending.get(key) is ending:
            del self._ending[key]


def _now() -> float:
    return clock_of(asyncio.get_running_loop())()


_all: WeakSet[Lent[Any, Any]] = WeakSet()

forget_in_child(lambda: [*map(Lent.forget_all, _all)])
