"""The windows of rate limits, which live as long as the Python worker.

A task takes the window that the last one has left, with the starts in it, and leaves it to the next: otherwise tasks
that are shorter than the window would start a whole limit each. Windows belong to an enricher and a limit. Tasks that
run in a process at the same time have one each, because limits are per task, or a task's share of a job's.

When a task leaves one, all are forgotten that a new one would do as well for. All of this runs on the loop, so it needs
no lock. Law: so many tasks as run at once in this process have so many windows, however many follow them (law R10).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator

from asyncio_operator.policies.rate_limit import Limiter, RateLimit
from asyncio_operator.waiting import clock_of


class Limiters:
    """The windows that no task has at present, by their owner and limit."""

    def __init__(self) -> None:
        self._free: dict[tuple[str, RateLimit], list[Limiter]] = {}

    @contextlib.contextmanager
    def lent(self, owner: str, limit: RateLimit | None) -> Iterator[Limiter | None]:
        """The window that was left last, or a new one, for as long as the task runs; None where there is no limit."""
        if limit is None:
            yield None
            return
        free = self._free.get((owner, limit))
        limiter = free.pop() if free else Limiter(limit)
        try:
            yield limiter
        finally:
            self._free.setdefault((owner, limit), []).append(limiter)
            self._forget_rested()

    def _forget_rested(self) -> None:
        now = clock_of(asyncio.get_running_loop())()
        kept = {key: [one for one in free if one.rested_at() > now] for key, free in self._free.items()}
        self._free = {key: free for key, free in kept.items() if free}

    def __len__(self) -> int:
        return sum(map(len, self._free.values()))

    def forget_all(self) -> None:
        """For a forked child, in which nothing has started yet."""
        self._free.clear()


limiters = Limiters()

os.register_at_fork(after_in_child=limiters.forget_all)
