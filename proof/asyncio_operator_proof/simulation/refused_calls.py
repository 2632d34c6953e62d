"""Whether a call was refused rightly, because a budget has too little left for it (laws G6 and G12)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import TYPE_CHECKING

from asyncio_operator.errors import BudgetExceeded
from asyncio_operator_proof.history.event_format import Event
from asyncio_operator_proof.simulation.scenario import Scenario

if TYPE_CHECKING:
    from asyncio_operator_proof.simulation.runs import Outcome

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
    if budget.on_spent == "null":
        yield f"the job goes on without money, and yet it ends: {error}"
    if error.spent + heaviest <= most * (1 - A_LITTLE):
        yield f"a call may still be made: {error}"
    before = [*takewhile(lambda event: (event["event"], event.get("task")) != ("task_ended", attempt), outcome.history)]
    spent = _spent(before, scenario, unit)
    if error.spent > spent * (1 + A_LITTLE) and _all_are_heard(before):
        yield f"{spent:g} {unit} were spent: {error}"


def wrong_row(scenario: Scenario, outcome: Outcome) -> str:
    """What is wrong with a row without money: nothing if all calls together, and one more, may pass a limit."""
    if not _all_are_heard(outcome.history):
        return ""
    spend = {} if scenario.budget is None else scenario.budget.spend or {}
    for unit, most in spend.items():
        heaviest = 1.0 if unit == "calls" else outcome.heaviest.get(unit, 0.0)
        if _spent(outcome.history, scenario, unit, at_most=True) + heaviest > most * (1 - A_LITTLE):
            return ""
    return f"is over a budget that had {spend} to spend"


def _all_are_heard(before: Iterable[Event]) -> bool:
    """Whether the coordinator hears all workers: what one holds that was killed, or whose last message was lost, counts
    as spent."""
    return not any(event["event"] == "fault" and (event["what"] == "kill" or "budget" in event) for event in before)


def _spent(before: Iterable[Event], scenario: Scenario, unit: str, *, at_most: bool = False) -> float:
    """What the calls that had returned had used of a unit.

    Args:
        before: what had happened.
        at_most: the most that all calls may have used at any time, with those that had not returned.
    """
    started: dict[str, float] = {}
    spent = 0.0
    for event in before:
        if event["event"] == "call_started" and scenario.lookups[event["lookup"]].options.get("budget"):
            counted = {"calls": 1.0, "keys": float(len(event["keys"]))} | event.get("weights", {})
            estimate = started[event["call"]] = counted.get(unit, 0.0)
            spent += estimate * at_most
        elif event["event"] == "call_ended" and event["call"] in started:
            estimate = started[event["call"]]
            used = event.get("settled", {}).get(unit, 0.0 if event.get("free") else estimate)
            spent += max(0.0, used - estimate) if at_most else used
    return spent
