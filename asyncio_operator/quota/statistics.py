"""What `Budget.statistics` returns, and how a coordinator computes it from the state of a budget."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asyncio_operator.quota.terms import Json

if TYPE_CHECKING:
    from asyncio_operator.quota.state import State


@dataclass(frozen=True, slots=True)
class UnitStatistics:
    """One unit of a budget, over all tasks.

    Attributes:
        allowed: how much may be used: in total if the unit has a spend limit, else in the window of its tightest limit.
        used: how much of that is used: in total, or in the last window.
        reserved: how much is held by calls that run (spend), or is granted to tasks and did not start yet.
        refused: the number of calls that were refused with `BudgetExceeded` because of this unit.
        hint: what the source said last of this unit: a mapping with ``limit``, ``remaining``, ``reset_after`` (seconds
            from now) where it said so; None if it said nothing that still holds.
    """

    allowed: float
    used: float
    reserved: float
    refused: int
    hint: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class BudgetStatistics:
    """A budget at one moment, over all tasks.

    Attributes:
        units: each unit that the budget limits; ``in_flight`` for calls in flight.
        workers: the number of workers that were heard of in the last seconds.
        paused_for: seconds for which nothing starts, because the source asked for it (``Retry-After``); else 0.
    """

    units: Mapping[str, UnitStatistics]
    workers: int
    paused_for: float

    def show(self) -> None:
        """Print a table of at most 100 columns: what is used of each unit, and what the source said of it."""
        from asyncio_operator.view.tables import WIDTH, text_table

        head, rows, remark = self._table()
        print(text_table(head, rows))
        print(textwrap.fill(remark, WIDTH))

    def _repr_html_(self) -> str:
        """A table for a notebook."""
        # Imported where it is needed: workers have these figures too, and show none.
        from asyncio_operator.view.tables import html_table

        return html_table(*self._table())

    def _table(self) -> tuple[list[str], list[tuple[str, list[str]]], str]:
        """The titles of the columns, the rows, and a remark. What the source says has columns only if it said it of
        some unit."""
        from asyncio_operator.view.tables import amount

        said = {name for one in self.units.values() for name in one.hint or {}}
        titles = {"limit": "source's limit", "remaining": "remaining", "reset_after": "reset after"}
        rows = []
        for unit, one in self.units.items():
            row = [amount(one.allowed), amount(one.used), amount(one.reserved), f"{one.refused:,}"]
            for name in [name for name in titles if name in said]:
                value = (one.hint or {}).get(name)
                row.append("" if value is None else f"{value:,.1f} s" if name == "reset_after" else amount(value))
            rows.append((unit, row))
        remark = f"{self.workers:,} worker" + "s" * (self.workers != 1) + "."
        if self.paused_for:
            remark += f" No call starts for {self.paused_for:,.1f} s, because the source asked for it."
        head = ["allowed", "used", "reserved", "refused", *(titles[name] for name in titles if name in said)]
        return head, rows, remark

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> BudgetStatistics:
        """From the JSON of a coordinator."""
        units = {unit: UnitStatistics(**values) for unit, values in reply["units"].items()}
        return cls(units, reply["workers"], reply["paused_for"])


def statistics(state: State, now: float) -> Json:
    """The fields of `BudgetStatistics` as JSON."""
    units: Json = {}
    workers = state.active(now)
    for place, window in enumerate(state.windows):
        unit, rate, _, burst = window.limit
        held = sum(worker.held[place] for worker in workers)
        used = max(0.0, window.used - held)
        # Of several limits of a unit, the one that has least left.
        last = units.get(unit)
        if last is None or rate + burst - used - held < last["allowed"] - last["used"] - last["reserved"]:
            units[unit] = _unit(rate + burst, used, held)
    if state.terms.in_flight is not None:
        units["in_flight"] = _unit(state.terms.in_flight, sum(worker.slots for worker in workers), 0)
    for unit, most in state.terms.spend.items():
        held = sum(worker.spend.get(unit, 0.0) for worker in state.workers.values())
        units[unit] = _unit(most, state.spent.get(unit, 0.0), held)
    for unit, refused in state.refused.items():
        if unit in units:
            units[unit]["refused"] = refused
    for unit, cap in state.caps.items():
        if now < cap.shown_until:
            hint = dict(cap.hint)
            if "reset_after" in hint:
                hint["reset_after"] -= now - cap.heard
            units.setdefault(unit, _unit(0.0, 0.0, 0.0))["hint"] = hint
    return {"units": units, "workers": len(workers), "paused_for": max(0.0, state.paused - now, state.ready - now)}


def _unit(allowed: float, used: float, reserved: float) -> Json:
    # Sums of floats have rounding errors, and a call that says nothing of a unit weighs next to nothing.
    used, reserved = (0.0 if abs(one) < 1e-9 * allowed else float(f"{one:.12g}") for one in (used, reserved))
    return {"allowed": allowed, "used": used, "reserved": reserved, "refused": 0, "hint": None}
