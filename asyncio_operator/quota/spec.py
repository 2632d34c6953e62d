"""What a budget allows: limits in units, calls in flight, and what may be spent; and what it shows of their use.

A budget is a specification: it is checked when it is made, compared by value, and travels to the workers. The state of
a budget, how much of it is used, is kept by a coordinator.
"""

from __future__ import annotations

import logging
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, get_args

from asyncio_operator.checks import (
    Duration,
    gives_coroutines,
    lasting,
    must_be,
    number,
    one_of,
    positive_duration,
    positive_int,
    seconds,
    takes,
)
from asyncio_operator.errors import ConfigurationError, CoordinatorError, function_name, shown_address
from asyncio_operator.lazy import member
from asyncio_operator.policies.rate_limit import RateLimit
from asyncio_operator.quota.usage import COUNTED

logger = logging.getLogger("asyncio_operator.budget")

OnSpent = Literal["fail", "null"]

SCHEMES = ("redis", "rediss", "postgresql", "postgres")

_UNIT = re.compile(r"(?!(in_flight|retry_after)$)[A-Za-z_][A-Za-z0-9_.-]{0,63}")

_NAME = re.compile(r"[A-Za-z0-9_.:/ -]{1,200}")

_ADDRESS = (
    "an address that begins with redis://, rediss:// or postgresql://, or a function without arguments that returns "
    "one; None means the driver of this application"
)

reaches: dict[str, Any] = {}
"""What workers need to reach the driver, by the name of a budget that it keeps. It travels with the budget."""


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `rate` units, plus `burst`, in any window of `per` seconds. One in calls equals the same `RateLimit`.

    Attributes:
        rate: units per window. Calls and keys are whole numbers; other units may have fractions.
        per: the length of the window, in seconds or as a timedelta; at least a millisecond.
        unit: what is counted: ``calls``, ``keys``, or a unit that an enricher weighs, such as ``tokens``.
        burst: how many more units may start in one window, after a time with fewer; None means 0.

    Raises:
        ConfigurationError: a value has the wrong type or range.
    """

    rate: float
    per: Duration = 60.0
    unit: str = "calls"
    burst: float | None = None

    def __post_init__(self) -> None:
        check_unit("unit", self.unit)
        object.__setattr__(self, "per", lasting("per", self.per))
        if self.unit in COUNTED:
            positive_int("rate", self.rate, f' if unit is "{self.unit}"; for fewer, make the window longer, with per=')
        number("rate", self.rate, "more than 0", lambda rate: rate > 0)
        if self.burst is not None:
            number("burst", self.burst, "of at least 0", lambda burst: burst >= 0)
            if self.unit in COUNTED and int(self.burst) != self.burst:
                raise must_be("burst", self.burst, f'a whole number if unit is "{self.unit}"')

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Limit | RateLimit):
            return NotImplemented
        unit = other.unit if isinstance(other, Limit) else "calls"
        return (self.rate, self.per, self.burst, self.unit) == (other.rate, other.per, other.burst, unit)

    def __hash__(self) -> int:
        # Without the unit: a limit of calls equals a RateLimit, whose hash is this one.
        return hash((self.rate, self.per, self.burst))


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


@dataclass(frozen=True, slots=True, init=False)
class Budget:
    """Limits that all tasks which name this budget keep together, however many they are and wherever they run.

    Attributes:
        name: names the budget at its coordinator. Lookups with equal budgets share one; the same name with other
            limits at the same time is an error.
        limits: each a `Limit` or a `RateLimit`.
        in_flight: the maximum number of calls in flight at the same time, in all tasks; None: no limit.
        spend: how much of each unit may be used in total, as ``{"usd": 25.0}``; None: no limit. It holds as long as
            the coordinator keeps the name: for one application, or, at Redis or PostgreSQL, for ever.
        coordinator: None, for the driver of the application; or the address of a Redis or PostgreSQL server, or a
            function that returns the address, so that no password travels with the job.
        patience: seconds that a task waits for a coordinator that cannot be reached, before it fails.
        on_spent: what happens, whatever `on_error` says, when a call would pass a spend limit: "fail" ends the job;
            "null" gives the rows of that call nulls and the status ``over_budget``, and the job goes on.
        reach, beside: how tasks reach its coordinator, and a second budget that their calls keep to. The driver sets
            them.

    Raises:
        ConfigurationError: a value has the wrong type or range, or there is nothing that limits.
    """

    name: str
    limits: tuple[Limit, ...]
    in_flight: int | None
    spend: Mapping[str, float] | None
    coordinator: str | Callable[[], str] | None
    patience: Duration
    on_spent: str
    reach: Any = field(compare=False, repr=False)
    beside: Budget | None = field(compare=False, repr=False)

    def __init__(
        self,
        name: str,
        *limits: Limit | RateLimit,
        in_flight: int | None = None,
        spend: Mapping[str, float] | None = None,
        coordinator: str | Callable[[], str] | None = None,
        patience: Duration = 30.0,
        on_spent: OnSpent = "fail",
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name != name.strip():
            raise must_be("name", name, "a text of 1 to 200 letters, digits, blanks and . _ : / -")
        one_of("on_spent", on_spent, get_args(OnSpent))
        checked = tuple(
            sorted((as_limit(f"limits[{i}]", one) for i, one in enumerate(limits)), key=lambda one: (one.unit, one.per))
        )
        windows = [(one.unit, one.per) for one in checked]
        for window in windows:
            if windows.count(window) > 1:
                raise ConfigurationError(
                    f"the budget {name!r} has two limits of {window[0]} per {seconds(window[1]):g} s; it must have one"
                )
        if in_flight is not None:
            positive_int("in_flight", in_flight, ", or None")
        amounts: dict[str, float] | None = None
        if spend is not None:
            if not isinstance(spend, Mapping) or not spend:
                raise must_be("spend", spend, 'a mapping from units to amounts, such as {"usd": 25.0}, or None')
            amounts = {}
            for unit, amount in sorted(spend.items(), key=str):
                check_unit("a unit of spend", unit)
                amounts[unit] = number(f"spend[{unit!r}]", amount, "more than 0", lambda one: one > 0)
        if not checked and in_flight is None and not amounts:
            raise ConfigurationError(
                f"the budget {name!r} has no limit; it must have at least one Limit, or in_flight=, or spend="
            )
        if callable(coordinator):
            if gives_coroutines(coordinator):
                given = f"{function_name(coordinator)}, an `async def`"
                raise ConfigurationError(f"coordinator is {given}; it must be {_ADDRESS}")
            takes("coordinator", coordinator)
        elif isinstance(coordinator, str):
            scheme, _, rest = coordinator.partition("://")
            if scheme not in SCHEMES or not rest:
                # Not shown: it may hold a password.
                given = "another text (not shown, it may hold a password)"
                raise ConfigurationError(f"coordinator is {given}; it must be {_ADDRESS}")
        elif coordinator is not None:
            raise ConfigurationError(f"coordinator is of type {type(coordinator).__name__}; it must be {_ADDRESS}")
        values = (name, checked, in_flight, amounts, coordinator, positive_duration("patience", patience), on_spent)
        for attribute, value in zip(self.__dataclass_fields__, (*values, None, None), strict=True):
            object.__setattr__(self, attribute, value)

    def __hash__(self) -> int:
        return hash((self.name, self.limits, self.in_flight, self.coordinator, self.patience, self.on_spent))

    def __repr__(self) -> str:
        parts = [repr(self.name), *map(repr, self.limits)]
        parts += [
            f"{name}={value!r}" for name, value in (("in_flight", self.in_flight), ("spend", self.spend)) if value
        ]
        if self.coordinator is not None:
            parts.append(f"coordinator={shown_address(self.coordinator)}")
        parts.append(f"patience={self.patience!r}")
        if self.on_spent != "fail":
            parts.append(f"on_spent={self.on_spent!r}")
        return f"Budget({', '.join(parts)})"

    def __getstate__(self) -> list[Any]:
        reach = reaches.get(self.name) if self.coordinator is None and self.reach is None else self.reach
        return [*(getattr(self, name) for name in tuple(self.__dataclass_fields__)[:-2]), reach, self.beside]

    def statistics(self) -> BudgetStatistics:
        """What is allowed and used now, in each unit, and the last hints of the source. For the driver.

        Raises:
            StateError: no coordinator of this application has the budget, because no lookup with it was made.
            CoordinatorError: the coordinator gave no answer.
        """
        # Asking needs more than a specification may know, and is loaded when it is needed.
        ask_once = member("asyncio_operator.quota.coordinators.addresses", "ask_once")
        reply = ask_once(self, {"kind": "statistics", "budget": definition(self)})
        if "error" in reply:
            raise CoordinatorError(f"the budget {self.name!r}: {reply['error']}", lasting=True)
        return BudgetStatistics.of(reply["statistics"])


def definition(budget: Budget) -> dict[str, Any]:
    """The limits of a budget as JSON: what a coordinator must know of it, and compares."""
    return {
        "limits": [[one.unit, one.rate, seconds(one.per), one.burst or 0] for one in budget.limits],
        "in_flight": budget.in_flight,
        "spend": dict(sorted((budget.spend or {}).items())),
    }


def check_unit(name: str, unit: object) -> str:
    """`unit`, if it is the name of a unit."""
    if not isinstance(unit, str) or not _UNIT.fullmatch(unit):
        allowed = "at most 64 letters, digits, dots, hyphens and underscores, but not in_flight or retry_after"
        raise must_be(name, unit, f"a name such as calls, keys or tokens: {allowed}")
    return unit


def as_limit(name: str, limit: object) -> Limit:
    """A `Limit`, or a `RateLimit` as one. `name` is what a message calls it."""
    if isinstance(limit, RateLimit):
        return Limit(limit.rate, limit.per, "calls", limit.burst)
    if not isinstance(limit, Limit):
        hint = "; pass several one by one, not as a list" if isinstance(limit, list | tuple) else ""
        raise must_be(name, limit, f"a Limit or a RateLimit{hint}")
    return limit


@cache
def warn_once(text: str) -> None:
    """Log a warning that was not logged before."""
    logger.warning("%s", text)


def warn_unweighed(budget: Budget, called: str, weigh: object) -> None:
    """Log once if a budget limits units in which nothing weighs calls: a debt is then all that can be counted. `called`
    names the function or enricher; without `weigh` it weighs in no unit."""
    units = {limit.unit for limit in budget.limits} | (budget.spend or {}).keys()
    unknown = sorted(units - set(COUNTED))
    text = (
        f"{called} weighs its calls in no unit of its own, and the budget {budget.name!r} limits {', '.join(unknown)}: "
        "only what its calls settle is counted, and only afterwards; give it `weigh`"
    )
    if unknown and weigh is None:
        warn_once(text)
