"""Run benchmarks, and print one table: both sides, their ratio, the target, and whether it is met."""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator
from fractions import Fraction

import benchmarks
from benchmarks import Row, Rows
from examples.stage import ProblemError, Stage, run

HEADER = ("id", "what", "ours", "theirs", "ratio", "target", "met")

OTHERS = ("__main__", "growth", "measuring", "peers", "simulate")
"""Modules that are separate programs, and the shared module."""

MORE = ("adaptive", "composite", "hedge", "http", "limits", "opening", "retries", "time_to_live")
"""What has a target too, and runs beside S1 to S21 if nothing is named. Others with a target take a minute or more."""

Benchmarks = dict[str, Callable[[], Rows]]


def known() -> Benchmarks:
    """The benchmarks by name: every public function of a module here."""
    found: Benchmarks = {}
    for info in pkgutil.iter_modules(benchmarks.__path__):
        if info.name not in OTHERS:
            module = importlib.import_module(f"benchmarks.{info.name}")
            for name, function in inspect.getmembers(module, inspect.isfunction):
                if function.__module__ == module.__name__ and not name.startswith("_"):
                    found[name] = function
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


def chosen(names: list[str]) -> list[str]:
    """The benchmarks of these names, of which "all" means all; without names, S1 to S21 and `MORE`.

    Raises:
        ProblemError: a name is unknown.
    """
    available = known()
    if not names:
        return [name for name in available if re.fullmatch(r"s\d+", name) or name in MORE]
    names = [name.lower() for name in names]
    if names == ["all"]:
        return [*available]
    if unknown := [name for name in names if name not in available]:
        raise ProblemError(f"there is no benchmark {', '.join(unknown)}; there are: all, {', '.join(available)}")
    return names


def _order(name: str) -> tuple[bool, int, str]:
    """Sorts S5 before S12, and names with a number before the others."""
    number = re.fullmatch(r"s(\d+)", name.lower())
    return number is None, int(number[1]) if number else 0, name


def verdict(ratio: float, target: str) -> str:
    """Whether a ratio meets a target such as "<= 1/15"; "" if there is none."""
    if not target:
        return ""
    sign, _, bound = target.partition(" ")
    limit = float(Fraction(bound))
    met = {"<=": ratio <= limit, ">=": ratio >= limit, "=": ratio == limit}[sign]
    return "yes" if met else "NO"


def table(rows: list[Row]) -> Iterator[str]:
    """The lines of the table."""
    cells = [HEADER, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADER))]
    for line in cells:
        left = [text.ljust(width) for text, width in zip(line[:2], widths[:2], strict=True)]
        right = [text.rjust(width) for text, width in zip(line[2:], widths[2:], strict=True)]
        yield "  ".join([*left, *right]).rstrip()


def _cells(row: Row) -> tuple[str, ...]:
    name, what, ours, theirs, ratio, target = row
    number = float(ratio)
    shown = f"{number:.3f}" if number < 10 else f"{number:,.0f}"
    return str(name), str(what), _figure(ours), _figure(theirs), shown, str(target), verdict(number, str(target))


def _figure(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:,.3g}"


def program(names: list[str]) -> None:
    """Run the benchmarks of these names, and print the table."""
    available = known()
    rows: list[Row] = []
    failed: list[str] = []
    for name in chosen(names):
        print(f"{name} ...", end="", flush=True, file=sys.stderr)
        started = time.perf_counter()
        try:
            rows.extend(available[name]())
        except Exception:
            failed.append(name)
            traceback.print_exc()
        print(f" {time.perf_counter() - started:.1f} s", file=sys.stderr)
    print(*table(rows), sep="\n")
    if failed:
        raise ProblemError(f"failed: {', '.join(failed)}")


def main() -> int:
    """The exit status: 0, also if a target is missed, because a slow or busy machine may miss it."""
    listed = textwrap.fill(f"benchmarks: all, {', '.join(known())}", 100)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=listed,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", help="such as S5 S7 retries, or all; default: S1 to S21 and some more with a target"
    )
    names: list[str] = parser.parse_args().names

    def measure(_stage: Stage) -> None:
        program(names)

    return run(measure)


if __name__ == "__main__":
    sys.exit(main())
