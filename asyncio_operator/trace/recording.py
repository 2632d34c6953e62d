"""Takes the events of a run. A record is one append of one tuple; `limit` bounds the memory.

When the trace is full, the oldest events are dropped, as in a flight recorder: the end of a long run is kept, with the
events that led to it. An element whose admission was dropped is left out of every picture, and `Trace.dropped` counts
such elements. Another thread may read while the run continues.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from asyncio_operator.checks import positive_int
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.trace.events import Event, Text, decoded, keepable, text_of


class Recording:
    """Takes the events of one run; one that is passed to another run starts again from empty.

    It keeps the first 40 characters of the ``repr`` of values and keys, and never the values themselves. So it can be
    pickled whatever the values were.

    Args:
        limit: as `Trace` has it.
    """

    __slots__ = ("__weakref__", "_parts", "_recorded", "_start", "runs")

    def __init__(self, limit: int = 100_000) -> None:
        if positive_int("limit", limit) > sys.maxsize:
            raise ConfigurationError(f"limit is {describe(limit)}; it must be an int of at most {sys.maxsize}")
        self._recorded: deque[tuple[Any, ...]] = deque(maxlen=limit)
        self._start: float | None = None
        self._parts: list[tuple[int, str]] = []
        self.runs = 0
        """How often it has been started or cleared."""

    # -- recording. Times are seconds of one clock; elements and watermarks share one count, in input order from 0.

    def started(self, now: float) -> None:
        """A run begins: everything recorded before is dropped."""
        self.clear()
        self._start = now

    def admitted(self, now: float, element: int, value: object, key: object = None) -> None:
        """An element was read from the input."""
        self._recorded.append(("admitted", now, element, keepable(value), None if key is None else keepable(key)))

    def record(self, kind: str, now: float, *fields: Any) -> None:
        """Any other event happened; `FIELDS` has the fields of each kind, of which the last may be absent."""
        self._recorded.append((kind, now, *fields))

    def clear(self) -> None:
        """Drop everything."""
        self._recorded.clear()
        self._start = None
        self._parts = []
        self.runs += 1

    @property
    def limit(self) -> int:
        """The maximum number of events."""
        return self._recorded.maxlen or 0

    @property
    def size(self) -> int:
        """The number of events that are kept."""
        return len(self._recorded)

    def shift(self, seconds: float) -> None:
        """Convert all times to another clock, which is ahead by `seconds`."""
        for event in [self._recorded.popleft() for _ in range(len(self._recorded))]:
            kind, now, *rest = event
            if kind == "backing_off":
                rest[1] += seconds
            self._recorded.append((kind, now + seconds, *rest))
        if self._start is not None:
            self._start += seconds

    def label(self, label: str) -> None:
        """Put a label before the text of every element's value, for a trace of several runs."""
        for event in [self._recorded.popleft() for _ in range(len(self._recorded))]:
            if event[0] == "admitted":
                event = (*event[:3], Text(f"{label}: {text_of(event[3])}"), *event[4:])
            self._recorded.append(event)

    def name(self, name: str) -> None:
        """Name the run, for a trace of several runs. The page shows the name at its elements."""
        self._parts = [(0, name)]

    @property
    def parts(self) -> list[tuple[int, str]]:
        """The number of the first element of each named run, and the name, in the order of the numbers."""
        return self._parts.copy()

    def include(self, other: Recording) -> None:
        """Add another run whose times are of the same clock, unless the trace has no room for all of it.

        The numbers of its elements continue after those of this trace. Only the first circuit breaker is shown.
        """
        mine = self._recorded
        if len(mine) + len(other._recorded) > self.limit or other._start is None:
            return
        first = 1 + max((event[2] for event in mine if event[0] not in ("circuit", "ended")), default=-1)
        more = [event for event in other._recorded if event[0] != "circuit" or not first]
        numbered = [e if e[0] in ("circuit", "ended") else (*e[:2], e[2] + first, *e[3:]) for e in more]
        merged = sorted([*mine, *numbered], key=lambda event: event[1])
        ends = [event for event in merged if event[0] == "ended"]
        # Only the last end counts: the runs went on side by side.
        self._recorded = deque([e for e in merged if e[0] != "ended"] + ends[-1:], maxlen=self.limit)
        self._start = other._start if self._start is None else min(self._start, other._start)
        self._parts = [*self._parts, *((first + number, name) for number, name in other._parts)]

    # -- reading

    def events(self) -> list[Event]:
        """The events of the latest run, in the order of recording. The oldest are missing if the trace was full."""
        recorded = self._recorded.copy()  # One step of the interpreter: the run may append on its thread meanwhile.
        if self._start is not None:
            recorded = deque([("started", self._start), *recorded])
        return decoded(recorded, recorded[0][1]) if recorded else []

    @property
    def dropped(self) -> int:
        """The number of elements and watermarks, from the first of the run, that are no longer kept."""
        recorded = self._recorded.copy()
        if len(recorded) != recorded.maxlen:
            return 0
        admissions = (event[2] for event in recorded if event[0] in ("admitted", "watermark"))
        others = (event[2] for event in recorded if event[0] not in ("circuit", "ended"))
        return next(admissions, max(others, default=-1) + 1)

    def __repr__(self) -> str:
        events = len(self._recorded) + (self._start is not None)
        return f"{type(self).__name__}(limit={self._recorded.maxlen}, events={events}, dropped={self.dropped})"
