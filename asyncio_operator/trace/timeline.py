"""The picture of a run: one row per element, in input order from the top, and time from left to right.

A tall bar is a call, a flat bar is an element that waits, and a dark stroke is its emission. A watermark is a line
between two rows. Its stroke, from segment to segment, is the time at which it left: no element above it leaves later,
and no element below it leaves earlier. This is the only module that knows matplotlib. It imports matplotlib when a
picture is drawn, and it never touches pyplot, which belongs to the caller.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from asyncio_operator.errors import ConfigurationError
from asyncio_operator.trace.page import checked, write_atomically
from asyncio_operator.trace.stories import CIRCUIT, MARKS, SPANS, WATERMARK, Story, mark_of, rows_before

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MAX_ROWS = 2_000  # More rows than this are not drawn: each would be thinner than a pixel.

SUFFIXES = (".png", ".svg", ".pdf")
FEWEST_ROWS = 6
LABELLED_ROWS = 40
HATCHED_ROWS = 80
LABELLED_WATERMARKS = 12
DOTS_PER_INCH = 150
VISIBLE = 1 / 500
"""Part of the width. A shorter wait is drawn as one or two pixels; the legend leaves it out, as no reader finds it."""
MILLISECONDS = 1e3
LEGEND = (*SPANS, *MARKS, "watermark", *CIRCUIT)  # Names of looks, in the order of a legend.


def write(
    panels: Sequence[tuple[str, Story]], path: str | os.PathLike[str], title: str | None = None, columns: int = 1
) -> None:
    """Draw stories under their titles into one picture; errors as `Trace.timeline` has them."""
    suffix = checked(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigurationError(
            f"path {os.fspath(path)!r} has the suffix {suffix!r}; a picture can be {', '.join(SUFFIXES)}"
        )
    if not panels:
        raise ConfigurationError("panels is empty; give at least one title and trace")
    figure = _figure(panels, title, columns)
    picture = BytesIO()
    figure.savefig(picture, format=suffix[1:], dpi=DOTS_PER_INCH)
    write_atomically(path, picture.getvalue())


def _figure(panels: Sequence[tuple[str, Story]], title: str | None, columns: int) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ConfigurationError(
            "pictures need matplotlib, which is not installed; run: pip install 'asyncio-operator[plot]'"
        ) from error
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    tallest = max(len(story.lives) for _, story in panels)
    height = min(max(1.2 + 0.26 * tallest, 2.4), 11.0 if rows == 1 else 6.5)
    width = 11.0 if columns == 1 else 4.2 * columns
    figure = Figure(figsize=(width, height * rows + 0.8), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False).flatten()
    found: dict[str, Any] = {}
    for place, axes in enumerate(grid):
        if place >= len(panels):
            axes.set_axis_off()
            continue
        words, story = panels[place]
        found |= _draw(axes, story, words)
        # The axes are labelled only where no other panel is below, or to the left.
        if place % columns:
            axes.set_ylabel("")
        if place + columns < len(panels):
            axes.set_xlabel("")
        else:
            axes.tick_params(axis="x", labelbottom=True)
    grid[0].set_xlim(0, max(_width(story) for _, story in panels))
    if title:
        figure.suptitle(title, parse_math=False)
    beside = 5 if columns == 1 else 2 * columns
    handles = [found[name] for name in LEGEND if name in found]
    figure.legend(handles=handles, loc="outside lower center", ncols=beside, frameon=False)
    return figure


def draw(axes: Axes, story: Story, title: str, legend: bool) -> None:
    """Draw a run into axes, with a legend of its colours beside it if `legend`."""
    found = _draw(axes, story, title)
    if legend and found:
        handles = [found[name] for name in LEGEND if name in found]
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)


def _draw(axes: Axes, story: Story, title: str) -> dict[str, Any]:
    """Draw a run. The result is the legend: for each look that occurs, by name, what the legend shows of it."""
    from matplotlib.patches import Patch

    rows = min(len(story.lives), MAX_ROWS)
    found: dict[str, Any] = {}
    for number, (state, start, end) in enumerate(story.circuit):
        look = CIRCUIT[state]
        band = axes.axvspan(start * MILLISECONDS, end * MILLISECONDS, color=look.colour, linewidth=0, zorder=0)
        band.set_gid(_name(axes, f"circuit-{number}"))
        found[state] = Patch(color=look.colour, label=look.label)
    found |= _draw_spans(axes, story, rows) | _draw_marks(axes, story, rows) | _draw_watermarks(axes, story, rows)
    _label(axes, story, rows, title)
    return found


def _name(axes: Axes, name: str) -> str:
    """A name that is unique in the picture. SVG uses it as an id."""
    figure = axes.get_figure()
    place = figure.axes.index(axes) if figure is not None and axes in figure.axes else 0
    return f"trace{place + 1}-{name}"


def _draw_spans(axes: Axes, story: Story, rows: int) -> dict[str, Any]:
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    boxes: dict[str, list[list[tuple[float, float]]]] = {}
    for row, life in enumerate(story.lives[:rows]):
        for span in life.spans(story.end):
            look = SPANS[span.kind]
            left, right = span.start * MILLISECONDS, span.end * MILLISECONDS
            top, bottom = row - 0.5 + look.top, row - 0.5 + look.bottom
            boxes.setdefault(span.kind, []).append([(left, top), (right, top), (right, bottom), (left, bottom)])
    found = {}
    for kind in (kind for kind in SPANS if kind in boxes):
        colour = SPANS[kind].colour
        # Each bar has an edge in its own colour: without it, calls that take no time would be invisible.
        looks: dict[str, Any] = {
            "facecolor": colour,
            "edgecolor": colour,
            "linewidth": 0.6 if rows <= HATCHED_ROWS else 0.2,
        }
        if SPANS[kind].hatched and rows <= HATCHED_ROWS:
            looks |= {"facecolor": "#ffffff", "hatch": "/////", "linewidth": 0.8}
        bars = PolyCollection(boxes[kind], zorder=2 + 0.01 * list(SPANS).index(kind), **looks)
        bars.set_gid(_name(axes, kind))
        axes.add_collection(bars)
        longest = max(right[0] - left[0] for left, right, *_ in boxes[kind])
        is_tall = SPANS[kind].bottom - SPANS[kind].top > 0.6
        if is_tall or longest > _width(story) * VISIBLE:
            found[kind] = Patch(label=SPANS[kind].label, **looks)
    return found


def _draw_marks(axes: Axes, story: Story, rows: int) -> dict[str, Any]:
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    strokes: dict[str, list[list[tuple[float, float]]]] = {}
    for row, life in enumerate(story.lives[:rows]):
        if (mark := mark_of(life)) is not None:
            kind, time = mark[0], mark[1] * MILLISECONDS
            strokes.setdefault(kind, []).append([(time, row - 0.5), (time, row + 0.5)])
    found = {}
    width = 2.4 if rows <= LABELLED_ROWS else 1.2
    for kind, lines in strokes.items():
        ends = LineCollection(lines, colors=MARKS[kind].colour, linewidths=width, capstyle="butt", zorder=4)
        ends.set_gid(_name(axes, kind))
        axes.add_collection(ends)
        found[kind] = Line2D(
            [],
            [],
            color=MARKS[kind].colour,
            marker="|",
            markersize=11,
            markeredgewidth=2.4,
            linestyle="none",
            label=MARKS[kind].label,
        )
    return found


def _draw_watermarks(axes: Axes, story: Story, rows: int) -> dict[str, Any]:
    from matplotlib.lines import Line2D

    places = [row for row in rows_before(story) if row < rows or rows == len(story.lives)]
    look = WATERMARK
    bounds = [0, *places, rows]
    for number, (row, mark) in enumerate(zip(places, story.watermarks, strict=False)):
        line = axes.axhline(row - 0.5, color=look.colour, linewidth=1, linestyle=(0, (6, 3)), zorder=3)
        line.set_gid(_name(axes, f"watermark-{mark.element}"))
        if mark.emitted is not None:
            left = mark.emitted * MILLISECONDS
            above, below = bounds[number] - 0.5, bounds[number + 2] - 0.5
            axes.plot([left, left], [above, below], color=look.colour, linewidth=1, alpha=0.6, zorder=3)
            axes.plot([left], [row - 0.5], color=look.colour, marker="D", markersize=5, zorder=5, clip_on=False)
        if len(places) <= LABELLED_WATERMARKS:
            axes.annotate(
                f"watermark {mark.timestamp}",
                (1, row - 0.5),
                (4, 0),
                xycoords=axes.get_yaxis_transform(),
                textcoords="offset points",
                va="center",
                fontsize="x-small",
                color=look.colour,
                zorder=6,
            )
    if not places:
        return {}
    return {
        "watermark": Line2D(
            [], [], color=look.colour, linewidth=1, linestyle=(0, (6, 3)), marker="D", markersize=5, label=look.label
        )
    }


def _label(axes: Axes, story: Story, rows: int, title: str) -> None:
    from matplotlib.ticker import MaxNLocator

    lives = story.lives
    above = [title] if title else []
    if not lives:
        above.append(
            "no element is left whole; give Trace a larger limit" if story.dropped else "no elements in this run"
        )
    if rows < len(lives):
        above.append(f"the first {rows:,} of {len(lives):,} elements are drawn")
    if story.dropped:
        above.append(f"{story.dropped:,} earlier elements are no longer in the trace")
    axes.set_title("\n".join(above), parse_math=False, fontsize="medium")
    axes.set_xlim(0, _width(story))
    axes.set_ylim(max(rows, FEWEST_ROWS) - 0.4, -0.6)
    axes.ticklabel_format(axis="x", style="plain", useOffset=False)
    axes.set_xlabel("milliseconds since the start of the run")
    axes.set_ylabel("element, in input order")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#e4e7eb", linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
    if rows <= LABELLED_ROWS:
        named = len({life.value for life in lives}) == len(lives)
        words = []
        for life in lives[:rows]:
            whole = len(life.value) <= 24
            value = life.value if whole else life.value[:21] + "..."
            # Its number is added unless the value is that number, or values name all elements.
            alone = value == str(life.element) or (named and whole)
            words.append(value if alone else f"{value}  #{life.element}")
        axes.set_yticks(range(rows), words, parse_math=False)
        axes.tick_params(axis="y", length=0, labelsize="small")
    else:
        numbers = [life.element for life in lives[:rows]]
        steps = MaxNLocator(10, integer=True).tick_values(numbers[0], numbers[-1])
        ticks = [bisect_left(numbers, step) for step in steps if numbers[0] <= step <= numbers[-1]]
        axes.set_yticks(ticks, [f"{numbers[tick]:,}" for tick in ticks])


def _width(story: Story) -> float:
    """One hundredth more than the time that is drawn, so that the last mark is fully visible."""
    end = story.end
    if len(story.lives) > MAX_ROWS:
        end = max(span.end for life in story.lives[:MAX_ROWS] for span in life.spans(story.end))
    return max(end * MILLISECONDS * 1.01, 1e-6)
