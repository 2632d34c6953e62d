"""The common part of the demos with pictures: they run several ways, print a table, and draw all ways side by side.

A way writes into a trace and returns the names of its outputs in their order. Each way runs several times, and the
fastest run is shown, because other programs have disturbed it least. `--output` names the picture. With a suffix (.png,
.svg, .pdf) only that one is written, without a suffix a PNG and an SVG. The program says if it replaces a picture.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from asyncio_operator.trace import Trace, timelines
from asyncio_operator.trace.timeline import SUFFIXES
from examples.stage import ProblemError, Stage, run

ROUNDS = 10

Way = Callable[[Trace], Iterable[str]]


class Run(NamedTuple):
    """The result of one way: its trace, its outputs in order, and milliseconds until the last of them."""

    trace: Trace
    order: list[str]
    milliseconds: float


def main(name: str, description: str, demo: Callable[[Path], object], arguments: list[str] | None = None) -> int:
    """Run a demo with the picture that the command line names. Returns the exit status."""
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(name),
        metavar="PICTURE",
        help="a .png, .svg or .pdf; without a suffix: a PNG and an SVG. A file that exists is replaced "
        f"(default: {name}.png and {name}.svg in the current directory)",
    )
    path: Path = parser.parse_args(arguments).output

    def program(_stage: Stage) -> None:
        demo(path)

    return run(program)


def show(ways: Mapping[str, Way], path: Path, title: str, note: str) -> dict[str, Run]:
    """Run all ways, print the table, and draw the picture. Returns the runs by title."""
    pictures = checked(path)
    runs = {name: fastest(way) for name, way in ways.items()}
    width = max(map(len, runs))
    print(f"{'way':<{width}}      ms  order of emission ({note})")
    for name, went in runs.items():
        print(f"{name:<{width}}  {went.milliseconds:6.1f}  {' '.join(went.order)}")
    write([(f"{name}: {went.milliseconds:.1f} ms", went.trace) for name, went in runs.items()], pictures, title)
    return runs


def fastest(way: Way) -> Run:
    """The fastest of some runs."""
    return min((once(way) for _ in range(ROUNDS)), key=lambda went: went.milliseconds)


def once(way: Way) -> Run:
    """One run."""
    trace = Trace()
    order = list(way(trace))
    return Run(trace, order, 1e3 * max(event.time for event in trace.events() if event.kind == "emitted"))


def checked(path: Path) -> list[Path]:
    """The pictures to draw. They are checked before the first run."""
    if path.is_dir():
        raise ProblemError(f"{path} is a folder; give --output the name of a picture in it")
    if path.suffix and path.suffix.lower() not in SUFFIXES:
        raise ProblemError(f"{path} has the suffix {path.suffix!r}; a picture can be {', '.join(SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise ProblemError(f"{path} is in a folder that does not exist; make {path.absolute().parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ProblemError("matplotlib draws the picture and is not installed; pip install 'asyncio-operator[plot]'")
    return [path] if path.suffix else [Path(f"{path}.png"), Path(f"{path}.svg")]


def write(panels: list[tuple[str, Trace]], pictures: Iterable[Path], title: str) -> None:
    """Draw the panels, and print the paths."""
    for picture in pictures:
        try:
            replaced = " (replaced)" if picture.exists() else ""
            timelines(panels, picture, title, columns=2)
        except OSError as error:
            raise ProblemError(f"{picture} cannot be written: {error.strerror}") from error
        print(f"Picture: {picture}{replaced}")
