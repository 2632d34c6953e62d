"""The results of one peer as a file of JSON, in a format with a version. `benchmarks/peers/README.md` describes it.

Law: a file of another version is refused, never guessed. A figure that was not measured is null or absent, never 0.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.stage import ProblemError

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of a work.

    Attributes:
        seconds, cpu_seconds: by the clock, and of the CPU by all processes of the program.
        right, lost, doubled, wrong: rows with their answer, rows without one, answers that came once too often, and
            answers that no row has.
        calls, refused, repeated: requests that the service got, those it answered with a 429, and keys that it had
            answered, or failed to answer, before.
        money: the price of the keys that it was asked, refused requests left out.
        tokens: of requests and answers, where models were asked: see `trials.tokens_of`.
        killed: whether a worker was killed in the middle.
        error: what ended the run; all rows are lost then.
    """

    seconds: float | None = None
    cpu_seconds: float | None = None
    right: int | None = None
    lost: int | None = None
    doubled: int | None = None
    wrong: int | None = None
    calls: int | None = None
    refused: int | None = None
    repeated: int | None = None
    money: float | None = None
    tokens: int | None = None
    killed: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class WorkResult:
    """The turns of a work, without the one that warms up; or the reason why there are none."""

    rows: int
    turns: list[Turn] = field(default_factory=list)
    reason: str = ""

    def median(self, name: str) -> float | None:
        """The median of a figure, over the turns that have it."""
        values = [value for turn in self.turns if (value := getattr(turn, name)) is not None]
        return statistics.median(values) if values else None


@dataclass(frozen=True, slots=True)
class Result:
    """What one peer did.

    Attributes:
        peer, version, group: as in the roster.
        machine: cores, system, memory in GB, and the share of it that was busy when the run began.
        versions: of Python, Java, Spark and this project.
        day: of the run, as in 2026-01-31.
        price: of a key, in dollars.
        works: by name.
    """

    peer: str
    version: str
    group: str
    machine: dict[str, Any]
    versions: dict[str, str]
    day: str
    price: float
    works: dict[str, WorkResult]
    schema: int = SCHEMA

    def write(self, path: Path) -> None:
        """Write it into a file."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> Result:
    """The result in a file.

    Raises:
        ProblemError: it is no result of this version.
    """
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        if given["schema"] != SCHEMA:
            raise ProblemError(f"{path} is of schema {given['schema']}; this program reads schema {SCHEMA}")
        works = {
            name: WorkResult(**work | {"turns": [Turn(**turn) for turn in work["turns"]]})
            for name, work in given["works"].items()
        }
        return Result(**given | {"works": works})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProblemError(f"{path} is no result of a peer: {error!r}") from error


def compared(expected: Counter[str], got: Counter[str]) -> dict[str, int]:
    """How many rows are right, lost, doubled and wrong, by their answers; "" is a row without an answer."""
    right = (expected & got).total()
    known = Counter({name: count for name, count in got.items() if name in expected})
    return {
        "right": right,
        "lost": expected.total() - right,
        "doubled": known.total() - right,
        "wrong": got.total() - known.total() - got[""],
    }
