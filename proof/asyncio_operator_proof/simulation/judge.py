"""Whether the rows of a simulation are those of a join with a plain dictionary, and its history keeps the laws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from asyncio_operator.checks import seconds
from asyncio_operator.errors import (
    BudgetExceeded,
    CoordinatorError,
    FunctionError,
    MissingKeyError,
    describe,
    describe_error,
)
from asyncio_operator_proof.history.checker import check_history
from asyncio_operator_proof.history.event_format import History
from asyncio_operator_proof.simulation.canonical import row_of
from asyncio_operator_proof.simulation.refused_calls import wrong_refusal, wrong_row
from asyncio_operator_proof.simulation.scenario import Key, Lookup, Scenario
from asyncio_operator_proof.simulation.simulated_service import KEY, PART, ROW, Rows, SimulatedService

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncio_operator_proof.simulation.runs import Outcome

Found = dict[str, Any]

SLOW = 50
"""The mean delays of a message that no reply takes."""


def broken(scenario: Scenario, outcome: Outcome) -> list[str]:
    """What is wrong, as sentences that begin with a law."""
    found = [
        "Y1: a call of the enricher did not obey its cancellation, and returned an answer: "
        f"the one for keys {describe(service.reasons.disobeyed)}"
        for service in outcome.services
        if service.reasons.disobeyed is not None
    ]
    found += [f"Y1: {problem}" for problem in outcome.problems]
    for place in range(len(outcome.attempts)):
        found += _Judge(scenario, outcome, place).problems()
    found += _cut_calls(outcome.history)
    found += [str(one) for one in check_history(outcome.history)]
    return found


def _cut_calls(history: History) -> Iterator[str]:
    """Calls of a task that finished, which were cut before their limit. A row waits for each of them, unless it is one
    of a pair or a refresh."""
    settings = history.settings
    finished = {one["task"] for one in history if one["event"] == "task_ended" and one["outcome"] == "finished"}
    started = {one["call"]: one for one in history if one["event"] == "call_started" and one["task"] in finished}
    paired = {name for call, one in started.items() if "copy_of" in one for name in (call, one["copy_of"])}
    for one in history:
        if one["event"] == "call_ended" and one["outcome"] == "cancelled" and one["call"] in started.keys() - paired:
            begun = started[one["call"]]
            if "refresh_after" not in settings[begun["lookup"]].get("cache", {}):
                yield f"R1: call {one['call']!r} of task {one['task']} was cut after {one['at'] - begun['at']:.6f} s"


class _Judge:
    """Judges the rows and the end of the last attempt of a task.

    Args:
        place: of the task.
    """

    def __init__(self, scenario: Scenario, outcome: Outcome, place: int) -> None:
        self._scenario = scenario
        self._outcome = outcome
        self._place = place
        self._task = scenario.tasks[place]
        self._attempt = outcome.attempts[place]
        self._finished = self._attempt.outcome == "finished"
        self._lookups = [*zip(scenario.lookups, outcome.services, outcome.columns, strict=True)]

    def problems(self) -> Iterator[str]:
        """What is wrong."""
        yield from self._wrong_rows([row for batch in self._attempt.output for row in batch.to_pylist()])
        error = self._attempt.error
        if isinstance(error, BudgetExceeded):
            for one in wrong_refusal(self._scenario, self._outcome, self._attempt.name, error):
                yield f"G6: task {self._place}: {one}"
        elif error is not None and not self._is_explained(error):
            yield f"O6: task {self._place} failed without a reason: {describe_error(error)}"

    def _is_explained(self, error: BaseException) -> bool:
        """Whether an error may end the task."""
        if isinstance(error, CoordinatorError):
            budget, coordinator = self._scenario.budget, self._scenario.coordinator
            is_slow = budget is not None and seconds(budget.patience) < SLOW * coordinator.delay
            return budget is not None and bool(coordinator.down or coordinator.lost or is_slow)
        if isinstance(error, MissingKeyError):
            rows = enumerate(self._task.keys)
            return any(self._may_be_missing(error.key, key, self._task.part(row)) for row, key in rows)
        return isinstance(error, FunctionError) and any(
            lookup.options.get("on_error", "fail") == "fail"
            and service.reasons.explain_end(type(error.__cause__).__name__, error.element)
            for lookup, service, _ in self._lookups
        )

    def _may_be_missing(self, named: str, key: Any, part: str | None) -> bool:
        """Whether a lookup that requires a row for each key may name this one for an input row."""
        for lookup, service, first, may_be_null in self._asked(key, part):
            for one in {first, None if may_be_null else first}:
                shown = describe((one, part) if lookup.pair else one)
                is_missing = not _truth(service, lookup.key(one, part))
                if lookup.options.get("how") == "required" and is_missing and shown == named:
                    return True
        return False

    def _wrong_rows(self, rows: list[Found]) -> Iterator[str]:
        """What is wrong with the rows: each input row once, in order, with the values of the join."""
        keys = self._task.keys
        by_row: dict[int, list[Found]] = {}
        order: list[int] = []
        ordered = all(lookup.options.get("mode", "ordered") == "ordered" for lookup in self._scenario.lookups)
        for row in rows:
            number = row[ROW]
            if number not in by_row:
                order.append(number)
            elif order[-1] != number and ordered:
                yield f"X1: task {self._place}: the rows of row {number} are not together"
            by_row.setdefault(number, []).append(row)
        if ordered and order != sorted(order):
            yield f"X2: task {self._place}: rows left in the order {order}"
        for number, found in by_row.items():
            if not 0 <= number < len(keys):
                yield f"X1: task {self._place}: row {number} was never read"
                continue
            problem = self._wrong_row(keys[number], self._task.part(number), found)
            if problem:
                yield f"X1: task {self._place}: row {number} with key {keys[number]!r} {problem}"
        if self._finished:
            for number in range(len(keys)):
                if number not in by_row and not self._may_vanish(keys[number], self._task.part(number)):
                    own = [error for one in self._outcome.services for error in one.reasons.own.values()]
                    why = f": calls failed with {own[0]}" if own else ""
                    yield f"X1: task {self._place}: row {number} with key {keys[number]!r} was lost{why}"

    def _wrong_row(self, key: Any, part: str | None, rows: list[Found]) -> str:
        """What is wrong with the output rows of an input row; empty if nothing is."""
        given = {KEY: key, PART: part} if self._scenario.pairs else {KEY: key}
        if any({name: row[name] for name in given} != given for row in rows):
            return f"has another key: {rows}"
        columns, width = list(rows[0]), 1 + len(given)
        for number, (lookup, service, found) in enumerate(self._lookups):
            asked = lookup.key(rows[0][f"k{number - 1}" if lookup.from_before else KEY], part)
            truth = _truth(service, asked)
            got = [{name: row[name] for name in found.names} for row in rows]
            width += len(found)
            status: Found = {}
            if lookup.options.get("status_column"):
                status = rows[0][columns[width]]
                width += 1
            fate = status.get("status") or _fate(lookup, service, asked, got, self._may_lack_money(lookup))
            problem = self._wrong_answer(fate, got, truth, found, last=number == len(self._lookups) - 1)
            kind = status.get("error_type")
            if kind == BudgetExceeded.__name__ and self._may_lack_money(lookup):
                problem = problem or wrong_row(self._scenario, self._outcome)
            # A stale answer has an error too.
            elif kind and not service.reasons.explain(kind, asked):
                problem = f"{fate} without a reason ({kind}: {status['error_message']})"
            if problem:
                return f"{problem} by lookup {number} (key {asked!r}); the service has {truth}, the rows have {got}"
        return ""

    def _wrong_answer(self, fate: str, got: list[Found], truth: Rows, found: pa.Schema, last: bool) -> str:
        nothing = [dict.fromkeys(found.names)]
        if not last:
            # A later lookup may have repeated the row. Lookups before the last have one row for a key.
            got = got[:1]
        if fate in ("failed", "timed_out", "over_budget"):
            return "" if got == nothing else "failed, and has values"
        if fate == "missing":
            return "" if not truth and got == nothing else "is missing"
        wanted, left = ([row_of(row, found) for row in rows] for rows in (truth, got))
        return "" if left == (wanted if self._finished else wanted[: len(left)]) else "has other rows"

    def _may_vanish(self, key: Any, part: str | None) -> bool:
        """Whether an input row may have no output row."""
        for lookup, service, first, may_be_null in self._asked(key, part):
            asked = lookup.key(first, part)
            if lookup.options.get("how") == "inner" and (may_be_null or not _truth(service, asked)):
                return True
            if lookup.options.get("on_error") == "drop" and _may_fail(service, asked):
                return True
        return False

    def _asked(self, key: Any, part: str | None) -> Iterator[tuple[Lookup, SimulatedService, Any, bool]]:
        """What each lookup is asked for, for an input row: the first column of the key, and whether that may be null
        because an earlier lookup failed."""
        found, may_be_null = None, False
        for number, (lookup, service, _) in enumerate(self._lookups):
            first = found if lookup.from_before else key
            may_be_null = may_be_null and lookup.from_before
            yield lookup, service, first, may_be_null
            asked = lookup.key(first, part)
            found = next(iter(_truth(service, asked)), {}).get(f"k{number}")
            fails = lookup.options.get("on_error") == "null" and _may_fail(service, asked)
            may_be_null = may_be_null or fails or self._may_lack_money(lookup)

    def _may_lack_money(self, lookup: Lookup) -> bool:
        """Whether a row may get nulls because its call would pass a spend limit (law G12)."""
        budget = self._scenario.budget
        return bool(lookup.options.get("budget")) and budget is not None and budget.on_spent == "null"


def _truth(service: SimulatedService, asked: Key) -> Rows:
    return [] if asked is None else service.rows_of(asked)


def _fate(lookup: Lookup, service: SimulatedService, asked: Key, got: list[Found], may_lack_money: bool) -> str:
    """The status of a row that has no status column. Without values it may have failed, or have been found so."""
    truth = _truth(service, asked)
    if any(value is not None for value in got[0].values()):
        return "found"
    fails = may_lack_money or (lookup.options.get("on_error") == "null" and _may_fail(service, asked))
    has_values = any(value is not None for row in truth for value in row.values())
    if truth and not has_values and (len(got) > 1 or not fails):
        return "found"
    return "failed" if truth and fails else "missing"


def _may_fail(service: SimulatedService, asked: Key) -> bool:
    return asked is not None and service.reasons.may_fail(asked)
