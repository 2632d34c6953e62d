"""The figures of `Budget.statistics`, from the state of a budget."""

from __future__ import annotations

from typing import Any

from asyncio_operator.budget.terms import FORGOTTEN
from asyncio_operator.policies.rate_limit import RateWindow

Json = dict[str, Any]


def statistics(state: Json, windows: list[RateWindow], now: float) -> Json:
    """The fields of `BudgetStatistics` as JSON."""
    units: Json = {}
    workers = [worker for worker in state["workers"].values() if now - worker["seen"] <= FORGOTTEN]
    for place, (unit, rate, _, burst) in enumerate(state["budget"]["limits"]):
        held = sum(worker["held"][place] for worker in workers)
        used = max(0.0, windows[place].used() - held)
        # Of several limits of a unit, the one that has least left.
        if unit not in units or rate + burst - used - held < _left(units[unit]):
            units[unit] = _unit(rate + burst, used, held)
    if state["budget"]["in_flight"] is not None:
        units["in_flight"] = _unit(state["budget"]["in_flight"], sum(worker["slots"] for worker in workers), 0)
    for unit, most in state["budget"]["spend"].items():
        held = sum(worker["spend"].get(unit, 0.0) for worker in state["workers"].values())
        units[unit] = _unit(most, state["spent"].get(unit, 0.0), held)
    for unit, refused in state["refused"].items():
        if unit in units:
            units[unit]["refused"] = refused
    for unit, cap in state["caps"].items():
        if now < cap["shown_until"]:
            hint = dict(cap["hint"])
            if "reset_after" in hint:
                hint["reset_after"] -= now - cap["heard"]
            units.setdefault(unit, _unit(0.0, 0.0, 0.0))["hint"] = hint
    return {
        "units": units,
        "workers": len(workers),
        "paused_for": max(0.0, max(state["paused"], state["ready"]) - now),
    }


def _unit(allowed: float, used: float, reserved: float) -> Json:
    return {"allowed": allowed, "used": used, "reserved": reserved, "refused": 0, "hint": None}


def _left(unit: Json) -> float:
    left: float = unit["allowed"] - unit["used"] - unit["reserved"]
    return left
