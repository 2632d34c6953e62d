"""Whether the rows of a simulation are those of a join with a plain dictionary, and its history keeps the laws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from asyncio_operator.errors import BudgetExceeded, FunctionError, describe_error
from asyncio_operator.testing.history.checker import check_history
from asyncio_operator.testing.simulation.observed import ROW
from asyncio_operator.testing.simulation.refusals import wrong_refusal
from asyncio_operator.testing.simulation.scenario import Lookup, Scenario
from asyncio_operator.testing.simulation.simulated_service import KEY, PART, SimulatedService

if TYPE_CHECKING:
    from asyncio_operator.testing.simulation.runs import Outcome

Found = dict[str, Any]


def broken(scenario: Scenario, outcome: Outcome) -> list[str]:
    """What is wrong, as sentences that begin with a law."""
    found = [f"Y1: {problem}" for problem in outcome.problems]
    for place, attempt in enumerate(outcome.attempts):
        rows = [row for batch in attempt.output for row in batch.to_pylist()]
        found += _wrong_rows(scenario, outcome, place, rows, attempt.outcome == "finished")
        error = attempt.error
        if isinstance(error, BudgetExceeded):
            found += (f"G6: task {place}: {one}" for one in wrong_refusal(scenario, outcome, attempt.name, error))
        elif error is not None and not _is_explained(scenario, outcome.services, error):
            found.append(f"O6: task {place} failed without a reason: {describe_error(error)}")
    found += [str(one) for one in check_history(outcome.history)]
    return found


def _is_explained(scenario: Scenario, services: tuple[SimulatedService, ...], error: BaseException) -> bool:
    """Whether an error may end a task."""
    name = type(error).__name__
    if name == "CoordinatorError":
        return scenario.budget is not None
    if name == "MissingKeyError":
        return any(lookup.options.get("how") == "required" for lookup in scenario.lookups)
    return isinstance(error, FunctionError) and any(
        lookup.options.get("on_error", "fail") == "fail"
        and service.reasons.explain_end(lookup, type(error.__cause__).__name__, error.element)
        for lookup, service in zip(scenario.lookups, services, strict=True)
    )


def _wrong_rows(scenario: Scenario, outcome: Outcome, place: int, rows: list[Found], finished: bool) -> Iterator[str]:
    """What is wrong with the rows of a task: each input row once, in order, with the values of the join."""
    task = scenario.tasks[place]
    keys = task.keys
    by_row: dict[int, list[Found]] = {}
    order: list[int] = []
    for row in rows:
        number = row[ROW]
        if number not in by_row:
            order.append(number)
        elif order[-1] != number and all(_mode(lookup) == "ordered" for lookup in scenario.lookups):
            yield f"X1: task {place}: the rows of row {number} are not together"
        by_row.setdefault(number, []).append(row)
    if all(_mode(lookup) == "ordered" for lookup in scenario.lookups) and order != sorted(order):
        yield f"X2: task {place}: rows left in the order {order}"
    for number, found in by_row.items():
        if not 0 <= number < len(keys):
            yield f"X1: task {place}: row {number} was never read"
            continue
        problem = _wrong_row(scenario, outcome.services, keys[number], task.part(number), found, finished)
        if problem:
            yield f"X1: task {place}: row {number} with key {keys[number]!r} {problem}"
    if finished:
        for number in range(len(keys)):
            if number not in by_row and not _may_vanish(scenario, outcome.services, keys[number], task.part(number)):
                own = [error for one in outcome.services for key, error in one.reasons.own.items()]
                why = f": calls failed with {own[0]}" if own else ""
                yield f"X1: task {place}: row {number} with key {keys[number]!r} was lost{why}"


def _mode(lookup: Lookup) -> Any:
    return lookup.options.get("mode", "ordered")


def _wrong_row(
    scenario: Scenario,
    services: tuple[SimulatedService, ...],
    key: Any,
    part: str | None,
    rows: list[Found],
    finished: bool,
) -> str:
    """What is wrong with the output rows of an input row; empty if nothing is."""
    given = {KEY: key, PART: part} if scenario.pairs else {KEY: key}
    if any({name: row[name] for name in given} != given for row in rows):
        return f"has another key: {rows}"
    width = 1 + len(given)
    columns = list(rows[0])
    for number, (lookup, service) in enumerate(zip(scenario.lookups, services, strict=True)):
        status = lookup.options.get("status_column")
        count = len(columns) if number == len(services) - 1 else None
        names = _names(columns, width, number, status, count)
        width += len(names) + bool(status)
        asked = lookup.key(rows[0][columns[_key_place(columns, lookup, number)]], part)
        truth = [] if asked is None else service.rows_of(asked)
        got = [{name: row[name] for name in names} for row in rows]
        fate, error = _fate(rows[0], columns, width, status, got)
        if fate == "missing" and not status and truth and _may_be_null(lookup, service, asked):
            fate = "failed"
        problem = _wrong_answer(fate, got, truth, names, finished, last=count is not None)
        if error and not service.reasons.explain(lookup, error["error_type"], asked):
            problem = f"{fate} without a reason ({error['error_type']}: {error['error_message']})"
        if problem:
            return f"{problem} by lookup {number} (key {asked!r}); the service has {truth}, the rows have {got}"
    return ""


def _key_place(columns: list[str], lookup: Lookup, number: int) -> int:
    return columns.index(f"k{number - 1}") if lookup.from_before else columns.index(KEY)


def _names(columns: list[str], width: int, number: int, status: Any, count: int | None) -> list[str]:
    """The columns that a lookup has added."""
    if count is not None:
        return columns[width : count - bool(status)]
    following = columns.index(f"v{number + 1}") if f"v{number + 1}" in columns else len(columns)
    return columns[width : following - bool(status)]


def _fate(row: Found, columns: list[str], width: int, status: Any, got: list[Found]) -> tuple[str, Found | None]:
    """The status of a row, and the column that says it if there was an error. A stale answer has one too."""
    if status:
        event: Found = row[columns[width - 1]]
        return event["status"], event if event["error_type"] else None
    return "found" if any(value is not None for value in got[0].values()) else "missing", None


def _may_be_null(lookup: Lookup, service: SimulatedService, asked: Any) -> bool:
    """Whether a key may have failed, and its row have nulls."""
    return lookup.options.get("on_error") == "null" and service.reasons.may_fail(lookup, asked)


def _wrong_answer(fate: str, got: list[Found], truth: list[Found], names: list[str], finished: bool, last: bool) -> str:
    nothing = [dict.fromkeys(names)]
    if not last:
        # A later lookup may have repeated the row. Lookups before the last have one row for a key.
        got = got[:1]
    if fate in ("failed", "timed_out"):
        return "" if got == nothing else "failed, and has values"
    wanted = [{name: row.get(name) for name in names} for row in truth]
    if fate == "missing":
        return "" if not truth and got == nothing else "is missing"
    if finished:
        return "" if got == wanted else "has other rows"
    return "" if got == wanted[: len(got)] else "has other rows"


def _may_vanish(scenario: Scenario, services: tuple[SimulatedService, ...], key: Any, part: str | None) -> bool:
    """Whether an input row may have no output row."""
    failed, asked = False, key
    for lookup, service in zip(scenario.lookups, services, strict=True):
        options = lookup.options
        before = lookup.key(asked if lookup.from_before else key, part)
        failed = failed or service.reasons.may_fail(lookup, before)
        if failed and (options.get("on_error") == "drop" or options.get("how") == "inner"):
            return True
        truth = [] if before is None else service.rows_of(before)
        if options.get("how") == "inner" and not truth:
            return True
        asked = next(iter(truth), {}).get(f"k{services.index(service)}")
    return False
