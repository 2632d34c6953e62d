"""What could be used at best: one that knows all, and lets every call start as soon as it may."""

from __future__ import annotations

import heapq
import random

from asyncio_operator.budget.spec import Limit
from asyncio_operator.policies.local_window import LocalWindow
from asyncio_operator.policies.rate_limit import RateLimit


def most_calls(limit: Limit, slots: int, latency: float, journey: float, begin: float, end: float) -> int:
    """The calls that start between two times, if there is always work.

    Args:
        latency: seconds that a call takes, more or less by half, as in the cluster.
        journey: seconds from the end of a call until the next may take its slot: 0 for one that knows all at once; a
            round trip for one that hears of it by a message, and whose answer must come back.
    """
    source, window = random.Random(1), LocalWindow(RateLimit(int(limit.rate), limit.per))
    ends: list[float] = []
    now, calls = 0.0, 0
    while True:
        now = max(window.next_start(now), ends[0] if len(ends) >= slots else now)
        if now >= end:
            return calls
        while ends and ends[0] <= now:
            heapq.heappop(ends)
        window.start(now)
        heapq.heappush(ends, now + latency * source.uniform(0.5, 1.5) + journey)
        calls += now >= begin
