"""What `Budget.statistics` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> BudgetStatistics:
        """From the JSON of a coordinator."""
        units = {unit: UnitStatistics(**values) for unit, values in reply["units"].items()}
        return cls(units, reply["workers"], reply["paused_for"])
