"""The limits that calls share, of a rate limit or of a budget, and the times in which a budget has no coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any, NamedTuple

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.event_format import Event
from asyncio_operator_proof.history.parts import PARTS, Call
from asyncio_operator_proof.history.report import Finding

TROUBLE = 3.5
"""Seconds after a lost message in which a worker may wait for its reply, and hears of nothing."""

KNOWN = 2.0
"""Seconds until a debt is known to all tasks of a budget."""


class Limit(NamedTuple):
    """At most `rate` units in `per` seconds, and `burst` more."""

    unit: str
    rate: float
    per: float
    burst: float

    def __str__(self) -> str:
        burst = f" and a burst of {self.burst:g}" if self.burst else ""
        return f"{self.rate:g} {self.unit} in {self.per:g} s{burst}"


class Shared:
    """The calls that share limits, in the order of their starts: those of a budget, or of one run."""

    def __init__(self, name: str, setting: Event) -> None:
        self.name = name
        self.setting = setting
        self.calls: list[Call] = []
        self.limits = limits_of(setting)


def limits_of(setting: Event) -> list[Limit]:
    """The limits of a lookup, with the defaults of what is absent."""
    return [
        Limit(one.get("unit", "calls"), one["rate"], one.get("per", 1.0), one.get("burst") or 0.0)
        for one in setting.get("limits", ())
    ]


def budgets(book: Book, found: Finding) -> list[Shared]:
    """The budgets of the history, each with its calls."""
    shared: dict[Any, Shared] = {}
    for call in whole_calls(book, found, "budget"):
        name = call.run.setting["budget"]
        if name not in shared:
            shared[name] = Shared(f"budget {name!r}", call.run.setting)
        shared[name].calls.append(call)
    return list(shared.values())


def whole_calls(book: Book, found: Finding, option: str) -> Iterator[Call]:
    """The calls of runs with an option. Those that are recorded for each of their keys are counted as undecided."""
    for call in book.calls:
        if option in call.run.setting:
            if call.run.whole_calls:
                yield call
            else:
                found.undecided(PARTS)


def outages(shared: Shared, book: Book) -> Iterator[tuple[float, float, int]]:
    """The times without a coordinator: begin, end, and the event of the begin."""
    down: tuple[float, int] | None = None
    for number, event in book.faults:
        if event.get("budget", shared.setting["budget"]) != shared.setting["budget"]:
            continue
        if event["what"] == "coordinator_down" and down is None:
            down = event["at"], number
        elif event["what"] == "coordinator_up" and down is not None:
            yield down[0], event["at"], down[1]
            down = None
    if down is not None:
        yield down[0], inf, down[1]
