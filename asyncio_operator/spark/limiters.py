"""The windows of rate limits, which live as long as the Python worker.

A task takes over the window of an earlier task, with the starts in it, and leaves it for a later one. Otherwise, tasks
that are shorter than the window would each start a whole limit. A window belongs to an enricher and a limit. Tasks that
run in a process at the same time have one window each, because a limit is per task, or is a task's share of a job's.

When a task returns its window, windows that are as good as new are dropped. Everything here runs on the loop, so it
needs no lock. Law: a process has one window for each task that runs at the same time, however many tasks follow (R10).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator

from asyncio_operator.engine.timing import clock_of
from asyncio_operator.policies.rate_limit import Limiter, RateLimit


class Limiters:
    """The windows that no task uses now, by their owner and limit."""

    def __init__(self) -> None:
        self._free: dict[tuple[str, RateLimit], list[Limiter]] = {}

    @contextlib.contextmanager
    def lent(self, owner: str, limit: RateLimit | None) -> Iterator[Limiter | None]:
        """The window that was returned last, or a new one, while the task runs; None without a limit."""
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
        # A rested window allows the same starts as a new one, so it need not be kept.
        now = clock_of(asyncio.get_running_loop())()
        kept = {key: [one for one in free if one.rested_at() > now] for key, free in self._free.items()}
        self._free = {key: free for key, free in kept.items() if free}

    def __len__(self) -> int:
        return sum(map(len, self._free.values()))

    def forget_all(self) -> None:
        """Drop all windows in a forked child, which has not started a call yet."""
        self._free.clear()


limiters = Limiters()

os.register_at_fork(after_in_child=limiters.forget_all)
