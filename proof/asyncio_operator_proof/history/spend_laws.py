"""Laws of spend limits (G6, G12), by what calls cost in the end (G11)."""

from __future__ import annotations

from bisect import bisect_left
from math import inf
from typing import Any

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.parts import Call, first_outs
from asyncio_operator_proof.history.report import Finding
from asyncio_operator_proof.history.shared_limits import KNOWN, TROUBLE, Shared, budgets, outages

REFUSED = "BudgetExceeded"


def law_g6_a_spend_limit_is_not_passed(book: Book, found: Finding) -> None:
    """No call starts that would pass the spend limit, by what is spent and what running calls may cost.

    What calls of other workers cost above their estimates need not be known yet.
    """
    for shared in budgets(book, found):
        for unit, most in shared.setting.get("spend", {}).items():
            _judge_spending(shared, unit, most, book, found)


def _judge_spending(shared: Shared, unit: str, most: float, book: Book, found: Finding) -> None:
    # Of one moment: what is free again, then what starts, then debts.
    changes: list[tuple[float, int, float, Call]] = []
    for call in shared.calls:
        estimate = call.weight(unit)
        changes.append((call.start, 1, estimate, call))
        debt = call.spent(unit) - estimate
        if debt:
            changes.append((call.stopped, 2 if debt > 0 else 0, debt, call))
    changes.sort(key=lambda change: (change[0], change[1]))
    spent = 0.0
    known = _Known(shared, book)
    # Debts that other workers may not know: when they do, how much, and of whom.
    unknown: list[tuple[float, float, Any]] = []
    for at, order, units, call in changes:
        spent += units
        worker = call.run.task.worker or call.run.task
        if order != 1:
            if units > 0:
                unknown.append((known.at(call), units, worker))
            continue
        found.decided()
        if units <= 0 or spent <= most * (1 + 1e-9):
            continue
        unknown = [debt for debt in unknown if debt[0] > at]
        of_others = sum(debt for _, debt, other in unknown if other != worker)
        if spent - of_others > most * (1 + 1e-9):
            what = f"call {call.id!r} of {shared.name} starts, and with it {spent:g} {unit} may be spent of"
            found.broken(f"{what} {most:g}", at, call.event)


class _Known:
    """When all workers of a budget know what a call has cost in the end."""

    def __init__(self, shared: Shared, book: Book) -> None:
        self._outages = [(begin, end) for begin, end, _ in outages(shared, book)]
        self._lost = [event["at"] for _, event in book.faults if event["what"] == "message_lost"]
        # For each lost message, until when its cost is unknown, if another one may be lost meanwhile.
        self._until: list[float] = []
        until = -inf
        for place in range(len(self._lost) - 1, -1, -1):
            alone = self._lost[place] + TROUBLE + KNOWN
            follows = place + 1 < len(self._lost) and self._lost[place + 1] <= alone
            until = until if follows else alone
            self._until.append(until)
        self._until.reverse()

    def at(self, call: Call) -> float:
        known = call.stopped + KNOWN
        place = bisect_left(self._lost, call.stopped - TROUBLE)
        if place < len(self._lost) and self._lost[place] <= known:
            known = self._until[place]
        for place in range(bisect_left(self._outages, call.stopped, key=lambda one: one[1]), len(self._outages)):
            begin, end = self._outages[place]
            if begin > known:
                break
            known = max(known, end + TROUBLE)
        task = call.run.task
        # What a killed worker did not report counts with its estimate for ever.
        return inf if task.outcome == "killed" and task.end <= known else known


def law_g6_a_spend_limit_ends_the_task(book: Book, found: Finding) -> None:
    """A call that the budget refuses fails its task, whatever `on_error` says: no row leaves with that error."""
    for run, row, out in first_outs(book.runs):
        if "budget" not in run.setting or run.setting.get("on_spent") == "null":
            continue
        found.decided()
        if out.error == REFUSED:
            what = f"row {row.row} of {run.name} leaves as {out.status!r}, and its budget refused a call"
            found.broken(what, out.at, row.event, out.event)


def law_g12_a_row_without_money_is_over_budget(book: Book, found: Finding) -> None:
    """Where the budget says so, and only there, a row whose call would pass the limit leaves as "over_budget", whatever
    `on_error` says, and it has no values. An old answer may take the place of the refusal."""
    for run in book.runs:
        goes_on = run.setting.get("on_spent") == "null" and "spend" in run.setting
        stale = ("stale", "shared") if run.setting.get("cache", {}).get("stale_if_error") else ()
        for row in run.rows.values():
            for out in row.outs:
                refused = out.error == REFUSED and not (out.status == "found" and out.source in stale)
                if out.status != "over_budget" and not (goes_on and refused):
                    continue
                found.decided()
                problem = "has values" if out.answer else ""
                if not goes_on:
                    problem = "nothing lets a job go on without money"
                elif out.status != "over_budget":
                    problem = "its budget refused a call"
                if problem:
                    what = f"row {row.row} of {run.name} leaves as {out.status!r}, and {problem}"
                    found.broken(what, out.at, row.event, out.event)
