"""Laws of spend limits (G6)."""

from __future__ import annotations

from math import inf
from typing import Any

from asyncio_operator.testing.history.book import Book
from asyncio_operator.testing.history.parts import Call
from asyncio_operator.testing.history.report import Finding
from asyncio_operator.testing.history.shared_limits import KNOWN, TROUBLE, Shared, budgets, outages

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
        if unit in call.settled:
            debt = call.settled[unit] - estimate
            changes.append((call.stopped, 2 if debt > 0 else 0, debt, call))
    changes.sort(key=lambda change: (change[0], change[1]))
    spent = 0.0
    # Debts that other workers may not know: when they do, how much, and of whom.
    unknown: list[tuple[float, float, Any]] = []
    for at, order, units, call in changes:
        spent += units
        worker = call.run.task.worker or call.run.task
        if order != 1:
            if units > 0:
                unknown.append((_known_at(call, shared, book), units, worker))
            continue
        found.decided()
        if units <= 0 or spent <= most * (1 + 1e-9):
            continue
        unknown = [debt for debt in unknown if debt[0] > at]
        of_others = sum(debt for _, debt, other in unknown if other != worker)
        if spent - of_others > most * (1 + 1e-9):
            what = f"call {call.id!r} of {shared.name} starts, and with it {spent:g} {unit} may be spent of"
            found.broken(f"{what} {most:g}", at, call.event)


def _known_at(call: Call, shared: Shared, book: Book) -> float:
    """When all workers of a budget know what a call has cost in the end."""
    known = call.stopped + KNOWN
    for _, event in book.faults:
        if event["what"] == "message_lost" and call.stopped - TROUBLE <= event["at"] <= known:
            known = max(known, event["at"] + TROUBLE + KNOWN)
    for begin, end, _ in outages(shared, book):
        if begin <= known and call.stopped <= end:
            known = max(known, end + TROUBLE)
    task = call.run.task
    # What a killed worker did not tell counts with its estimate for ever.
    return inf if task.outcome == "killed" and task.end <= known else known


def law_g6_a_spend_limit_ends_the_task(book: Book, found: Finding) -> None:
    """A call that the budget refuses fails its task, whatever `on_error` says: no row leaves with that error."""
    for run in book.runs:
        if "budget" not in run.setting:
            continue
        for row in run.rows.values():
            for out in row.outs[:1]:
                found.decided()
                if out.error == REFUSED:
                    what = f"row {row.row} of {run.name} leaves as {out.status!r}, and its budget refused a call"
                    found.broken(what, out.at, row.event, out.event)
