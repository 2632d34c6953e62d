"""A line for each run, as text and as JSON, and the table of all."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(slots=True)
class Outcome:
    """The result of a run.

    Attributes:
        faults: what was done; nothing if the job was over.
        moments: calls that were answered before each fault.
        calls, expected: calls that were made, and those of a run without faults.
        again: keys that were asked for more than once.
        attempts: attempts of tasks.
        wrong: what is wrong; empty if the run is right.
    """

    kind: str
    seed: int
    job: str
    faults: tuple[str, ...] = ()
    moments: tuple[int, ...] = ()
    rows: int = 0
    calls: int = 0
    expected: int = 0
    again: int = 0
    attempts: int = 0
    seconds: float = 0.0
    wrong: tuple[str, ...] = ()

    def add(self, fault: str, moment: int) -> None:
        """Note a fault."""
        self.faults += (fault,)
        self.moments += (moment,)

    @property
    def verdict(self) -> str:
        return "WRONG" if self.wrong else "right"

    def __str__(self) -> str:
        struck = [f"{fault} after {moment} calls" for fault, moment in zip(self.faults, self.moments, strict=True)]
        line = (
            f"{self.kind:<12} seed {self.seed:<4} {self.job:<21} {', '.join(struck) or 'no fault, the job was over'}: "
            f"{self.rows} rows, {self.calls} calls for {self.expected} keys, {self.again:>3} asked again, "
            f"{self.attempts} attempts, {self.seconds:4.1f} s: {self.verdict}"
        )
        return "\n".join([line, *(f"    {text}" for text in self.wrong)])


class Report:
    """Prints and writes outcomes.

    Attributes:
        failed: the number of runs that were wrong.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._path = directory / "chaos.jsonl"
        self._outcomes: list[Outcome] = []
        self.failed = 0

    def add(self, outcome: Outcome) -> None:
        print(outcome, flush=True)
        self._outcomes.append(outcome)
        self.failed += bool(outcome.wrong)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")

    def finish(self, seconds: float) -> None:
        """Print the table."""
        kinds: dict[str, list[Outcome]] = defaultdict(list)
        for outcome in self._outcomes:
            kinds[outcome.kind].append(outcome)
        print(
            f"\n{'fault':<12} {'runs':>5} {'struck':>6} {'right':>5} {'calls':>8} {'keys':>8} {'again':>6} {'s/run':>5}"
        )
        for kind, some in kinds.items():
            struck = sum(len(one.faults) for one in some)
            right = sum(not one.wrong for one in some)
            calls, keys, again = (sum(getattr(one, name) for one in some) for name in ("calls", "expected", "again"))
            each = sum(one.seconds for one in some) / len(some)
            print(f"{kind:<12} {len(some):>5} {struck:>6} {right:>5} {calls:>8,} {keys:>8,} {again:>6,} {each:>5.1f}")
        print(f"{len(self._outcomes)} runs in {seconds:.0f} s, {self.failed} wrong; all lines are in {self._path}")
