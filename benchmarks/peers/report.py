"""The figures as a table in Markdown, and as a picture. What has no figure has its reason below the table."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.peers.environments import REQUIREMENTS
from benchmarks.peers.measure import Figure, Figures, works_of
from benchmarks.peers.roster import Peer, Work, base_of
from examples.stage import ProblemError

BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
"""Around the table on the page that shows it."""

OURS, THEIRS = "#c0392b", "#9aa5b1"


def machine(turns: int) -> str:
    """What the figures were measured on, and how."""
    printed = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    java = re.search(r'version "([^"]+)"', printed)
    parts = [
        f"{os.cpu_count()} cores",
        f"{platform.system()} {platform.machine()}",
        f"Python {platform.python_version()}",
        f"PySpark {metadata.version('pyspark')}",
        f"Java {java[1] if java else 'unknown'}",
    ]
    return f"{', '.join(parts)}; the median of {turns} turns."


def version(peer: Peer) -> str:
    """Of what is compared, as its requirements say; "" for what is a part of Spark or of this library."""
    if peer.environment in ("", "spark"):
        return ""
    lines = (REQUIREMENTS / f"{peer.environment}.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if not line.startswith("#")).partition("==")[2]


def markdown(figures: Figures, peers: Sequence[Peer], works: Sequence[Work], turns: int) -> Iterator[str]:
    """The lines: a table for each group, and the reasons."""
    reasons: list[str] = []
    yield from (BEGIN, f"Measured on {machine(turns)}")
    for group in dict.fromkeys(peer.group for peer in peers):
        chosen = [peer for peer in peers if peer.group == group]
        columns = works_of(group, works)
        head = [f"rows/s {group}", *(work.title for work in columns)]
        lines = [[_name(peer), *(_cell(peer, work, figures, reasons) for work in columns)] for peer in chosen]
        yield ""
        yield from _aligned([head, *lines])
    if reasons:
        yield ""
        yield from (f"{number}. {reason}" for number, reason in enumerate(reasons, 1))
    yield END


def check_places(page: Path | None, begin: str, end: str, picture: Path | None) -> None:
    """Check, before anything is measured, that the results can be written where they shall be.

    Raises:
        ProblemError: the page is not there, or has no place for a table, or the picture cannot be drawn there.
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
    """Put the lines in the place of those on a page that begin and end as they do; see `check_places`."""
    before, _, rest = page.read_text(encoding="utf-8").partition(lines[0])
    _, _, after = rest.partition(lines[-1])
    page.write_text(f"{before}{chr(10).join(lines)}{after}", encoding="utf-8")


def _name(peer: Peer) -> str:
    name = f"{peer.name} {version(peer)}".strip()
    return name if peer.environment else f"**{name}**"


def _cell(peer: Peer, work: Work, figures: Figures, reasons: list[str]) -> str:
    figure = figures.get((peer.name, work.name), Figure(reason="not measured"))
    if not figure.rate:
        if figure.reason not in reasons:
            reasons.append(figure.reason)
        return f"[{reasons.index(figure.reason) + 1}]"
    text = f"{figure.rate:,.0f}"
    base = figures.get((base_of(peer).name, work.name))
    if base is not None and base.rate and base is not figure:
        text += f" ({base.rate / figure.rate:.3g})"
    return text if figure.requests is None else f"{text}; {figure.requests:.2f} requests a row"


def _aligned(cells: list[list[str]]) -> Iterator[str]:
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    for line in (cells[0], rule, *cells[1:]):
        padded = [text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True)]
        yield f"| {' | '.join([line[0].ljust(widths[0]), *padded])} |"


def picture(figures: Figures, peers: Sequence[Peer], works: Sequence[Work], path: Path) -> None:
    """Draw them: a row for each group, a column for each work, a bar for each peer, on a scale of powers of ten."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "peers"
    from matplotlib import pyplot as plt

    groups = list(dict.fromkeys(peer.group for peer in peers))
    chosen = [[peer for peer in peers if peer.group == group] for group in groups]
    drawing, axes = plt.subplots(
        len(groups),
        len(works),
        squeeze=False,
        figsize=(2.0 + 2.1 * len(works), 1.2 + 0.34 * len(peers)),
        gridspec_kw={"height_ratios": [len(members) for members in chosen]},
        layout="constrained",
    )
    for row, (group, members) in enumerate(zip(groups, chosen, strict=True)):
        for column, work in enumerate(works):
            panel = axes[row][column]
            if group not in work.rows:
                panel.axis("off")
                continue
            rates = [figures.get((peer.name, work.name), Figure()).rate for peer in members]
            colours = [THEIRS if peer.environment else OURS for peer in members]
            left = min(filter(None, rates), default=1.0) / 3
            ends = [rate or left for rate in rates]
            panel.barh(range(len(members)), ends, color=colours, height=0.7)
            panel.set_xscale("log")
            panel.set_xlim(left, max(ends) * 12)
            for place, (rate, end) in enumerate(zip(rates, ends, strict=True)):
                panel.annotate(
                    f"{rate:,.0f}" if rate else "-",
                    (end, place),
                    xytext=(3, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=7,
                )
            panel.set_ylim(len(members) - 0.4, -0.6)
            panel.set_yticks(range(len(members)), [peer.name for peer in members] if column == 0 else [], fontsize=8)
            panel.tick_params(axis="x", labelsize=6)
            panel.spines[["top", "right"]].set_visible(False)
            if row == 0 or groups[0] not in work.rows:
                panel.set_title(work.title, fontsize=9)
        axes[row][0].set_ylabel(f"rows/s {group}", fontsize=8)
    drawing.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(drawing)
