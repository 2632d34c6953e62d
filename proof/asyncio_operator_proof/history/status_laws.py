"""Laws of the status of a row (O4, O6, R5, R9, L3, X1): it fits the settings, and what happened to the row's key.

Rows without a source are judged only by what no row can be: they may be keys of a trace, which no setting removes.
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.parts import Call, Out, Row, Run, first_outs, is_invalid
from asyncio_operator_proof.history.removed_rows import judge_removed
from asyncio_operator_proof.history.report import Finding
from asyncio_operator_proof.history.same_keys import text_of

FAILED = ("failed", "timed_out")

REFUSING = ("budget", "limits", "circuit_breaker", "journal")
"""Options that may fail a row before it is called."""

HEAP = "heap"
"""The store of a cache that cannot fail."""


def _outs(book: Book, *statuses: str) -> Iterator[tuple[Run, Row, Out]]:
    """The rows with one of these statuses, and their first outputs."""
    return (one for one in first_outs(book.runs) if one[2].status in statuses)


def law_o4_a_removed_row_is_not_emitted(book: Book, found: Finding) -> None:
    """A row is skipped where the settings remove its miss or its error, and then such a row is not emitted."""
    for run, row, out in _outs(book, "skipped", *FAILED):
        drops = run.setting.get("on_error", "fail") in ("drop", "skip")
        if out.status != "skipped":
            if out.source is not None:
                found.decided()
                if drops:
                    what = f"row {row.row} of {run.name} is {out.status!r}, and on_error removes it"
                    found.broken(what, out.at, row.event, out.event)
        elif drops or run.setting.get("how") == "inner":
            judge_removed(book, run, row, found)
        else:
            found.decided()
            what = f"row {row.row} of {run.name} is skipped, and neither how nor on_error removes rows"
            found.broken(what, out.at, row.event, out.event)


def law_o6_a_row_that_failed_fails_its_task(book: Book, found: Finding) -> None:
    """With on_error="fail" a task in which a row failed does not finish."""
    for run, row, out in _outs(book, *FAILED):
        if out.source is None or run.setting.get("on_error", "fail") != "fail":
            continue
        found.decided()
        if run.task.outcome == "finished":
            what = f"row {row.row} of {run.name} is {out.status!r}, on_error is 'fail', and yet the task finished"
            found.broken(what, out.at, row.event, out.event, run.task.end_event or 0)


def law_r9_without_a_limit_no_row_times_out(book: Book, found: Finding) -> None:
    """Without `timeout` and `attempt_timeout` no row and no call times out."""
    for call in book.calls:
        if call.outcome == "timed_out":
            found.decided()
            if not call.run.limits:
                what = f"call {call.id!r} of {call.run.name} timed out, and no timeout is set"
                found.broken(what, call.stopped, *call.events)
    for run, row, out in _outs(book, "timed_out"):
        found.decided()
        if not run.setting.get("timeout") and not run.setting.get("attempt_timeout"):
            what = f"row {row.row} of {run.name} timed out, and no timeout is set"
            found.broken(what, out.at, row.event, out.event)


def law_l3_an_error_is_not_kept(book: Book, found: Finding) -> None:
    """No row gets an error from a cache or a journal."""
    for run, row, out in _outs(book, *FAILED):
        if out.source is not None:
            found.decided()
            if out.source in ("cache", "stale", "journal"):
                what = f"row {row.row} of {run.name} is {out.status!r}, and its source is {out.source!r}"
                found.broken(what, out.at, row.event, out.event)


def law_x1_an_inner_join_drops_misses(book: Book, found: Finding) -> None:
    """With how="inner" no miss is emitted."""
    for run, row, out in _outs(book, "found", "missing"):
        if run.setting.get("how") == "inner" and out.source is not None:
            found.decided()
            if out.status == "missing":
                found.broken(f"row {row.row} of {run.name} is a miss, and how is 'inner'", out.at, row.event, out.event)


def law_r5_a_row_fails_with_a_call(book: Book, found: Finding) -> None:
    """A row that failed says so of a call: one for its key was made while the row was inside, and gave no result."""
    for run, row, out in _outs(book, "failed"):
        if run.of_rows or out.source != "call" or row.key is None or out.attempts == 0:
            continue
        calls = []
        for call in run.calls_between(row.key, row.at - book.moment, out.at + book.moment):
            calls.append(call)
            if call.outcome != "result":
                break
        if calls and calls[-1].outcome != "result":
            found.decided()
        elif (
            any(option in run.setting for option in REFUSING) or run.setting.get("cache", {}).get("store", HEAP) != HEAP
        ):
            found.undecided("a row may fail before it is called")
        elif out.error in (None, "ResultError") or not all(map(_surely_taken, calls)):
            found.undecided("a result may have come too late, or have been refused")
        else:
            found.decided()
            what = f"row {row.row} of {run.name} failed with {out.error}, and no call for key {text_of(row.key)} failed"
            found.broken(what, out.at, row.event, *(call.event for call in calls), out.event)


def _surely_taken(call: Call) -> bool:
    """Whether a result is an answer for each of the call's keys. A function may judge results where calls are
    repeated, and fail."""
    if call.answers is None or not call.is_aligned or call.run.setting.get("max_attempts", 1) > 1:
        return False
    if any(answer is None or is_invalid(answer) for answer in call.answers):
        return False
    if call.run.setting.get("single") and any(isinstance(one, list) and len(one) > 1 for one in call.answers):
        return False
    return call.is_taken
