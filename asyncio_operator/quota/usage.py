"""Reports from inside a running call: its actual weight, whether it is billed, and limits that the source announced.

The functions reach the budget of the run in which the call was made, from the call itself and from tasks and threads
that it has started. Without a budget, outside of a call, and after the call has returned, they only check their
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, fields
from math import inf
from typing import Any, Protocol

from asyncio_operator.checks import flag, must_be, number
from asyncio_operator.errors import ConfigurationError, ResultError, describe, describe_error, function_error, said

COUNTED = ("calls", "keys")  # Units that are counted, and that nothing else may weigh.
LARGEST_AMOUNT = 1e15  # Of one unit in one call. Larger amounts are mistakes, and their sums would soon be infinite.

ALLOWED = f"from 0 to {LARGEST_AMOUNT:g}"

Weights = Mapping[str, float]  # Amounts by unit, such as ``{"calls": 1, "keys": 20, "tokens": 1300}``.
Weigh = Callable[[Sequence[Any]], Weights]  # Estimates the weight of a call, from the values that it is called with.

ONE: Weights = {"calls": 1.0, "keys": 1.0}


@dataclass(slots=True, eq=False)
class FreeStarts:
    """Calls of the weight `ONE` that may start without a question, so that a call costs only a few sums (law G8)."""

    heard: bool = False  # Whether a limit has to hear of each end at once, instead of by `ended`.
    left: int = 0  # Calls that may still start.
    ended: int = 0  # Calls that have returned, and no limit has counted.
    until: float = -inf  # Before which time they may start.
    last: float = -inf  # When the last of them did.


@dataclass(frozen=True, slots=True)
class Hint:
    """What a source says about one unit of its limits. None: it does not say.

    Attributes:
        limit: units per window, as the source counts them.
        remaining: units that are left.
        reset_after: seconds from now until the window ends or, if it `refills`, until all units are back.
        refills: whether units come back continuously. Otherwise `remaining` holds until the window ends.
        per: the length of the window, in seconds.

    Raises:
        ConfigurationError: a value has the wrong type. Numbers that cannot be right, such as negative ones, are no
            error here: the budget ignores such a hint.
    """

    limit: float | None = None
    remaining: float | None = None
    reset_after: float | None = None
    refills: bool = False
    per: float | None = None

    def __post_init__(self) -> None:
        flag("refills", self.refills)
        for name in ("limit", "remaining", "reset_after", "per"):
            _number_or_none(name, getattr(self, name))


HINT_FIELDS = tuple(field.name for field in fields(Hint))


class RunningCall(Protocol):
    """A call under a budget. Its methods may be called on any thread."""

    def settle(self, weights: Weights) -> None:
        """Add to the true weight."""

    def bill(self, whether: bool) -> None:
        """Say whether the source bills one of its requests."""

    def hint(self, limits: Mapping[str, Hint], retry_after: float | None) -> None:
        """Pass on what the source says."""


running: ContextVar[RunningCall] = ContextVar("asyncio_operator_running_call")
"""The call under a budget that runs in this context."""


def settle(weights: Weights) -> bool:
    """Say what the running call really weighed, and not its estimate. Returns whether a budget counts it.

    Several reports of one call are added up. Units without one keep their estimate. Call it before the call returns.

    Args:
        weights: amounts by unit, from 0 to 1e15; not "calls" and "keys", which are counted.

    Raises:
        ConfigurationError: a unit or an amount is wrong.
    """
    checked = checked_weights("settle(weights)", weights)
    if (call := running.get(None)) is not None and checked:
        call.settle(checked)
    return call is not None


def billed(whether: bool) -> None:
    """Say whether the source bills the running call.

    A call that was said not to be billed, and never that it was, gives back what was reserved of a spend limit, in
    units that it has not settled (law G11). Windows of limits keep the estimate. An error that the call raises says
    the same with `EnricherError.billed`. Call it before the call returns, for each of its requests.

    Args:
        whether: False if the source answered with an error, such as a status 404 for a key without a row, or if no
            request was needed; True after any other answer.

    Raises:
        ConfigurationError: it is not True or False.
    """
    flag("whether", whether)
    if (call := running.get(None)) is not None:
        call.bill(whether)


def is_unbilled(error: BaseException) -> bool:
    """Whether an error says that the source does not bill the call that raised it."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_unbilled, error.exceptions))
    whether = said(error, "billed")
    if whether is None:
        # It has answered, and refused.
        return said(error, "retry_after") is not None or bool(said(error, "overload", bool))
    return whether is False


def hint(limits: Mapping[str, Hint | Mapping[str, Any]] | None = None, *, retry_after: float | None = None) -> None:
    """Say what the source has said about its limits. All tasks of the budget heed it; it never raises a limit.

    Args:
        limits: by unit ("calls" and "keys" too), a `Hint` or a mapping of its fields.
        retry_after: seconds for which no call may start, or None.

    Raises:
        ConfigurationError: an argument has the wrong type.
    """
    hints: dict[str, Hint] = {}
    if limits is not None and not isinstance(limits, Mapping):
        example = '{"tokens": {"remaining": 40_000, "reset_after": 6.0}}'
        raise must_be("limits", limits, f"a mapping of units to hints, such as {example}")
    for unit, one in (limits or {}).items():
        if not isinstance(unit, str):
            raise ConfigurationError(f'limits has the unit {describe(unit)}; a unit is a word, such as "tokens"')
        if isinstance(one, Hint):
            hints[unit] = one
        elif isinstance(one, Mapping) and set(one) <= set(HINT_FIELDS):
            hints[unit] = Hint(**one)
        else:
            allowed = f"a Hint, or a mapping of some of its fields: {', '.join(HINT_FIELDS)}"
            raise must_be(f"the hint for {describe(unit)}", one, allowed)
    _number_or_none("retry_after", retry_after)
    if (call := running.get(None)) is not None and (hints or retry_after is not None):
        call.hint(hints, retry_after)


def checked_weights(what: str, weights: object) -> dict[str, float]:
    """The weights, if they are amounts by unit; else ConfigurationError. `what` is where they come from."""
    if type(weights) is not dict and not isinstance(weights, Mapping):
        raise must_be(what, weights, 'a mapping of units to amounts, such as {"tokens": 1300}')
    checked: dict[str, float] = {}
    for unit, amount in weights.items():
        if not isinstance(unit, str) or unit in COUNTED:
            counted = ", which is counted" if unit in COUNTED else ""
            own = 'a unit is a word of your own, such as "tokens", "bytes" or "usd"'
            raise ConfigurationError(f"{what} has the unit {describe(unit)}{counted}; {own}")
        # The words of a message take longer than all else, and every call is weighed.
        if type(amount) not in (float, int) or not 0 <= amount <= LARGEST_AMOUNT:
            number(f"{what}[{describe(unit)}]", amount, ALLOWED, lambda one: 0 <= one <= LARGEST_AMOUNT)
        checked[unit] = float(amount)
    return checked


def overridden(weigh: Weigh, base: object) -> Weigh | None:
    """A method `weigh`; None if it is `base`, that of the base class, which weighs nothing."""
    return None if getattr(weigh, "__func__", None) is base else weigh


def weighed(name: str, weigh: Weigh, values: Sequence[Any], ordinary: Any = Exception) -> dict[str, float]:
    """What one call for these values weighs. `name` is that of what is called; `ordinary` are the errors of it.
    ResultError if it could not be weighed, or FunctionError because of an error that is not ordinary."""
    try:
        return checked_weights("its result", weigh(values))
    except ConfigurationError as error:
        raise ResultError(f"{name}.weigh gave no weights for {describe(values)}: {error}") from error
    except BaseException as error:
        says = f" for {describe(values)} with {describe_error(error)}; it must return amounts by unit, such as "
        says += '{"tokens": 1300}'
        if isinstance(error, ordinary):
            raise ResultError(f"{name}.weigh failed{says}") from error
        # Law X5: one that asks the process to end, such as SystemExit, ends the run.
        raise function_error(f"{name}.weigh failed", says, cause=error) from error


def weighing(name: str, weigh: Weigh | None, ordinary: Any) -> Callable[[int, Sequence[Any]], Weights]:
    """A function of the number of values of a call, and of the values: what the call weighs."""
    context = copy_context()

    def weights(count: int, values: Sequence[Any]) -> Weights:
        counted = ONE if count == 1 else {"calls": 1.0, "keys": float(count)}
        # Law O17: what it sets is seen by no call.
        return counted if weigh is None else {**counted, **context.copy().run(weighed, name, weigh, values, ordinary)}

    return weights


def _number_or_none(name: str, value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise must_be(name, value, "a number, or None")
