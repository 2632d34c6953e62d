"""The law that a limit is used (G3): while there is work for it, 97 % of it start.

There is work while a row waits for its first call in a run whose capacity has room. Only what is certain counts: a
limit of calls alone, lookups without batches, in any order, and nothing else that could hold a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.parts import Run
from asyncio_operator_proof.history.report import Finding
from asyncio_operator_proof.history.shared_limits import Limit, Shared, budgets

LEAST = 0.97
"""The part of a limit that is used."""

WINDOWS = 10
"""Windows for which there must be work before the use is judged: at the edges one window may be empty."""

BESIDE_THE_LIMIT = (
    "in_flight",
    "spend",
    "batch",
    "circuit_breaker",
    "hedge",
    "cache",
    "journal",
    "attempt_timeout",
    "timeout",
)
"""Options with which something else may hold a call, or a row that waits needs none."""


def law_g3_a_limit_is_used(book: Book, found: Finding) -> None:
    """At least 97 % of a limit is used while there is work for it, whichever task has the work."""
    for shared in budgets(book, found):
        runs = [run for run in book.runs if run.setting.get("budget") == shared.setting["budget"]]
        limit = _only_limit(shared, runs, book)
        if limit is None:
            found.undecided("something beside one limit of calls may have held them")
            continue
        starts = [call.start for call in shared.calls]
        place = 0
        for begin, end in _spans_of_work(runs, book.near(limit.per)):
            if end - begin < WINDOWS * limit.per:
                continue
            found.decided()
            while place < len(starts) and starts[place] < begin - book.moment:
                place += 1
            used = 0
            while place < len(starts) and starts[place] <= end + book.moment:
                place, used = place + 1, used + 1
            wanted = LEAST * limit.rate * (end - begin) / limit.per - limit.rate
            if used < wanted:
                what = (
                    f"{used} calls of {shared.name} start in {end - begin:.6f} s in which there was work all the time"
                )
                found.broken(f"{what}, and the limit is {limit}", end, shared.calls[place - 1].event if place else 0)


def _only_limit(shared: Shared, runs: list[Run], book: Book) -> Limit | None:
    if len(shared.limits) != 1 or shared.limits[0].unit != "calls" or book.said or book.faults:
        return None
    for run in runs:
        setting = run.setting
        if any(name in setting for name in BESIDE_THE_LIMIT) or setting.get("mode", "ordered") != "unordered":
            return None
        if (
            run.lookup
            or "capacity" not in setting
            or run.task.outcome == "killed"
            or setting.get("max_attempts", 1) > 1
        ):
            return None
    return shared.limits[0]


def _spans_of_work(runs: list[Run], moment: float) -> Iterator[tuple[float, float]]:
    """The spans in which at least one run has work that the limit alone holds."""
    edges: list[tuple[float, int]] = []
    for run in runs:
        for begin, end in _work_of(run):
            edges += [(begin, 1), (end, -1)]
    edges.sort(key=lambda edge: (edge[0], -edge[1]))
    busy, since, until = 0, -inf, -inf
    for at, change in edges:
        if not busy and at > until + moment:
            if until > since:
                yield since, until
            since = at
        busy += change
        until = at
    if until > since:
        yield since, until


def _work_of(run: Run) -> Iterator[tuple[float, float]]:
    """The spans in which a row of the run waits, and fewer calls run than its capacity allows."""
    changes: list[tuple[float, int, int]] = []
    for key, calls in run.calls_of.items():
        row = run.rows[key] if run.of_rows else run.rows_of[key][0]  # type: ignore[index]
        if row.at < calls[0].start:
            changes += [(row.at, 1, 0), (calls[0].start, -1, 0)]
    for call in run.calls:
        changes += [(call.start, 0, 1), (call.stopped, 0, -1)]
    changes.sort()
    capacity = run.setting["capacity"]
    waiting = running = 0
    since: float | None = None
    for at, waits, runs in changes:
        waiting, running = waiting + waits, running + runs
        works = waiting > 0 and running < capacity
        if works and since is None:
            since = at
        elif not works and since is not None:
            yield since, at
            since = None
