"""Measures this library beside its peers, prints the tables, and on request draws the ratios."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from benchmarks.peers.measure import measured
from benchmarks.peers.report import BEGIN, END, PICTURES, check_places, markdown, paste, pictures, ratios_of, read
from benchmarks.peers.roster import PEERS, WORKS, Peer, Work, base_of
from examples.stage import ProblemError, Stage, require_java, run, workspace


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Named = TypeVar("Named", bound=_Named)


def chosen(kind: str, names: Sequence[str], among: Sequence[Named]) -> list[Named]:
    """The ones with these names, or all.

    Raises:
        ProblemError: a name does not exist.
    """
    known = {one.name.lower(): one for one in among}
    for name in names:
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ProblemError(
                f"there is no {kind} {name}{hint or '.'} There are: {', '.join(one.name for one in among)}"
            )
    wanted = {name.lower() for name in names} or known.keys()
    return [one for name, one in known.items() if name in wanted]


def with_bases(peers: Sequence[Peer]) -> list[Peer]:
    """The peers, and the sides with which they are compared."""
    wanted = [*peers, *map(base_of, peers)]
    return [peer for peer in PEERS if peer in wanted]


def program(options: argparse.Namespace) -> None:
    """Run the program with these options."""
    works: list[Work] = chosen("work", options.work, WORKS)
    peers = with_bases(chosen("peer", options.peer, PEERS))
    if options.turns < 1:
        raise ProblemError(f"--turns is {options.turns}; it must be at least 1")
    for name in PICTURES.values() if options.out is not None else ():
        check_places(None, BEGIN, END, options.out / name)
    check_places(options.page, BEGIN, END, None)
    if options.redraw:
        if options.page is None or options.out is None:
            raise ProblemError("--redraw needs --page, whose table it reads, and --out, where it draws")
        pictures(*read(options.page), options.out)
        return
    if options.page is not None and (options.peer or options.work):
        raise ProblemError("--page puts a new table in the place of the whole old one: leave --peer and --work out")
    require_java()
    with workspace("peers") as directory:
        figures = measured(peers, works, options.turns, directory)
    lines = list(markdown(figures, peers, works, options.turns))
    print(*lines, sep="\n")
    if options.page is not None:
        paste(lines, options.page)
    if options.out is not None:
        pictures(figures, ratios_of(figures), options.out)


def main() -> int:
    """The exit status: 0, also where a peer is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--peer", nargs="+", default=[], help="such as Daft aiometer; default: all")
    parser.add_argument("--work", nargs="+", default=[], help=", ".join(work.name for work in WORKS))
    parser.add_argument("--turns", type=int, default=3, help="runs of each that count; 3")
    parser.add_argument("--page", type=Path, help="a page that shows the table: it gets the new one")
    parser.add_argument(
        "--out", type=Path, help=f"the directory for {' and '.join(PICTURES.values())}, such as docs/pictures"
    )
    parser.add_argument(
        "--redraw", action="store_true", help="measure nothing: draw the pictures from the table of --page"
    )
    options = parser.parse_args()

    def play(_stage: Stage) -> None:
        program(options)

    return run(play)


if __name__ == "__main__":
    sys.exit(main())
