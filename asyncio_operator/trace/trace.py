"""`Trace`: a recording of a run, and the ways to show it. Nothing is drawn before it is asked for.

The modules that show it are imported where they are used: programs that record nothing import this module too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from asyncio_operator.checks import positive_int
from asyncio_operator.errors import ConfigurationError, StateError, describe
from asyncio_operator.trace.recording import Recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from asyncio_operator.trace.stories import Story

MOST_SHOWN = 5_000
"""Elements that a notebook shows: each takes some 300 bytes of its file."""


class Trace(Recording):
    """Records one run of an operator, and shows it. A trace that is passed to another run starts again from empty.

    It keeps the first 40 characters of the ``repr`` of values and keys, and never the values themselves. So it can be
    pickled whatever the values were.

    Args:
        limit: the maximum number of events, besides the start of the run. An element without retries makes five;
            100,000 events take 10 to 20 MB.

    Raises:
        ConfigurationError: `limit` is not an int of at least 1.
    """

    __slots__ = ()

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

        timeline.write([(title or "", self.story())], path)

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

        page.write(self.story(), path, title or "Trace")

    def _repr_html_(self) -> str:
        """The page, for a notebook. Of more than `MOST_SHOWN` elements only their number."""
        try:
            story = self.story()
        except StateError:
            return "<p>The trace is empty.</p>"
        if len(story.lives) > MOST_SHOWN:
            return f"<p>The trace has {len(story.lives):,} elements: write it with <code>html(path)</code>.</p>"
        from asyncio_operator.trace import page

        return page.frame_of(story, "Trace")

    def chrome(self, path: str | os.PathLike[str]) -> None:
        """Write Chrome trace events: JSON for Perfetto and chrome://tracing, in microseconds since the start.

        Raises:
            ConfigurationError: the folder does not exist.
            StateError: nothing was recorded.
        """
        from asyncio_operator.trace import chrome

        chrome.write(self.story(), path)


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
    pairs = _pairs(panels.items() if isinstance(panels, Mapping) else panels)
    timeline.write([(words, trace.story()) for words, trace in pairs], path, title, columns)


def _pairs(panels: Iterable[Any]) -> list[tuple[str, Trace]]:
    pairs = list(panels)
    for pair in pairs:
        match pair:
            case (str(), Trace()):
                pass
            case _:
                raise ConfigurationError(
                    f"panels has {describe(pair)} in it; it must be pairs of a title and a Trace, or a mapping of them"
                )
    return pairs
