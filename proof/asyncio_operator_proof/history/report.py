"""What a check found: violations, laws that held, and laws that this history cannot decide."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

MOST_EVENTS = 8
"""Events that a violation names."""

NOTHING = "nothing happened that it speaks of"

MOST_OF_A_LAW = 20
"""Violations of one law that a report keeps: the first ones by time. The others are counted."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that was broken.

    Attributes:
        law: such as "R3".
        what: what happened.
        at: when, in seconds of the history.
        events: the numbers of the events that show it, from 0.
    """

    law: str
    what: str
    at: float
    events: tuple[int, ...]

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.events))
        return f"{self.law} at {self.at:.6f}: {self.what} (event{'s' * (len(self.events) != 1)} {shown})"


class Finding:
    """What the functions of one law found in a history.

    Attributes:
        cases: cases that were decided.
        violations: those that broke the law.
        unclear: why cases were not decided, and how many.
    """

    def __init__(self, law: str) -> None:
        self.law = law
        self.cases = 0
        self.violations: list[Violation] = []
        self.unclear: dict[str, int] = {}

    def decided(self, cases: int = 1) -> None:
        """Cases were looked at."""
        self.cases += cases

    def broken(self, what: str, at: float, *events: int) -> None:
        """A case broke the law."""
        self.violations.append(Violation(self.law, what, at, tuple(sorted(set(events)))[:MOST_EVENTS]))

    def undecided(self, why: str, cases: int = 1) -> None:
        """Cases cannot be decided."""
        self.unclear[why] = self.unclear.get(why, 0) + cases


class Report(Sequence[Violation]):
    """The result of `check_history`: a sequence of violations, sorted by time. It is false if there are none.

    Attributes:
        violations: at most 20 of each law.
        broken: the number of violations by law, those that are left out included.
        held: the number of cases of each law that were decided, of laws that held in every case.
        undecided: by law, why not every case was decided. No such case was found broken.
    """

    def __init__(self, findings: Mapping[str, Finding]) -> None:
        kept: list[Violation] = []
        self.broken: dict[str, int] = {}
        self.held: dict[str, int] = {}
        self.undecided: dict[str, str] = {}
        for law, finding in findings.items():
            if finding.violations:
                self.broken[law] = len(finding.violations)
                kept += sorted(finding.violations, key=_order)[:MOST_OF_A_LAW]
            elif finding.unclear or not finding.cases:
                self.undecided[law] = _reason(finding)
            else:
                self.held[law] = finding.cases
        self.violations = sorted(kept, key=_order)

    def raise_if_broken(self) -> None:
        """Raise what is wrong.

        Raises:
            AssertionError: a law was broken; the message has the violations.
        """
        if self.violations:
            raise AssertionError(self._summary() + "\n" + "\n".join(map(str, self.violations)))

    def __len__(self) -> int:
        return len(self.violations)

    def __iter__(self) -> Iterator[Violation]:
        return iter(self.violations)

    @overload
    def __getitem__(self, index: int) -> Violation: ...
    @overload
    def __getitem__(self, index: slice) -> list[Violation]: ...
    def __getitem__(self, index: int | slice) -> Violation | list[Violation]:
        return self.violations[index]

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        for law, count in self.broken.items():
            first = next(one for one in self.violations if one.law == law)
            yield law, f"broken {count:,} time{'s' * (count != 1)}", str(first).partition(": ")[2]
        for law, cases in self.held.items():
            yield law, "held", f"{cases:,} case{'s' * (cases != 1)}"
        silent = [law for law, why in self.undecided.items() if why == NOTHING]
        for law, why in self.undecided.items():
            if why != NOTHING:
                yield law, "undecided", why
        if silent:
            yield "", "undecided", f"nothing happened that these speak of: {', '.join(silent)}"

    def _summary(self) -> str:
        counts = (len(self.broken), "broken"), (len(self.held), "held"), (len(self.undecided), "undecided")
        return ", ".join(f"{count} law{'s' * (count != 1)} {what}" for count, what in counts)

    def __str__(self) -> str:
        lines = [f"{law:<4} {verdict:<16} {more}" for law, verdict, more in self._rows()]
        return "\n".join([self._summary(), *lines])

    def __repr__(self) -> str:
        return f"<Report: {self._summary()}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self._rows()
        )
        return f"<p>{html.escape(self._summary())}</p><table>{rows}</table>"


def _order(violation: Violation) -> tuple[float, str, tuple[int, ...]]:
    return violation.at, violation.law, violation.events


def _reason(finding: Finding) -> str:
    if not finding.unclear:
        return NOTHING
    reasons = "; ".join(f"{why} ({count:,})" for why, count in finding.unclear.items())
    return f"held in {finding.cases:,} cases; otherwise {reasons}" if finding.cases else reasons
