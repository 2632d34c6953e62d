"""Windows that fire on the watermark, for late elements, and early by count: a trigger of one's own.

    python -m examples.event_time_trigger

Readings of sensors are summed per sensor and window of ten seconds of event time. A window fires when the watermark
reaches its last millisecond. A later element fires its window again, at once, until the allowed lateness is over. Every
third reading of a window fires it early.
"""

from __future__ import annotations

from typing import NamedTuple

from asyncio_operator.state import HeapStateBackend
from asyncio_operator.timers import TimerServiceManager
from asyncio_operator.watermarks import BoundedOutOfOrderness
from asyncio_operator.windows import (
    CountTrigger,
    EventTimeTrigger,
    TimeWindow,
    Trigger,
    TriggerContext,
    TriggerResult,
    TumblingWindows,
    WindowOperator,
)


class Reading(NamedTuple):
    """A reading of a sensor; `timestamp` is event time in milliseconds."""

    sensor: str
    timestamp: int
    value: int


class Sum:
    """The aggregate of a window."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, reading: Reading, total: int) -> int:
        return total + reading.value

    def get_result(self, total: int) -> int:
        return total

    def merge(self, a: int, b: int) -> int:
        return a + b


class EarlyTrigger(Trigger):
    """Fires when an `EventTimeTrigger` does, and at every `n`-th element of a window."""

    def __init__(self, n: int) -> None:
        self._time = EventTimeTrigger()
        self._count = CountTrigger(n)

    def on_element(
        self, element: Reading, timestamp: int | None, window: TimeWindow, ctx: TriggerContext
    ) -> TriggerResult:
        early = self._count.on_element(element, timestamp, window, ctx)
        return early | self._time.on_element(element, timestamp, window, ctx)

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return self._time.on_event_time(time, window, ctx)

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        self._time.clear(window, ctx)
        self._count.clear(window, ctx)


READINGS = (
    Reading("a", 1_000, 1),
    Reading("b", 2_000, 10),
    Reading("a", 9_000, 2),
    Reading("a", 9_200, 4),  # the third of its window: an early result
    Reading("a", 12_000, 8),  # the watermark is 10,999: the first windows are complete
    Reading("a", 9_500, 16),  # late, and fires at once
    Reading("b", 17_000, 20),  # the watermark is 15,999: what comes for the first windows now is too late
    Reading("b", 3_000, 40),
)


def main() -> None:
    """Prints the results that each reading, and the watermark after it, give."""
    backend = HeapStateBackend()
    windows = WindowOperator(
        TumblingWindows(10), EarlyTrigger(3), Sum(), backend=backend, timers=TimerServiceManager(), allowed_lateness=5
    )
    watermarks = BoundedOutOfOrderness(delay=1.0)
    for reading in READINGS:
        results = list(windows.process(reading.sensor, reading, reading.timestamp))
        watermarks.on_event(reading.timestamp)
        results += windows.advance_watermark(watermarks.current_watermark())
        print(f"{reading} watermark {watermarks.current_watermark()}")
        for key, window, total in results:
            print(f"    {key} from {window.start} to {window.end}: {total}")
    print("end of input")
    for key, window, total in windows.advance_watermark(2**63 - 1):
        print(f"    {key} from {window.start} to {window.end}: {total}")
    print(f"too late: {windows.dropped}, entries left in the state: {backend.num_entries()}")


if __name__ == "__main__":
    main()
