"""What a worker reports to the coordinator of a budget, again and again until a reply has come.

Only `Permits` uses it. A report holds what became of permits, debts, refused calls, and what the source said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncio_operator.budget.terms import Json
from asyncio_operator.budget.usage import HINT_FIELDS, Hint

REPEATED = 60.0
"""Seconds for which the report of what started is sent again, if no reply comes."""


class Reports:
    """The reports of one worker. It is true if one is not confirmed."""

    def __init__(self) -> None:
        self._sent: list[tuple[float, int, Json]] = []
        self._hints: dict[str, tuple[float, Json]] = {}
        self._pause: tuple[float, float] | None = None
        self._refused: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._sent)

    def note_refusal(self, unit: str) -> None:
        """A call was refused because of this unit."""
        self._refused[unit] = self._refused.get(unit, 0) + 1

    def note_hints(self, limits: Mapping[str, Hint], retry_after: float | None, now: float) -> None:
        """A source has said this."""
        for unit, hint in limits.items():
            fields = {name: getattr(hint, name) for name in HINT_FIELDS}
            said = {name: value for name, value in fields.items() if value is not None and value is not False}
            if unit not in self._hints or _replaces(said, *self._hints[unit], now):
                self._hints[unit] = (now, said)  # A remaining 0 is said, though it equals False.
        if retry_after:
            rest = 0.0 if self._pause is None else sum(self._pause) - now
            self._pause = (now, max(retry_after, rest))

    def close(self, number: int, moved: list[list[Any]], debts: dict[str, float], now: float) -> None:
        """Put all open reports into the message of this number."""
        report: Json = {}
        if moved:
            report["moved"] = moved
        if debts:
            report["debts"] = debts
        if self._refused:
            report["refused"] = self._refused
        if self._hints:
            report["hints"] = {unit: _aged(hint, now - heard) for unit, (heard, hint) in self._hints.items()}
        if self._pause is not None:
            report["pause"] = max(0.0, sum(self._pause) - now)
        self._refused, self._hints, self._pause = {}, {}, None
        if report:
            self._sent.append((now, number, report))

    def unconfirmed(self, now: float) -> list[list[Any]]:
        """Pairs of a number and a report, for a message."""
        return [[number, _fresh(report, now - since)] for since, number, report in self._sent]

    def confirmed(self) -> None:
        """A reply has come."""
        self._sent.clear()


def _fresh(report: Json, age: float) -> Json:
    # The coordinator remembers for longer which reports it has applied.
    return report if age < REPEATED else {**report, "moved": []}


def _replaces(said: Json, heard: float, earlier: Json, now: float) -> bool:
    # A source's answers overtake each other, so of one window the least that remains is passed on.
    if "remaining" not in earlier or now >= heard + earlier.get("reset_after", 0.0):
        return True
    return "remaining" in said and bool(said["remaining"] <= earlier["remaining"])


def _aged(hint: Json, age: float) -> Json:
    if "reset_after" in hint:
        return {**hint, "reset_after": max(0.0, hint["reset_after"] - age)}
    return hint
