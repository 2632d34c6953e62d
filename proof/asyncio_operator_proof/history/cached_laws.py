"""The laws that a cache is used: a key whose answer it surely has is not asked for again (L1, L3), and with
`stale_if_error` an answer that has expired replaces a failure (L6).

Only a cache on the heap of a worker is judged. It surely has an answer that was taken, that is younger than its
lifetime or may be stale, and since whose last use fewer than `max_rows` other keys can have come or been used. A row
looks in the cache between the moment at which it was read and that at which its call starts, and the answer must be
there all that time. Where the task remembers answers too (L13), a hit is not surely a use of the cache.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Hashable, Iterator
from itertools import accumulate
from math import inf
from typing import Any, NamedTuple

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.parts import Call, Out, Row, Run, first_outs
from asyncio_operator_proof.history.report import Finding
from asyncio_operator_proof.history.same_keys import text_of
from asyncio_operator_proof.history.sweeps import distinct_between
from asyncio_operator_proof.history.usable_answers import CACHE_CLOCK, REMEMBERED, Answer, Scope, lifetime, scopes

IDLE = 60.0
"""Seconds without a task after which a worker may close what it keeps (L8)."""


FORGOTTEN_EARLIER = 0.98
"""By this factor an answer is forgotten before it expires: answers of about the same time are forgotten together."""

FROM_A_JOURNAL = "an answer in the cache may come from the journal"


class Case(NamedTuple):
    """A call for a key whose answer has not expired: since when the cache surely has it if it was not pushed out."""

    call: Call
    key: Hashable
    answer: Answer
    since: float


def law_l1_a_cached_answer_is_not_asked_for_again(book: Book, found: Finding) -> None:
    """A key is not called while the cache of its worker surely has its answer: one that has not expired (L5), and that
    no more than `max_rows` keys have pushed out (L4)."""
    _judge(book, found, misses=False)


def law_l3_a_cached_miss_is_not_asked_for_again(book: Book, found: Finding) -> None:
    """A key that is a miss is not called while the cache of its worker surely has the miss, if `cache_missing`."""
    _judge(book, found, misses=True)


def _judge(book: Book, found: Finding, *, misses: bool) -> None:
    for scope in scopes(book):
        if "cache" not in scope.setting or not scope.heap or scope.setting.get("asks_per_batch"):
            continue
        if "journal" in scope.setting:
            found.undecided(FROM_A_JOURNAL)
            continue
        found.decided(sum(len(run.calls) for run in scope.runs))
        cases = [case for case in _cases(scope, book) if (case.answer.value == []) is misses]
        most = scope.cache.get("max_rows", inf)
        spans = [(case.since - book.moment, case.call.start + book.moment) for case in cases]
        for case, others in zip(cases, _most_others(scope, spans, book), strict=True):
            if others >= most:
                continue
            call, answer = case.call, case.answer
            what = f"call {call.id!r} of {call.run.name} asks for key {text_of(case.key)}, and the cache has the"
            what = f"{what} {'miss' if misses else 'answer'} that came {call.start - answer.at:.6f} s before"
            found.broken(what, call.start, *answer.call.events, call.event)


def law_l6_a_failure_is_replaced_by_a_stale_answer(book: Book, found: Finding) -> None:
    """With `stale_if_error` no row fails while the cache of its worker surely has an answer, expired or not."""
    for scope in scopes(book):
        if "cache" not in scope.setting or not scope.heap or not scope.cache.get("stale_if_error"):
            continue
        if "journal" in scope.setting:
            found.undecided(FROM_A_JOURNAL)
            continue
        hits = {} if scope.setting.get("remember") else _hits(scope)
        failed = []
        for run, row, out in _failed(scope):
            found.decided()
            answer = scope.latest(row.key, out.at + book.moment)
            if answer is None or answer.at >= row.at - book.moment or not _is_kept(scope, answer, run):
                continue
            failed.append((run, row, out, answer, max(answer.at, _last_use(hits.get(row.key), row.at - book.moment))))
        most = scope.cache.get("max_rows", inf)
        spans = [(used - book.moment, out.at + book.moment) for _, _, out, _, used in failed]
        for (run, row, out, answer, _), others in zip(failed, _most_others(scope, spans, book), strict=True):
            if others < most:
                what = f"row {row.row} of {run.name} is {out.status!r}, and the cache has an answer for key"
                found.broken(f"{what} {text_of(row.key)}", out.at, *answer.call.events, row.event, out.event)


def law_l13_a_cache_costs_no_calls(book: Book, found: Finding) -> None:
    """A key is not called while its task remembers an answer that the cache would still use, however small that is."""
    for scope in scopes(book):
        remember = scope.setting.get("remember")
        if "cache" not in scope.setting or not remember or scope.setting.get("asks_per_batch"):
            continue
        if "journal" in scope.setting:
            found.undecided(FROM_A_JOURNAL)
            continue
        for run in scope.runs:
            answered = sum(len(call.keys) for call in run.calls if call.outcome == "result")
            if answered > scope.setting.get("remember_rows", REMEMBERED):
                found.undecided("a task remembers the keys that were answered last")
                continue
            found.decided(len(run.calls))
            for key, calls in run.calls_of.items():
                for call, since in _asked_since(run, key, calls, book.moment):
                    answer = scope.latest(key, call.start)
                    if answer is None or answer.call.run is not run or answer.at >= since - book.moment:
                        continue
                    longest = min(remember, FORGOTTEN_EARLIER * lifetime(scope, missing=answer.value == []))
                    age = call.start - answer.at
                    if age < longest - CACHE_CLOCK - book.near(longest) and _is_kept(scope, answer, run):
                        what = f"call {call.id!r} of {run.name} asks for key {text_of(key)}, which was answered"
                        found.broken(f"{what} {age:.6f} s before", call.start, *answer.call.events, call.event)


def _failed(scope: Scope) -> Iterator[tuple[Run, Row, Out]]:
    """The rows that failed by a call, or by one that they share."""
    for run, row, out in first_outs(scope.runs):
        if out.status in ("failed", "timed_out") and out.source in ("call", "shared") and row.key is not None:
            yield run, row, out


def _cases(scope: Scope, book: Book) -> Iterator[Case]:
    hits = _hits(scope)
    for run in scope.runs:
        for key, calls in run.calls_of.items():
            for call, since in _asked_since(run, key, calls, book.moment):
                answer = scope.latest(key, call.start)
                if answer is None or answer.at >= since - book.moment or not _is_kept(scope, answer, run):
                    continue
                used = max(answer.at, _last_use(hits.get(key), since - book.moment))
                if _is_alive(scope, answer, used, call.start, book):
                    yield Case(call, key, answer, answer.at if scope.setting.get("remember") else used)


def _asked_since(run: Run, key: Hashable, calls: list[Call], moment: float) -> Iterator[tuple[Call, float]]:
    """The calls for a key that rows asked for, each with the earliest moment at which such a row was read."""
    rows, place = run.rows_of.get(key, []), 0
    # The rows that may wait for a call, in the order in which they were read. Those behind the first may have left.
    inside: deque[Row] = deque()
    refreshed = "refresh_after" in run.setting["cache"]
    for call in calls:
        while place < len(rows) and rows[place].event < call.event:
            inside.append(rows[place])
            place += 1
        while inside and _has_left(inside[0], call.start - moment):
            inside.popleft()
        if inside and call.copy_of is None and not call.refresh and (call.refresh is False or not refreshed):
            yield call, inside[0].at


def _has_left(row: Row, at: float) -> bool:
    return bool(row.outs) and (row.outs[0].at < at or row.outs[0].source == "cache")


def _is_kept(scope: Scope, answer: Answer, run: Run) -> bool:
    """Whether the cache surely took an answer, and was not closed since."""
    gave, value = answer.call, answer.value
    if value is None or gave.is_malformed or gave.copies or gave.copy_of is not None or not gave.is_taken:
        return False
    if value == [] and not scope.cache.get("cache_missing", True):
        return False
    if scope.setting.get("single") and type(value) is list and len(value) > 1:
        return False
    task = gave.run.task
    # What comes while a run is being closed is dropped.
    return gave.run is run or (task.outcome == "finished" and run.task.start - task.end < IDLE)


def _is_alive(scope: Scope, answer: Answer, used: float, until: float, book: Book) -> bool:
    """Whether an answer has surely not expired."""
    cache = scope.cache
    ttl = cache.get("missing_ttl") if answer.value == [] else None
    ttl = cache.get("expire_after_write") if ttl is None else ttl
    access = cache.get("expire_after_access")
    return all(
        life is None or until - since < life - CACHE_CLOCK - book.near(life)
        for life, since in ((ttl, answer.at), (access, used))
    )


Uses = tuple[list[float], list[float]]


def _hits(scope: Scope) -> dict[Hashable, Uses]:
    """By key, when its rows from the cache left, and the latest time at which one of those until then was read."""
    rows: dict[Hashable, list[tuple[float, float]]] = {}
    for _, row, out in first_outs(scope.runs):
        if out.source == "cache":
            rows.setdefault(row.key, []).append((out.at, row.at))
    found = {}
    for key, times in rows.items():
        times.sort()
        found[key] = [left for left, _ in times], list(accumulate((read for _, read in times), max))
    return found


def _last_use(uses: Uses | None, until: float) -> float:
    """The latest time from which on a key was surely used before another one."""
    place = 0 if uses is None else bisect_right(uses[0], until)
    return uses[1][place - 1] if uses is not None and place else -inf


def _most_others(scope: Scope, spans: list[tuple[float, float]], book: Book) -> list[int]:
    """For each span, at most how many other keys came into the caches of the worker, or were used there."""
    points: list[tuple[float, Any]] = []
    read: list[float] = []
    left: list[float] = []
    for run in book.runs if spans else ():
        if run.task.worker != scope.runs[0].task.worker or "cache" not in run.setting:
            continue
        points += [(call.stopped, (run.lookup, key)) for call in run.calls for key in call.keys]
        for row in run.rows.values():
            if row.outs and row.outs[0].source not in ("cache", None):
                continue
            begin, end = row.at, row.outs[0].at if row.outs else run.task.end
            points += [(begin, (run.lookup, row.key)), (end, (run.lookup, row.key))]
            read.append(begin)
            left.append(end)
    points.sort(key=lambda point: point[0])
    read.sort()
    left.sort()
    # The key itself came, or was used, at the begin. A row that is inside then may use its key at any time of the span.
    return [
        count - 1 + bisect_right(read, span[0]) - bisect_left(left, span[0])
        for count, span in zip(distinct_between(points, spans), spans, strict=True)
    ]
