"""The warning that nothing weighs calls in a unit that a budget limits. A debt is then all that can be counted."""

from __future__ import annotations

import logging

from asyncio_operator.budget.spec import Budget
from asyncio_operator.budget.usage import COUNTED

logger = logging.getLogger("asyncio_operator.budget")

_said: set[str] = set()
"""What was logged, and is not logged again."""


def warn_unweighed(budget: Budget, called: str, weigh: object) -> None:
    """Log once if a budget limits units in which nothing weighs calls.

    Args:
        called: names the function or enricher.
        weigh: how it weighs a call; None: it weighs in no unit.
    """
    units = {limit.unit for limit in budget.limits} | (budget.spend or {}).keys()
    unknown = sorted(units - set(COUNTED))
    text = (
        f"{called} weighs its calls in no unit of its own, and the budget {budget.name!r} limits {', '.join(unknown)}: "
        "only what its calls settle is counted, and only afterwards; give it `weigh`"
    )
    if unknown and weigh is None and text not in _said:
        _said.add(text)
        logger.warning("%s", text)
