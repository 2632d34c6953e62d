"""Calls that a budget refuses: no window can hold them, or the money is spent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from asyncio_operator.errors import BudgetExceeded

if TYPE_CHECKING:
    from asyncio_operator.budget.stock import Amount, Stock


def misfit(name: str, stocks: Iterable[Stock], weights: Mapping[str, float]) -> BudgetExceeded | None:
    """The error for a call that no window can ever hold."""
    for stock in stocks:
        units = weights.get(stock.unit, stock.default)
        if units > stock.most:
            return BudgetExceeded(
                f"the budget {name!r} allows {stock.most:g} {stock.unit} in {stock.per:g} s, and one "
                f"call needs {units:g}: it can never start. Make the call smaller, or raise the limit",
                unit=stock.unit,
                limit=stock.most,
            )
    return None


def overspent(name: str, amounts: Iterable[Amount], weights: Mapping[str, float]) -> BudgetExceeded | None:
    """The error for a call that would pass a spend limit, whatever running calls turn out to cost."""
    for amount in amounts:
        units = weights.get(amount.unit, amount.default)
        spent = amount.spent + amount.total - amount.confirmed
        if spent + units > amount.most * (1 + 1e-9):
            return BudgetExceeded(
                f"the budget {name!r} may spend {amount.most:g} {amount.unit}; {spent:g} were spent, "
                f"and the next call needs {units:g}. Raise the limit, or take another name for a new budget",
                unit=amount.unit,
                limit=amount.most,
                spent=spent,
            )
    return None
