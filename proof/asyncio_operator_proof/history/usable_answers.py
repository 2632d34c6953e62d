"""What answers are known for a key: those that calls gave, within what a cache, or a journal, may hold.

The laws of lookups, caches, journals and rows read it. It judges nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator
from math import inf
from typing import Any, NamedTuple

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.parts import Call, Run, is_invalid

REMEMBERED = 100_000
"""Keys that a task remembers."""

CACHE_CLOCK = 0.001
"""Seconds: caches measure ages in whole milliseconds."""

FARTHEST = 100
"""Answers that are looked at for one that was surely taken: where there is none, none of more is either."""


class Answer(NamedTuple):
    """An answer for a key that a call gave, and when it came."""

    at: float
    call: Call
    value: Any


def answers_by_key(runs: Iterable[Run]) -> dict[Hashable, list[Answer]]:
    """The answers that calls of runs gave and that can be used, by key, in the order of time."""
    found: dict[Hashable, list[Answer]] = {}
    for run in runs:
        for call in run.calls:
            if call.outcome == "result" and call.is_aligned:
                for position, key in enumerate(call.keys):
                    value = call.answer_of(position)
                    if not is_invalid(value):
                        found.setdefault(key, []).append(Answer(call.stopped, call, value))
    for answers in found.values():
        answers.sort(key=lambda answer: answer.at)
    return found


class Scope:
    """The answers that a cache may hold: of one worker on the heap, of all workers on disk or in Redis."""

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs
        self.setting = runs[0].setting
        self.cache = self.setting.get("cache", {})
        self.heap = self.cache.get("store", "heap") == "heap"
        self.by_key = answers_by_key(runs)

    def answers(self, key: Hashable, until: float = inf) -> Iterator[Answer]:
        """The answers for a key that came until a time, the latest first."""
        found = self.by_key.get(key, [])
        for place in range(bisect_right(found, until, key=lambda answer: answer.at) - 1, -1, -1):
            yield found[place]

    def latest(self, key: Hashable, at: float) -> Answer | None:
        """The latest answer for a key that came until a time."""
        found = self.by_key.get(key, [])
        place = bisect_right(found, at, key=lambda answer: answer.at)
        return found[place - 1] if place else None

    def candidates(self, key: Hashable, begin: float, end: float) -> list[Answer]:
        """The answers that may be the current one between two times: the last certain one before, and what follows."""
        found = self.by_key.get(key, [])
        stop = bisect_right(found, end, key=lambda answer: answer.at)
        start = bisect_left(found, begin, hi=stop, key=lambda answer: answer.at)
        for _ in range(min(start, FARTHEST)):
            start -= 1
            call = found[start].call
            # Of a call and its copy the first answer was taken, and the other one may be later.
            if call.is_taken and not call.copies and call.copy_of is None:
                break
        return found[start:stop]


def scopes(book: Book) -> list[Scope]:
    """The scopes of lookups, in the order of their first runs."""
    made: list[Scope] = book.made.setdefault("scopes", [])
    if not made:
        made += _made_scopes(book)
    return made


def scope_of(book: Book, run: Run) -> Scope:
    """The scope of a run of lookups."""
    made: dict[Run, Scope] = book.made.setdefault("scope_of", {})
    if not made:
        made.update((one, scope) for scope in scopes(book) for one in scope.runs)
    return made[run]


def _made_scopes(book: Book) -> list[Scope]:
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in book.runs:
        if run.of_rows:
            continue
        cache = run.setting.get("cache")
        if cache is None:
            group: tuple[object, ...] = ("task", run.lookup, run.task.name)
        elif cache.get("store", "heap") == "heap":
            group = ("worker", run.lookup, run.task.worker)
        else:
            group = ("all", run.lookup)
        groups.setdefault(group, []).append(run)
    return [Scope(runs) for runs in groups.values()]


class Kept:
    """The answers of all runs that name one journal, by key, in the order of time."""

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs
        self.answers = answers_by_key(runs)

    def until(self, key: Hashable, at: float) -> list[Answer]:
        """The latest answers for a key that came until a time, the last one last."""
        found = self.answers.get(key, [])
        stop = bisect_right(found, at, key=lambda answer: answer.at)
        return found[max(0, stop - FARTHEST) : stop]


def journals(book: Book) -> list[Kept]:
    """The journals of the history."""
    made: list[Kept] = book.made.setdefault("journals", [])
    if not made:
        made += _made_journals(book)
    return made


def _made_journals(book: Book) -> list[Kept]:
    groups: dict[Any, list[Run]] = {}
    for run in book.runs:
        if "journal" in run.setting and not run.of_rows:
            groups.setdefault(run.setting["journal"].get("name"), []).append(run)
    return list(map(Kept, groups.values()))


def lifetime(scope: Scope, *, missing: bool) -> float:
    """Seconds for which the cache of a scope lets a task use an answer that has just come, without a call."""
    cache = scope.cache
    written = cache.get("missing_ttl") if missing else None
    written = cache.get("expire_after_write") if written is None else written
    lives = (written, cache.get("expire_after_access"), cache.get("refresh_after"))
    return min((life for life in lives if life is not None), default=inf)
