"""Whether a call was refused rightly, because a budget has too little left for it (law G6)."""

from __future__ import annotations

from collections.abc import Iterator
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
    heaviest = _heaviest(scenario, unit)
    if error.limit != most:
        if error.limit not in windows or heaviest <= error.limit:
            yield f"no call weighs more than a window: {error}"
        return
    if error.spent + heaviest <= most * (1 - A_LITTLE):
        yield f"a call may still be made: {error}"
    spent = _spent(outcome, scenario, attempt, unit)
    # What a worker held that is not heard any more counts as spent: it was killed, or its last message was lost.
    is_heard = not scenario.kills and not any(
        event["event"] == "fault" and "budget" in event for event in outcome.history
    )
    if error.spent > spent * (1 + A_LITTLE) and is_heard:
        yield f"{spent:g} {unit} were spent: {error}"


def _heaviest(scenario: Scenario, unit: str) -> float:
    """What a call of any lookup weighs at most."""
    calls = [one for one in scenario.lookups if one.options.get("budget")]
    if unit == "calls":
        return 1.0
    return max((one.batches * (1.0 if unit == "keys" else one.service.tokens) for one in calls), default=0.0)


def _spent(outcome: Outcome, scenario: Scenario, attempt: str, unit: str) -> float:
    """What the calls that had returned when an attempt ended had used of a unit."""
    started: dict[str, Event] = {}
    spent = 0.0
    for event in outcome.history:
        if event["event"] == "call_started" and scenario.lookups[event["lookup"]].options.get("budget"):
            started[event["call"]] = event
        elif event["event"] == "call_ended" and event["call"] in started:
            begun = started[event["call"]]
            counted = {"calls": 1.0, "keys": float(len(begun["keys"]))} | begun.get("weights", {})
            spent += event.get("settled", {}).get(unit, counted.get(unit, 0.0))
        elif event["event"] == "task_ended" and event["task"] == attempt:
            break
    return spent
