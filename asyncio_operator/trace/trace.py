"""`Trace`: a recording of a run, and the ways to show it. Nothing is drawn before it is asked for.

A record is one append of one tuple; `limit` bounds the memory. When the trace is full, the oldest events are dropped,
as in a flight recorder: the end of a long run is kept, with the events that led to it. An element whose admission was
dropped is left out of every picture, and `Trace.dropped` counts such elements. Another thread may read while the run
continues.

The modules that show a trace are imported where they are used: programs that record nothing import this module too.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from asyncio_operator.checks import must_be, positive_int
from asyncio_operator.errors import ConfigurationError, StateError, describe
from asyncio_operator.trace.events import Event, Text, decoded, keepable, text_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from asyncio_operator.trace.stories import Story

MOST_SHOWN = 5_000  # Elements that a notebook shows: each takes some 300 bytes of its file.


class Trace:
    """Records one run of an operator, and shows it. A trace that is passed to another run starts again from empty.

    It keeps the first 40 characters of the ``repr`` of values and keys, and never the values themselves. So it can be
    pickled whatever the values were.

    Args:
        limit: the maximum number of events, besides the start of the run. An element without retries makes five;
            100,000 events take 10 to 20 MB.

    Raises:
        ConfigurationError: `limit` is not an int of at least 1.
    """

    __slots__ = ("__weakref__", "_parts", "_recorded", "_start", "runs")

    def __init__(self, limit: int = 100_000) -> None:
        if positive_int("limit", limit) > sys.maxsize:
            raise must_be("limit", limit, f"an int of at most {sys.maxsize}")
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

    def become_part(self, ahead: float, name: str = "", label: str = "") -> None:
        """Prepare it to be included in the trace of several runs.

        Args:
            ahead: seconds by which the clock of that trace is ahead of that of this run.
            name: of the run; the page shows it at its elements.
            label: put before the text of every element's value.
        """
        for event in [self._recorded.popleft() for _ in range(len(self._recorded))]:
            kind, now, *rest = event
            if kind == "backing_off":
                rest[1] += ahead
            elif kind == "admitted" and label:
                rest[1] = Text(f"{label}: {text_of(rest[1])}")
            self._recorded.append((kind, now + ahead, *rest))
        if self._start is not None:
            self._start += ahead
        self._parts = [(0, name)] if name else []

    @property
    def parts(self) -> list[tuple[int, str]]:
        """The number of the first element of each named run, and the name, in the order of the numbers."""
        return self._parts.copy()

    def include(self, other: Trace) -> None:
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

    # -- showing

    def story(self) -> Story:
        """The latest run as lives of elements, which the pictures show.

        Raises:
            StateError: nothing was recorded.
        """
        events = self.events()
        if not events:
            raise StateError(
                "the trace is empty; pass it as trace=... to an operator or to enrich, and run that first. A Spark "
                "task records nothing if it fails, or if Spark ends it early, as limit() and show() do"
            )
        from asyncio_operator.trace.stories import story_of

        return story_of(events, self.dropped, self.parts)

    def timeline(self, path: str | os.PathLike[str], title: str | None = None) -> None:
        """Draw the latest run, one row per element. The suffix of `path` sets the format: .png, .svg or .pdf.

        Raises:
            ConfigurationError: matplotlib is missing, the suffix is not one of these, or the folder does not exist.
            StateError: nothing was recorded.
        """
        from asyncio_operator.trace import timeline

        timeline.write([(str(title or ""), self.story())], path)

    def draw(self, axes: Axes, title: str | None = None, *, legend: bool = True) -> None:
        """Draw the latest run into axes of matplotlib, with a legend beside them if `legend`.

        Raises:
            StateError: nothing was recorded.
        """
        from asyncio_operator.trace import timeline

        timeline.draw(axes, self.story(), title or "", legend)

    def html(self, path: str | os.PathLike[str], title: str | None = None) -> None:
        """Write one page that needs no other file: a timeline to zoom, and a table to sort and filter.

        Raises:
            ConfigurationError: the folder does not exist.
            StateError: nothing was recorded.
        """
        from asyncio_operator.trace import page

        page.write_atomically(path, page.page_of(self.story(), str(title or "Trace")).encode())

    def _repr_html_(self) -> str:
        """The page, for a notebook. Of more than `MOST_SHOWN` elements only their number."""
        try:
            story = self.story()
        except StateError:
            return "<p>The trace is empty.</p>"
        if len(story.lives) > MOST_SHOWN:
            return f"<p>The trace has {len(story.lives):,} elements: write it with <code>html(path)</code>.</p>"
        import html

        from asyncio_operator.trace import page

        # The frame has no access to the notebook.
        return (
            f'<iframe srcdoc="{html.escape(page.page_of(story, "Trace"))}" sandbox="allow-scripts" title="Trace" '
            'style="width:100%;height:640px;border:0"></iframe>'
        )

    def chrome(self, path: str | os.PathLike[str]) -> None:
        """Write Chrome trace events: JSON for Perfetto and chrome://tracing, in microseconds since the start.

        Raises:
            ConfigurationError: the folder does not exist.
            StateError: nothing was recorded.
        """
        from asyncio_operator.trace import page

        page.write_chrome(self.story(), path)

    def __repr__(self) -> str:
        events = len(self._recorded) + (self._start is not None)
        return f"{type(self).__name__}(limit={self._recorded.maxlen}, events={events}, dropped={self.dropped})"


def timelines(
    panels: Mapping[str, Trace] | Iterable[tuple[str, Trace]],
    path: str | os.PathLike[str],
    title: str | None = None,
    columns: int = 3,
) -> None:
    """Draw several runs into one picture, side by side on one axis of time.

    Args:
        panels: a title and a trace for each run, as a mapping or as pairs.
        path: where to write the picture. The suffix sets its format: .png, .svg or .pdf.
        title: printed above all runs.
        columns: the maximum number of runs in one row of the picture.

    Raises:
        ConfigurationError: matplotlib is missing, the suffix is not one of these, the folder does not exist, or
            `panels` is empty or holds anything but a title and a trace.
        StateError: nothing was recorded in one of the traces.
    """
    from asyncio_operator.trace import timeline

    positive_int("columns", columns)
    stories = []
    for pair in panels.items() if isinstance(panels, Mapping) else panels if isinstance(panels, Iterable) else [panels]:
        match pair:
            case (str(words), Trace() as trace):
                stories.append((words, trace.story()))
            case _:
                raise ConfigurationError(
                    f"panels has {describe(pair)} in it; it must be pairs of a title and a Trace, or a mapping of them"
                )
    timeline.write(stories, path, title, columns)
