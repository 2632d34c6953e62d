"""Takes the events of a run. A record is one append of one tuple; memory is bounded by `limit`.

When it is full the oldest events go, as in a flight recorder: of a long run the end is kept, with what led to it. An
element whose admission is gone is left out of every picture as a whole, and `Trace.dropped` counts these. Reading may
happen on another thread while the run goes on.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Literal

from asyncio_operator.errors import ConfigurationError, StateError, describe
from asyncio_operator.policies.options import positive_int
from asyncio_operator.trace import timeline
from asyncio_operator.trace.events import TEXT_LIMIT, Event, decoded, keepable
from asyncio_operator.trace.lives import Story, story_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AttemptOutcome = Literal["result", "error", "timed_out", "cancelled"]
Outcome = Literal["result", "timeout", "failed", "skipped"]


class Trace:
    """Records one run of an operator, and shows it; a trace that is passed to another run starts anew.

    It keeps the first 40 characters of the ``repr`` of values and keys, and no value itself, so it survives pickling
    whatever the values were.

    Args:
        limit: events kept at most, besides the start of the run. An element makes five without retries; 100,000 are 10
            to 20 MB.

    Raises:
        ConfigurationError: `limit` is not an int of at least 1.
    """

    __slots__ = ("_recorded", "_start", "runs")

    def __init__(self, limit: int = 100_000) -> None:
        if positive_int("limit", limit) > sys.maxsize:
            raise ConfigurationError(f"limit is {describe(limit)}; it must be an int of at most {sys.maxsize}")
        self._recorded: deque[tuple[Any, ...]] = deque(maxlen=limit)
        self._start: float | None = None
        self.runs = 0
        """How often it has begun anew."""

    # -- recording. Times are seconds of one clock; elements and watermarks share one count, in input order from 0.

    def started(self, now: float) -> None:
        """A run begins: all that was recorded before is forgotten."""
        self.clear()
        self._start = now

    def admitted(self, now: float, element: int, value: object, key: object = None) -> None:
        """An element was read from the input."""
        self._recorded.append(("admitted", now, element, keepable(value), None if key is None else keepable(key)))

    def watermark(self, now: float, element: int, timestamp: int) -> None:
        """A watermark was read from the input; `emitted` with the same number says when it left."""
        self._recorded.append(("watermark", now, element, timestamp))

    def attempt_started(self, now: float, element: int, attempt: int) -> None:
        """A call began, the element's `attempt`-th, from 1."""
        self._recorded.append(("attempt_started", now, element, attempt))

    def attempt_ended(
        self, now: float, element: int, attempt: int, outcome: AttemptOutcome, text: str | None = None
    ) -> None:
        """A call ended, or its time was over."""
        if text is not None and len(text) > TEXT_LIMIT:
            text = text[: TEXT_LIMIT + 1]
        self._recorded.append(("attempt_ended", now, element, attempt, outcome, text))

    def call_returned(self, now: float, element: int, attempt: int | None = None) -> None:
        """A call that had been cut returned, and gave its slot back. Without `attempt`: the last that was cut."""
        self._recorded.append(("call_returned", now, element, attempt))

    def backing_off(self, now: float, element: int, until: float) -> None:
        """The element waits for its next attempt."""
        self._recorded.append(("backing_off", now, element, until))

    def completed(self, now: float, element: int, outcome: Outcome) -> None:
        """The element has its outcome, and may leave when the queue lets it."""
        self._recorded.append(("completed", now, element, outcome))

    def emitted(self, now: float, element: int) -> None:
        """All outputs of the element, which may be none, or the watermark, were handed over."""
        self._recorded.append(("emitted", now, element))

    def circuit(self, now: float, state: str) -> None:
        """The circuit breaker is now "closed", "open" or "half_open"."""
        self._recorded.append(("circuit", now, state))

    def ended(self, now: float) -> None:
        """The run is over."""
        self._recorded.append(("ended", now))

    def clear(self) -> None:
        """Forget everything."""
        self._recorded.clear()
        self._start = None
        self.runs += 1

    @property
    def limit(self) -> int:
        """Events kept at most."""
        return self._recorded.maxlen or 0

    def shift(self, seconds: float) -> None:
        """Tell all times by another clock, which shows so much more."""
        for event in [self._recorded.popleft() for _ in range(len(self._recorded))]:
            kind, now, *rest = event
            if kind == "backing_off":
                rest[1] += seconds
            self._recorded.append((kind, now + seconds, *rest))
        if self._start is not None:
            self._start += seconds

    def include(self, other: Trace) -> None:
        """Take in a run beside those that are here, by the same clock, unless it does not fit any more.

        Its elements are numbered on behind those that are here. Of circuit breakers the first one is shown.
        """
        mine = self._recorded
        if len(mine) + len(other._recorded) > self.limit or other._start is None:
            return
        first = 1 + max((event[2] for event in mine if event[0] not in ("circuit", "ended")), default=-1)
        more = [event for event in other._recorded if event[0] != "circuit" or not first]
        numbered = [e if e[0] in ("circuit", "ended") else (*e[:2], e[2] + first, *e[3:]) for e in more]
        merged = sorted([*mine, *numbered], key=lambda event: event[1])
        ends = [event for event in merged if event[0] == "ended"]
        self._recorded = deque([e for e in merged if e[0] != "ended"] + ends[-1:], maxlen=self.limit)
        self._start = other._start if self._start is None else min(self._start, other._start)

    # -- reading

    def events(self) -> list[Event]:
        """What happened in the latest run, in the order of recording; the oldest events are missing if it was full."""
        recorded = self._recorded.copy()
        if self._start is not None:
            recorded = deque([("started", self._start), *recorded])
        return decoded(recorded, recorded[0][1]) if recorded else []

    @property
    def dropped(self) -> int:
        """How many of the first elements and watermarks of the run are no longer kept."""
        recorded = self._recorded.copy()
        if len(recorded) != recorded.maxlen:
            return 0
        admissions = (event[2] for event in recorded if event[0] in ("admitted", "watermark"))
        others = (event[2] for event in recorded if event[0] not in ("circuit", "ended"))
        return next(admissions, max(others, default=-1) + 1)

    def story(self) -> Story:
        """The latest run as lives of elements, from which the pictures are made.

        Raises:
            StateError: nothing was recorded.
        """
        events = self.events()
        if not events:
            raise StateError(
                "the trace is empty; pass it as trace=... to an operator or to enrich, and run that first. Spark tasks "
                "that fail, or that Spark ends early as limit() and show() do, record nothing"
            )
        return story_of(events, self.dropped)

    def timeline(self, path: str | os.PathLike[str], title: str | None = None) -> None:
        """Draw the latest run, one row an element; the suffix of `path` says how: .png, .svg or .pdf.

        Raises:
            ConfigurationError: matplotlib is missing, the suffix is another one, or the folder does not exist.
            StateError: nothing was recorded.
        """
        timeline.write([(title or "", self)], path)

    def draw(self, axes: Axes, title: str | None = None, *, legend: bool = True) -> None:
        """Draw the latest run into axes of matplotlib.

        Raises:
            StateError: nothing was recorded.
        """
        timeline.draw(axes, self.story(), title or "", legend)

    def html(self, path: str | os.PathLike[str], title: str | None = None) -> None:
        """Write one page that needs nothing else: the timeline to zoom into, and a table to sort and filter.

        Raises:
            ConfigurationError: the folder does not exist.
            StateError: nothing was recorded.
        """
        from asyncio_operator.trace import page

        page.write(self.story(), path, title or "Trace")

    def chrome(self, path: str | os.PathLike[str]) -> None:
        """Write Chrome trace events, JSON that opens in Perfetto and in chrome://tracing; microseconds from the start.

        Raises:
            ConfigurationError: the folder does not exist.
            StateError: nothing was recorded.
        """
        from asyncio_operator.trace import chrome

        chrome.write(self.story(), path)

    def __repr__(self) -> str:
        events = len(self._recorded) + (self._start is not None)
        return f"Trace(limit={self._recorded.maxlen}, events={events}, dropped={self.dropped})"
