"""How long the waits at an end may take, from the innermost to the outermost.

Law X7: however a task ends, 5 seconds later nothing of it runs. And between the waits: each is shorter than the wait
around it. Otherwise the outer wait ends first and reports that what it waits for hangs: the log would blame a lookup
for a wait of this package.

    a cancelled lookup waits for its server    CANCEL_TIMEOUT        < every grace period
    a task waits for its cancelled calls       TASK_GRACE_PERIOD     three of them < TASK_END
    the task's thread waits for all of that    TASK_END              + WATCH_INTERVAL <= NOTHING_LEFT
    an enricher closes its connections         CLOSE_TIMEOUT         three of them < CLIENT_CLOSE_TIMEOUT

All are seconds. This module knows nothing of what waits.
"""

from __future__ import annotations

CANCEL_TIMEOUT = 0.5
"""Seconds that a cancelled lookup, or the pool that takes its connection back, may wait for the server before it cuts
the connection. It is less than the shortest grace period, or a silent network looks like a lookup that ignores its
cancellation. A server on another continent answers within 0.5 s; a new connection costs no more than that."""

CLOSE_TIMEOUT = 2.0
"""Seconds that an enricher's `close` waits for connections to close, or for threads to end. An `Enricher` may need
three such waits one after the other, as `BlockingEnricher` does."""

CLIENT_CLOSE_TIMEOUT = 10.0
"""Seconds that the whole `close` of an enricher may take, its own waits included; then it is cancelled."""

FINAL_WAIT = 0.2
"""Seconds that the end of the input, and `close` of a function, get after the grace period, when they are cancelled."""

TASK_GRACE_PERIOD = 1.0
"""The grace period of a task in Spark: seconds that its end waits for calls that ignore their cancellation, and again
for `close`. `longest_end` of it is 0.4 s less than `TASK_END`, for a busy machine."""

LOOKUP_GRACE_PERIOD = 2.5  # The grace period of a `Lookup`, which no task waits for.

OPERATOR_GRACE_PERIOD = 30.0
"""The default grace period of an operator. It is longer than the usual timeouts of clients, so that what ends by itself
is not left behind."""

TASK_END = 4.0  # Seconds that the thread of a task waits for the end of what the task runs on the loop.
WATCH_INTERVAL = 1.0  # Seconds between two looks whether Spark still reads the task's results, and what holds the loop.
NOTHING_LEFT = 5.0  # Seconds after the end of a task, as Spark sees it, when nothing of the task is left (law X7).

PROCESS_END = 5.0
"""Seconds that the end of the process waits for the loop's thread, which has cancelled what runs there."""


def longest_end(grace_period: float) -> float:
    """Seconds that the end of a run may take: calls (or opening), the input and closing have the grace period each, and
    the last two also `FINAL_WAIT`, and once more for the wait around them."""
    return 3 * grace_period + 3 * FINAL_WAIT
