"""Whether there is a reason for a row that was read and left nothing: a miss, an error, a limit, or a refusal (O4)."""

from __future__ import annotations

from collections.abc import Iterator

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.parts import Call, Row, Run, is_invalid, may_be_refused
from asyncio_operator_proof.history.report import Finding
from asyncio_operator_proof.history.usable_answers import CACHE_CLOCK, Answer, journals, scopes


def judge_removed(book: Book, run: Run, row: Row, found: Finding) -> None:
    """A row without output. The calls for it show whether there is a reason; without calls any answer is possible."""
    how, on_error = run.setting.get("how", "left"), run.setting.get("on_error", "fail")
    misses, errors = how == "inner", on_error in ("drop", "skip")
    if not misses and not errors:
        found.broken(f"row {row.row} of {run.name} was read and never emitted", run.task.end, row.event)
        return
    calls = run.calls_of.get(row.row if run.of_rows else row.key, [])
    if misses and row.key is None and not run.of_rows:
        found.decided()
        return
    if not calls or any(not _certain(call) for call in calls):
        found.undecided("a row was removed, and the answer for it was not recorded")
        return
    answers = [call.answer_of(call.keys.index(row.row if run.of_rows else row.key)) for call in calls]
    others = [answer.value for answer in _answers_of_others(book, run, row)] if misses and not run.of_rows else []
    if (misses and ([] in answers or [] in others)) or (
        errors and (any(call.outcome != "result" for call in calls) or any(map(is_invalid, answers)))
    ):
        found.decided()
    elif None in others:
        found.undecided("a row was removed, and an answer of another task for it was not recorded")
    elif errors and (_may_be_late(book, run, row, calls) or may_be_refused(run, run.task.end + book.moment)):
        found.undecided("a row was removed, perhaps at its deadline, or by a circuit breaker")
    else:
        found.broken(
            f"row {row.row} of {run.name} was never emitted, and no miss and no error removed it",
            run.task.end,
            row.event,
            *(call.event for call in calls),
        )


def _answers_of_others(book: Book, run: Run, row: Row) -> Iterator[Answer]:
    """Answers for the key of a row that were in a cache or a journal while the row was inside."""
    for scope in scopes(book) if "cache" in run.setting else ():
        cache, begin = scope.cache, row.at - book.moment
        if run not in scope.runs:
            continue
        ttl = cache.get("missing_ttl") or cache.get("expire_after_write")
        for answer in scope.candidates(row.key, begin if scope.heap else 0.0, run.task.end):
            old = ttl is not None and row.at - answer.at >= ttl + CACHE_CLOCK + book.near(ttl)
            if old and not cache.get("stale_if_error"):
                continue
            if answer.value != [] or cache.get("cache_missing", True):
                yield answer
    for kept in journals(book) if "journal" in run.setting else ():
        if run in kept.runs:
            # Tasks put what they have from a journal into the cache that they share.
            until = run.task.end if "cache" in run.setting else run.task.start
            yield from kept.until(row.key, until + book.moment)


def _may_be_late(book: Book, run: Run, row: Row, calls: list[Call]) -> bool:
    """Whether a limit may have ended the row, or an attempt for it. The time of a row begins with its first call (law
    R1), so no limit ends one whose calls all gave results that were taken."""
    if all(call.is_taken and not call.is_malformed for call in calls):
        return False
    return any(run.task.end >= row.at + limit - book.near(limit) for limit in run.limits)


def _certain(call: Call) -> bool:
    if call.outcome is None:
        return False
    return call.outcome != "result" or (call.answers is not None and call.is_aligned and None not in call.answers)
