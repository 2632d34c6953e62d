"""Whether a call was refused rightly, because a budget has too little left for it (law G6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from asyncio_operator.errors import BudgetExceeded
from asyncio_operator.testing.history.event_format import Event
from asyncio_operator.testing.simulation.scenario import Scenario

if TYPE_CHECKING:
    from asyncio_operator.testing.simulation.runs import Outcome

A_LITTLE = 1e-6
"""Part of an amount: sums are rounded."""


def wrong_refusal(scenario: Scenario, outcome: Outcome, attempt: str, error: BudgetExceeded) -> Iterator[str]:
    """What is wrong with the error that ended an attempt of a task."""
    budget = scenario.budget
    if budget is None:
        yield f"there is no budget: {error}"
        return
    unit = error.unit
    most = (budget.spend or {}).get(unit)
    windows = [limit.rate + (limit.burst or 0) for limit in budget.limits if limit.unit == unit]
    heaviest = 1.0 if unit == "calls" else outcome.heaviest.get(unit, 0.0)
    if error.limit != most:
        if error.limit not in windows or heaviest <= error.limit:
            yield f"no call weighs more than a window: {error}"
        return
    if error.spent + heaviest <= most * (1 - A_LITTLE):
        yield f"a call may still be made: {error}"
    before = [*takewhile(lambda event: (event["event"], event.get("task")) != ("task_ended", attempt), outcome.history)]
    spent = _spent(before, scenario, unit)
    # What a worker held that is not heard any more counts as spent: it was killed, or its last message was lost.
    is_heard = not any(event["event"] == "fault" and (event["what"] == "kill" or "budget" in event) for event in before)
    if error.spent > spent * (1 + A_LITTLE) and is_heard:
        yield f"{spent:g} {unit} were spent: {error}"


def _spent(before: Sequence[Event], scenario: Scenario, unit: str) -> float:
    """What the calls that had returned had used of a unit.

    Args:
        before: what had happened.
    """
    started: dict[str, Event] = {}
    spent = 0.0
    for event in before:
        if event["event"] == "call_started" and scenario.lookups[event["lookup"]].options.get("budget"):
            started[event["call"]] = event
        elif event["event"] == "call_ended" and event["call"] in started:
            begun = started[event["call"]]
            counted = {"calls": 1.0, "keys": float(len(begun["keys"]))} | begun.get("weights", {})
            estimate = 0.0 if event.get("free") else counted.get(unit, 0.0)
            spent += event.get("settled", {}).get(unit, estimate)
    return spent
