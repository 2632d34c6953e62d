"""Measures this library beside its peers, prints the tables, and on request draws the ratios."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from benchmarks.peers.alone import PRICE, measured_alone
from benchmarks.peers.measure import measured
from benchmarks.peers.report import BEGIN, END, PICTURES, check_places, markdown, paste, pictures, ratios_of, read
from benchmarks.peers.roster import GUESTS, PEERS, TRIALS, WORKS, Peer, Work, base_of
from examples.stage import ProblemError, Stage, require_java, run, workspace


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Named = TypeVar("Named", bound=_Named)


ALONE = {
    "peer": "python -m benchmarks.peers {name} --json FILE",
    "work": "python -m benchmarks.peers NAME --work {name} --json FILE",
}
"""How what has no place in the tables is measured."""


def chosen(
    kind: Literal["peer", "work"], names: Sequence[str], among: Sequence[Named], alone: Sequence[Named] = ()
) -> list[Named]:
    """The ones with these names, or all.

    Args:
        alone: those that exist, but only where one peer is measured.

    Raises:
        ProblemError: a name does not exist, or is for one peer alone.
    """
    known = {one.name.lower(): one for one in among}
    for name in names:
        if own := next((one.name for one in alone if one.name.lower() == name.lower()), None):
            command = ALONE[kind].format(name=_quoted(own))
            what = f"{own} is for one peer alone" if kind == "work" else f"{own} is measured alone"
            raise ProblemError(f"{what}: {command}")
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ProblemError(
                f"there is no {kind} {name}{hint or '.'} There are: {', '.join(_quoted(one.name) for one in among)}"
            )
    wanted = {name.lower() for name in names} or known.keys()
    return [one for name, one in known.items() if name in wanted]


def _quoted(name: str) -> str:
    """A name as a shell takes it: that of some peers has spaces and a comma."""
    return name if name.isidentifier() else f'"{name}"'


def with_bases(peers: Sequence[Peer]) -> list[Peer]:
    """The peers, and the sides with which they are compared."""
    wanted = [*peers, *map(base_of, peers)]
    return [peer for peer in PEERS if peer in wanted]


def alone(options: argparse.Namespace) -> None:
    """Measure one peer, and write what it did."""
    [peer] = chosen("peer", [options.name], [*PEERS, *GUESTS])
    works: list[Work] = chosen("work", options.work, [*WORKS, *TRIALS])
    if options.peer or options.page or options.out or options.redraw:
        raise ProblemError("a peer that is measured alone has no tables: leave --peer, --page, --out and --redraw out")
    if options.json is None or not options.json.absolute().parent.is_dir():
        raise ProblemError("a peer that is measured alone needs --json FILE, in a directory that exists")
    with workspace("peers") as directory:
        measured_alone(peer, works, options.turns, options.price, directory).write(options.json)


def program(options: argparse.Namespace) -> None:
    """Run the program with these options."""
    if options.turns < 1:
        raise ProblemError(f"--turns is {options.turns}; it must be at least 1")
    if options.name is not None:
        alone(options)
        return
    if options.json is not None:
        raise ProblemError("--json needs the name of one peer: python -m benchmarks.peers NAME --json FILE")
    works: list[Work] = chosen("work", options.work, WORKS, TRIALS)
    peers = with_bases(chosen("peer", options.peer, PEERS, GUESTS))
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
    parser.add_argument("name", nargs="?", help="one peer, which is measured alone; needs --json")
    parser.add_argument("--json", type=Path, help="the file that gets the results of one peer")
    parser.add_argument("--price", type=float, default=PRICE, help=f"dollars for a key, in these results; {PRICE}")
    parser.add_argument("--peer", nargs="+", default=[], help="such as Daft aiometer; default: all")
    parser.add_argument("--work", nargs="+", default=[], help=", ".join(work.name for work in (*WORKS, *TRIALS)))
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
