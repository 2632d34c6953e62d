"""The figures as tables in Markdown, and as pictures of ratios. Reasons for missing figures are below the tables.

A table can be read back from its page (`read`), so that the pictures can be drawn again without a measurement.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.environments import REQUIREMENTS
from benchmarks.peers.measure import Figure, Figures, works_of
from benchmarks.peers.roster import PEERS, PIPE, SPARK, WORKS, Peer, Work, base_of
from examples.stage import ProblemError
from tools import schemes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
"""Around the table on the page that shows it."""

HTTP = "HTTP API"
REQUESTS = f"{HTTP}: requests a row"
"""The columns of the work that counts requests."""

CELL = re.compile(r"(?:\*\*(?P<ratio>[\d.e+]+)\*\*<br>)?(?P<rate>[\d,]+)")
"""A cell with a rate, and a ratio unless it is of this library."""

Ratios = dict[tuple[str, str], float]
"""How many times as fast this library is, by the names of peer and work."""

PICTURES = {SPARK: "peers.svg", PIPE: "pipes.svg"}
"""The picture of each group."""

FASTER, SLOWER, NOTE = "#1f77b4", "#c0392b", "#66707a"
"""Bars of peers that this library is faster than, of those that are faster, and what is written in grey."""

COLUMNS = 2
"""Panels beside each other in a picture."""


def machine(turns: int) -> str:
    """The machine on which the figures were measured, and the number of turns."""
    parts = [
        f"{os.cpu_count()} cores",
        f"{platform.system()} {platform.machine()}",
        f"Python {platform.python_version()}",
        f"PySpark {metadata.version('pyspark')}",
        f"Java {java_version()}",
    ]
    return f"{', '.join(parts)}; the median of {turns} turns."


def java_version() -> str:
    """Of the Java on PATH."""
    printed = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    java = re.search(r'version "([^"]+)"', printed)
    return java[1] if java else "unknown"


def version(peer: Peer) -> str:
    """Of what is compared, as its requirements say; "" for what is a part of Spark or of this library."""
    if peer.environment in ("", "spark"):
        return ""
    lines = (REQUIREMENTS / f"{peer.environment}.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if not line.startswith("#")).partition("==")[2]


def markdown(figures: Figures, peers: Sequence[Peer], works: Sequence[Work], turns: int) -> Iterator[str]:
    """The lines: a table for each group, and the reasons."""
    reasons: list[str] = []
    ratios = ratios_of(figures)
    yield from (BEGIN, f"Measured on {machine(turns)}")
    for group in dict.fromkeys(peer.group for peer in peers):
        chosen = [peer for peer in peers if peer.group == group]
        columns = works_of(group, works)
        counted = [work for work in columns if any(_requests(peer, work, figures) for peer in chosen)]
        head = [f"rows/s {group}", *(work.title for work in columns), *(REQUESTS for _ in counted)]
        lines = [
            [
                _name(peer),
                *(_cell(peer, work, figures, ratios, reasons) for work in columns),
                *(_requests(peer, work, figures) for work in counted),
            ]
            for peer in chosen
        ]
        yield ""
        yield from _aligned([head, *lines])
    if reasons:
        yield ""
        yield from (f"{number}. {reason}" for number, reason in enumerate(reasons, 1))
    yield END


def check_places(page: Path | None, begin: str, end: str, picture: Path | None) -> None:
    """Check, before the measurement, that the results can be written to their places.

    Raises:
        ProblemError: the page does not exist, or has no place for a table, or the picture cannot be written there.
    """
    if page is not None:
        if not page.is_file():
            raise ProblemError(f"there is no page {page}")
        _, begun, rest = page.read_text(encoding="utf-8").partition(begin)
        if not begun or end not in rest:
            raise ProblemError(f"{page} has no lines {begin} and {end} for the table to stand between")
    if picture is not None and (not picture.parent.is_dir() or picture.suffix not in (".svg", ".png")):
        raise ProblemError(f"{picture} cannot be drawn: it must be an .svg or a .png in a directory that is there")


def paste(lines: Sequence[str], page: Path) -> None:
    """Replace the lines of a page between the same first and last line; see `check_places`."""
    before, _, rest = page.read_text(encoding="utf-8").partition(lines[0])
    _, _, after = rest.partition(lines[-1])
    page.write_text(f"{before}{chr(10).join(lines)}{after}", encoding="utf-8")


def ratios_of(figures: Figures) -> Ratios:
    """How many times as fast this library is as each peer at each work."""
    ratios: Ratios = {}
    for peer in PEERS:
        base = base_of(peer)
        for work in WORKS:
            figure, ours = (figures.get((one.name, work.name), Figure()) for one in (peer, base))
            if figure.rate and ours.rate and peer != base:
                ratios[peer.name, work.name] = ours.rate / figure.rate
    return ratios


def read(page: Path) -> tuple[Figures, Ratios]:
    """The rates and ratios of the tables on a page, as they are written there. Other figures are left out.

    The ratios are not computed from the rates: each ratio is of one run, and columns may come from several runs.
    """
    table = page.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    works = {work.title: work.name for work in WORKS}
    peers = {_name(peer): peer.name for peer in PEERS}
    figures: Figures = {}
    ratios: Ratios = {}
    titles: list[str] = []
    for line in table.splitlines():
        first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if first.startswith("rows/s"):
            titles = cells
        elif first in peers:
            for title, cell in zip(titles, cells, strict=True):
                if title in works and (said := CELL.fullmatch(cell)):
                    place = peers[first], works[title]
                    figures[place] = Figure(float(said["rate"].replace(",", "")))
                    if said["ratio"]:
                        ratios[place] = float(said["ratio"])
    return figures, ratios


def _name(peer: Peer) -> str:
    name = f"{peer.name} {version(peer)}".strip()
    return name if peer.environment else f"**{name}**"


def _cell(peer: Peer, work: Work, figures: Figures, ratios: Ratios, reasons: list[str]) -> str:
    figure = figures.get((peer.name, work.name), Figure(reason="not measured"))
    if not figure.rate:
        if figure.reason not in reasons:
            reasons.append(figure.reason)
        return f"[{reasons.index(figure.reason) + 1}]"
    times = ratios.get((peer.name, work.name))
    return f"{figure.rate:,.0f}" if times is None else f"**{times:.3g}**<br>{figure.rate:,.0f}"


def _requests(peer: Peer, work: Work, figures: Figures) -> str:
    requests = figures.get((peer.name, work.name), Figure()).requests
    return "" if requests is None else f"{requests:.2f}"


def _aligned(cells: list[list[str]]) -> Iterator[str]:
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    for line in (cells[0], rule, *cells[1:]):
        padded = [text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True)]
        yield f"| {' | '.join([line[0].ljust(widths[0]), *padded])} |"


def pictures(figures: Figures, ratios: Ratios, directory: Path) -> None:
    """Draw a picture of ratios for each group into a directory; see `PICTURES`."""
    for group, name in PICTURES.items():
        picture(
            figures, ratios, [peer for peer in PEERS if peer.group == group], works_of(group, WORKS), directory / name
        )


def picture(figures: Figures, ratios: Ratios, peers: Sequence[Peer], works: Sequence[Work], path: Path) -> None:
    """Draw a group: a panel for each work, with a bar for each peer. All panels have the same axis of ratios.

    Works without any ratio are left out.
    """
    from matplotlib import rcParams
    from matplotlib.figure import Figure as Drawing

    rcParams["svg.hashsalt"] = path.stem
    base = base_of(peers[0])
    others = [peer for peer in peers if peer.environment]
    every = [ratios[peer.name, work.name] for peer in others for work in works if (peer.name, work.name) in ratios]
    shown = [work for work in works if any((peer.name, work.name) in ratios for peer in others)]
    rows = -(-(len(shown) + 1) // COLUMNS)
    drawing = Drawing(figsize=(8.3, rows * (0.75 + 0.21 * len(others)) + 0.6), layout="constrained")
    grid = drawing.subplots(rows, COLUMNS, squeeze=False, sharex=True, sharey=True)
    panels = [panel for line in grid for panel in line]
    for panel, work in zip(panels, shown, strict=False):
        _panel(panel, [ratios.get((peer.name, work.name)) for peer in others])
        panel.set_title(work.title, fontsize=10, fontweight="bold", loc="left", pad=17)
        rate = figures[base.name, work.name].rate
        panel.text(0, 1.03, f"{base.name}: {rate:,.0f} rows/s", fontsize=8.5, color=NOTE, transform=panel.transAxes)
    panels[0].set_xlim(min([0.8, *every]) / 6, max([1.0, *every]) * 6)
    panels[0].set_ylim(len(others) - 0.4, -0.6)
    panels[0].set_yticks(range(len(others)), [peer.name for peer in others])
    for panel in panels[len(shown) :]:
        panel.set_axis_off()
    for panel in panels[max(0, len(shown) - COLUMNS) : len(shown)]:
        panel.tick_params(axis="x", labelbottom=True)
        panel.set_xlabel("times as fast, logarithmic", fontsize=8.5)
    _explain(panels[len(shown)], base.name)
    drawing.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    schemes.follow(path)


def _panel(panel: Axes, ratios: Sequence[float | None]) -> None:
    panel.set_xscale("log")
    for place, times in enumerate(ratios):
        if times is None:
            panel.text(1.12, place, "no figure", fontsize=8.5, color=NOTE, va="center")
            continue
        panel.barh(place, times - 1, left=1, height=0.66, color=FASTER if times >= 1 else SLOWER)
        near, side = (3, "left") if times >= 0.9 else (-3, "right")
        words = f"{times:.{0 if times >= 10 else 1 if times >= 1 else 2}f} x"
        panel.annotate(
            words,
            (max(times, 1) if near > 0 else times, place),
            (near, 0),
            textcoords="offset points",
            va="center",
            ha=side,
            fontsize=8.5,
        )
    panel.axvline(1, color="#3d4650", linewidth=1)
    panel.set_xticks([1, 10, 100], ["1", "10", "100"])
    panel.minorticks_off()
    panel.tick_params(axis="y", length=0, labelsize=9)
    panel.tick_params(axis="x", labelsize=8.5, labelbottom=False, length=2)
    panel.spines[["top", "right", "left"]].set_visible(False)


def _explain(panel: Axes, base: str) -> None:
    """Write the legend of the bars into an empty place."""
    lines = (
        ("How to read it", "bold", "black"),
        (f"a bar: how many times as\nfast {base} is", "normal", FASTER),
        ("to the left of the line:\nthe other one is faster", "normal", SLOWER),
    )
    for number, (words, weight, colour) in enumerate(lines):
        panel.text(
            0.04,
            0.95 - 0.3 * number,
            words,
            fontsize=9,
            fontweight=weight,
            color=colour,
            va="top",
            transform=panel.transAxes,
        )
