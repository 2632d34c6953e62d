"""Draws the results of peers: a page of HTML that needs nothing else, and a table in Markdown.

    python -m benchmarks.peers.page results/*.json --out peers.html
    python -m benchmarks.peers.page results/*.json --page benchmarks/figures.md

Law: a figure is the median of its turns. Rows that were lost, doubled or wrong are those of the worst turn, so that no
good turn hides a bad one. Times of two machines are drawn apart, and are never compared.
"""

from __future__ import annotations

import argparse
import html
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.peers.report import check_places, paste
from benchmarks.peers.results import Result, WorkResult, read
from benchmarks.peers.roster import TRIALS, WORKS, Work
from examples.stage import ProblemError, Stage, run

BEGIN, END = "<!-- alone: begin -->", "<!-- alone: end -->"
"""Around the table on the page that shows it."""

HEAD = (
    "peer",
    "rows/s",
    "CPU s for 1,000 rows",
    "calls a row",
    "refused",
    "repeated",
    "right",
    "lost",
    "doubled",
    "wrong",
    "$ for 1,000 rows",
    "tokens a row",
)

IDLE = 0.2
"""Of an idle machine the busy share when a run begins is not above this."""

STYLE = """
:root { color-scheme: light dark; --line: #8886; --bar: #1f77b4; --bad: #c0392b; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--line); }
th { font-weight: 600; } th:first-child, td:first-child { text-align: left; }
.bad { color: var(--bad); font-weight: 600; } .note { opacity: .75; }
svg rect { fill: var(--bar); } svg text { fill: currentColor; font-size: 13px; }
"""

WIDTH, BAR, LABEL = 900, 24, 220
"""Pixels of a picture: its width, the height of a bar, and the width of the names."""


def rate(work: WorkResult) -> float | None:
    """Rows a second."""
    seconds = work.median("seconds")
    return None if not seconds else work.rows / seconds


def worst(work: WorkResult, name: str) -> int | None:
    """A count in the turn in which it is largest."""
    return max((value for turn in work.turns if (value := getattr(turn, name)) is not None), default=None)


def cells(result: Result, work: WorkResult) -> list[str]:
    """The figures of a peer at a work, in the order of `HEAD`."""
    thousands = work.rows / 1000

    def each(name: str, rows: float, form: str) -> str:
        value = work.median(name)
        return "" if value is None or not rows else format(value / rows, form)

    right = min((turn.right for turn in work.turns if turn.right is not None), default=None)
    speed = rate(work)
    counts = [right, *(worst(work, name) for name in ("lost", "doubled", "wrong"))]
    return [
        f"{result.peer} {result.version}".strip(),
        "failed" if speed is None else f"{speed:,.0f}",
        each("cpu_seconds", thousands, ".2f"),
        each("calls", work.rows, ".2f"),
        each("refused", 1, ",.0f"),
        each("repeated", 1, ",.0f"),
        *("" if count is None else f"{count:,}" for count in counts),
        each("money", thousands, ".2f"),
        each("tokens", work.rows, ".1f"),
    ]


def machines(results: Sequence[Result]) -> dict[str, list[Result]]:
    """The results by their machine, in words."""
    found: dict[str, list[Result]] = {}
    for result in results:
        machine, versions = result.machine, result.versions
        words = f"{machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}"
        words += "".join(f", {name} {versions[name]}" for name in sorted(versions))
        found.setdefault(words, []).append(result)
    return found


def _done(results: Sequence[Result], work: Work) -> list[tuple[Result, WorkResult]]:
    """Those that tried a work: the fastest first, then those that failed."""
    tried = [(result, result.works[work.name]) for result in results if work.name in result.works]
    return sorted(tried, key=lambda one: -(rate(one[1]) or 0))


def _groups(results: Sequence[Result]) -> Iterator[tuple[str, str, Work, list[tuple[Result, WorkResult]]]]:
    """Machine, group, work, and who tried it."""
    for machine, those in machines(results).items():
        for group in dict.fromkeys(result.group for result in those):
            for work in (*TRIALS, *WORKS):
                if tried := _done([result for result in those if result.group == group], work):
                    yield machine, group, work, tried


def markdown(results: Sequence[Result]) -> Iterator[str]:
    """A table for each machine, group and work, and the reasons of those that have no figures."""
    yield BEGIN
    for machine, group, work, tried in _groups(results):
        yield from ("", f"**{work.title}**, {group} ({machine}):", "")
        yield f"| {' | '.join(HEAD)} |"
        yield f"| --- |{' ---: |' * (len(HEAD) - 1)}"
        yield from (f"| {' | '.join(cells(*one))} |" for one in tried if one[1].turns)
        if notes := [f"{result.peer}: {note}" for one in tried for result in one[:1] for note in _notes(*one)]:
            yield from ("", "; ".join(notes) + ".")
    yield from ("", END)


def _notes(result: Result, work: WorkResult) -> Iterator[str]:
    """What is to be known of the figures of a peer at a work."""
    if reason := work.reason or next((turn.error for turn in work.turns if turn.error), ""):
        yield reason
    elif result.machine["busy"] > IDLE:
        yield f"{result.machine['busy']:.0%} of the machine was busy when the run began"


def page(results: Sequence[Result]) -> Iterator[str]:
    """The lines of the page."""
    yield '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    yield f"<title>Asynchronous enrichment, measured</title><style>{STYLE}</style>"
    yield "<h1>Asynchronous enrichment, measured</h1>"
    yield "<p>Bars: rows a second, the median of the turns. Rows that were lost, doubled or wrong: the worst turn.</p>"
    for machine, group, work, tried in _groups(results):
        yield f"<h2>{html.escape(work.title)}, {html.escape(group)}</h2>"
        yield f'<p class="note">{html.escape(machine)}</p>'
        yield from _bars([one for one in tried if rate(one[1])])
        if measured := [one for one in tried if one[1].turns]:
            yield f"<table><tr>{''.join(f'<th>{name}' for name in HEAD)}</tr>"
            for one in measured:
                yield f"<tr>{''.join(_cell(name, text) for name, text in zip(HEAD, cells(*one), strict=True))}</tr>"
            yield "</table>"
        for result, done in tried:
            for note in _notes(result, done):
                yield f'<p class="note">{html.escape(f"{result.peer}: {note}")}</p>'
    yield "</html>"


def _cell(name: str, text: str) -> str:
    bad = name in ("lost", "doubled", "wrong") and text not in ("", "0")
    return f'<td class="bad">{html.escape(text)}' if bad else f"<td>{html.escape(text)}"


def _bars(tried: Sequence[tuple[Result, WorkResult]]) -> Iterator[str]:
    """A picture with a bar for each peer."""
    rates = [rate(done) or 0.0 for _, done in tried]
    if not rates:
        return
    height = BAR * len(rates)
    yield f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="rows a second of each peer">'
    for place, ((result, _), speed) in enumerate(zip(tried, rates, strict=True)):
        top, length = place * BAR, (WIDTH - LABEL - 80) * speed / max(rates)
        yield f'<text x="{LABEL - 8}" y="{top + 16}" text-anchor="end">{html.escape(result.peer)}</text>'
        yield f'<rect x="{LABEL}" y="{top + 4}" width="{length:.1f}" height="{BAR - 8}"/>'
        yield f'<text x="{LABEL + length + 6:.1f}" y="{top + 16}">{speed:,.0f}</text>'
    yield "</svg>"


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.page", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="what `python -m benchmarks.peers NAME --json` has written")
    parser.add_argument("--out", type=Path, help="the page of HTML to write")
    parser.add_argument("--page", type=Path, help="a page of Markdown that shows the table: it gets the new one")
    options = parser.parse_args()

    def play(_stage: Stage) -> None:
        if options.out is None and options.page is None:
            raise ProblemError("give --out FILE.html, or --page FILE.md, or both")
        check_places(options.page, BEGIN, END, None)
        results = [read(path) for path in options.files]
        if options.out is not None:
            options.out.write_text("\n".join(page(results)) + "\n", encoding="utf-8")
        if options.page is not None:
            paste(list(markdown(results)), options.page)

    return run(play)


if __name__ == "__main__":
    sys.exit(main())
