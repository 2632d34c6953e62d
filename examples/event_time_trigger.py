"""A window that fires when the watermark passes its end, over the timer service and keyed state.

    .venv/bin/python examples/event_time_trigger.py

Readings of sensors are summed per sensor and window of ten seconds of event time. A window fires when the watermark
reaches its last millisecond. There is one event-time timer per sensor and window; the window is the namespace. A later
element fires its window again, at once, until the allowed lateness is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from asyncio_operator.state import HeapStateBackend, ReducingStateDescriptor, StateBackend
from asyncio_operator.timers import HeapQueues, InternalTimerService, Timer
from asyncio_operator.watermarks import BoundedOutOfOrderness

WINDOW = 10_000
LATENESS = 5_000


class Reading(NamedTuple):
    """A reading of a sensor; `timestamp` is event time in milliseconds."""

    sensor: str
    timestamp: int
    value: int


class Fired(NamedTuple):
    """The output of a window. `why` is "on time" or "late"."""

    sensor: str
    start: int
    total: int
    why: str


class TumblingWindows:
    """Sums readings per sensor and window, and fires as an event-time trigger does.

    Args:
        backend: holds the sums.
    """

    def __init__(self, backend: StateBackend) -> None:
        self._backend = backend
        self._sums = backend.reducing_state(ReducingStateDescriptor("sums", lambda a, b: a + b))
        self._fired: list[Fired] = []
        queues = HeapQueues(backend.key_groups, backend.max_parallelism)
        self._timers = InternalTimerService(on_event_time=self._on_event_time, queues=queues)

    def process(self, reading: Reading) -> Iterator[Fired]:
        """Adds a reading. Yields its window at once if the reading is late, and nothing if it is too late."""
        start = reading.timestamp - reading.timestamp % WINDOW
        last = start + WINDOW - 1
        if last + LATENESS <= self._timers.current_watermark:
            return
        self._at(reading.sensor, start)
        self._sums.add(reading.value)
        if last <= self._timers.current_watermark:
            yield Fired(reading.sensor, start, self._sums.get() or 0, "late")
        else:
            self._timers.register_event_time_timer(last, start)
        self._timers.register_event_time_timer(last + LATENESS, start)

    def advance(self, watermark: int) -> Iterator[Fired]:
        """Yields the windows that the watermark completes, in the order of their ends."""
        self._timers.advance_watermark(watermark)
        fired, self._fired = self._fired, []
        yield from fired

    def _on_event_time(self, timer: Timer) -> None:
        sensor, start = timer.key, timer.namespace
        assert isinstance(start, int)
        self._at(sensor, start)
        if timer.timestamp == start + WINDOW - 1 + LATENESS:
            self._sums.clear()
        else:
            self._fired.append(Fired(sensor, start, self._sums.get() or 0, "on time"))

    def _at(self, sensor: str, start: int) -> None:
        self._timers.current_key = sensor
        self._backend.set_current_key(sensor)
        self._backend.set_current_namespace(start)


READINGS = (
    Reading("a", 1_000, 1),
    Reading("b", 2_000, 10),
    Reading("a", 9_000, 2),
    Reading("a", 12_000, 4),  # the watermark is 10,999: the first windows are complete
    Reading("a", 9_500, 8),  # late, and fires at once
    Reading("b", 17_000, 20),  # the watermark is 15,999: what comes for the first windows now is too late
    Reading("b", 3_000, 40),
)


def main() -> None:
    """Prints the windows that each reading, and the watermark after it, fire."""
    backend = HeapStateBackend()
    windows = TumblingWindows(backend)
    watermarks = BoundedOutOfOrderness(delay=1.0)
    for reading in READINGS:
        fired = list(windows.process(reading))
        watermarks.on_event(reading.timestamp)
        fired += windows.advance(watermarks.current_watermark())
        print(f"{reading} watermark {watermarks.current_watermark()}")
        for each in fired:
            print(f"    {each}")
    print("end of input")
    for each in windows.advance(2**63 - 1):
        print(f"    {each}")
    print(f"entries left in the state: {backend.num_entries()}")


if __name__ == "__main__":
    main()
