"""Watermark generators: how far event time has advanced, computed from the timestamps of the elements.

A watermark t says that no element with a timestamp of t or less follows. The generators return the largest timestamp
seen, minus the delay, minus 1 ms, because equal timestamps may still come. A watermark never goes back, and starts at
-2**63. Event time is in milliseconds since the epoch.

An input is idle when no element has come for `idle_after` seconds of `clock`. As in Flink, idleness does not move the
watermark, because the next element of an idle input is unknown. A consumer that combines several inputs by the minimum
of their watermarks should leave an idle input out until its next element comes. Sources: Flink's ``WatermarkStrategy``,
``BoundedOutOfOrdernessWatermarks``, ``AscendingTimestampsWatermarks`` and ``WatermarksWithIdleness``.
"""

from __future__ import annotations

from asyncio_operator.checks import LARGEST, Duration, duration, must_be, plain_function, positive_duration
from asyncio_operator.clock import Clock, monotonic
from asyncio_operator.elements import MIN_TIMESTAMP, event_time


class BoundedOutOfOrderness:
    """For elements that arrive at most `delay`, in event time, after one with a larger timestamp.

    Args:
        delay: seconds or a timedelta, rounded to whole milliseconds.
        idle_after: seconds or a timedelta without an element after which the input is idle; None for never.
        clock: returns the seconds for `idle_after`. It is read only if `idle_after` is set.

    Raises:
        ConfigurationError: a value has the wrong type or range.
    """

    def __init__(self, delay: Duration, idle_after: Duration | None = None, *, clock: Clock = monotonic) -> None:
        milliseconds = duration("delay", delay) * 1000
        if milliseconds > LARGEST:
            raise must_be("delay", delay, "finite in milliseconds too")
        self._lag = round(milliseconds) + 1
        self._idle_after = None if idle_after is None else positive_duration("idle_after", idle_after)
        plain_function("clock", clock, "a callable that returns seconds as a float")
        self._clock = clock
        self._largest = MIN_TIMESTAMP
        self._active_at = 0.0 if self._idle_after is None else clock()

    def on_event(self, timestamp: int) -> None:
        """Take the timestamp of an element, in milliseconds since the epoch.

        Raises:
            ConfigurationError: the timestamp is not an int.
        """
        event_time(timestamp)
        if timestamp > self._largest:
            self._largest = timestamp
        if self._idle_after is not None:
            self._active_at = self._clock()

    def current_watermark(self) -> int:
        """The watermark, in milliseconds since the epoch; -2**63 before the first element."""
        return max(MIN_TIMESTAMP, self._largest - self._lag)

    def is_idle(self) -> bool:
        """Whether no element has come for `idle_after`, counted from the start if none ever came."""
        return self._idle_after is not None and self._clock() - self._active_at >= self._idle_after


class MonotonousTimestamps(BoundedOutOfOrderness):
    """For elements whose timestamps never decrease. `idle_after` and `clock` are as in `BoundedOutOfOrderness`."""

    def __init__(self, idle_after: Duration | None = None, *, clock: Clock = monotonic) -> None:
        super().__init__(0, idle_after, clock=clock)
