"""What a worker holds of an amount that may be spent, and which calls this refuses.

Only `Permits` uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from asyncio_operator.budget.terms import GROWTH
from asyncio_operator.budget.usage import COUNTED
from asyncio_operator.errors import BudgetExceeded

LEAST_OF_SUM = 1e-8
"""The part of an amount that a call weighs which says nothing of its unit, or 0: more than rounding errors, so it is
refused when all is spent. What it has used may be said later, by `settle`."""


class Amount:
    """What may be spent of one unit.

    Attributes:
        held: what this worker may spend: `reserved` by calls that run, and more ahead.
        spent: what all workers had spent at the last reply.
        total, confirmed: what this worker has spent in its life, and how much of it the coordinator has counted.
        used: what calls have reserved since the last message.
        call: the weight of the heaviest call that waits.
    """

    __slots__ = (
        *("unit", "most", "default", "held", "held_and_a_little", "reserved", "used", "spent", "total", "confirmed"),
        *("call", "_sent", "_settled"),
    )

    def __init__(self, unit: str, most: float) -> None:
        self.unit = unit
        self.most = most
        self.default = 1.0 if unit in COUNTED else LEAST_OF_SUM * most
        self.reserved = self.used = self.spent = self.total = self.confirmed = self.call = 0.0
        self._sent = self._settled = 0.0
        self._hold(0.0)

    def _hold(self, held: float) -> None:
        self.held = held
        # Sums have rounding errors.
        self.held_and_a_little = held + 1e-9 * self.most

    def settle(self, estimate: float, used: float) -> None:
        """A call is over that had reserved `estimate`."""
        self.reserved -= estimate
        if self.reserved < 1e-9 * self.most:
            self.reserved = 0.0
        # An estimate that was too low is paid from what is held ahead.
        gone = max(estimate, used)
        self._hold(max(self.held - gone, self.reserved))
        self.total += used
        self._settled += gone

    def offer(self, scale: float) -> list[float]:
        """What this worker holds from now on, what it wants to hold, must hold for the waiting call, and has spent."""
        wanted = self.reserved + max(GROWTH * self.used * scale, self.call)
        needed = self.reserved + self.call
        # Two workers that each keep a part of what a call needs would wait for each other for ever.
        enough = needed <= self.held_and_a_little
        self._hold(max(self.reserved, min(self.held, wanted)) if enough else self.reserved)
        self.used = self.call = self._settled = 0.0
        self._sent = self.total
        return [self.held, wanted, needed, self.total, self.confirmed]

    def rest(self) -> None:
        """Want nothing."""
        self.used = self.call = 0.0

    def answered(self, held: float, spent: float, total: float) -> None:
        """The coordinator says what this worker may hold, and what all have spent and hold."""
        self.confirmed = self._sent
        # Calls that have ended since the message have spent their part of what is held.
        self._hold(max(held - self._settled, self.reserved))
        self.spent = spent


def overspent(
    name: str, amounts: Iterable[Amount], weights: Mapping[str, float], on_spent: str
) -> BudgetExceeded | None:
    """The error for a call that would pass a spend limit, whatever running calls turn out to cost."""
    for amount in amounts:
        units = weights.get(amount.unit) or amount.default
        spent = amount.spent + amount.total - amount.confirmed
        if spent + units > amount.most * (1 + 1e-9):
            return BudgetExceeded(
                f"the budget {name!r}: spend limit {amount.most:g} {amount.unit}, already spent {spent:.4g} "
                f"{amount.unit}, and the next call needs {units:.4g}. Raise the limit, or take another name for a new "
                'budget; with on_spent="null" a job goes on without the rest',
                unit=amount.unit,
                limit=amount.most,
                spent=spent,
                on_spent=on_spent,
            )
    return None
