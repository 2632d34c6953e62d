"""Laws of caches (L4 to L6): how long an answer lives, which one goes first, and what is refreshed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from math import inf

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.parts import Call, Out, Row, Run, first_outs, is_invalid
from asyncio_operator_proof.history.report import Finding
from asyncio_operator_proof.history.same_keys import text_of
from asyncio_operator_proof.history.sweeps import distinct_between
from asyncio_operator_proof.history.usable_answers import CACHE_CLOCK, Scope, scopes

MOST_ROWS = 1000
"""Rows with one key, before a refresh, that are looked at for the one that had an old answer."""


def _hits(scope: Scope, *sources: str) -> list[tuple[Run, Row, Out]]:
    return [one for one in first_outs(scope.runs) if one[2].source in sources and one[1].key is not None]


def _caches(book: Book) -> list[Scope]:
    return [scope for scope in scopes(book) if "cache" in scope.setting]


def _seen(book: Book, found: Finding) -> list[Scope]:
    """Caches of which it is seen what came into them: a row without a source may have had its answer from a journal."""
    seen = []
    for scope in _caches(book):
        if "journal" in scope.setting and any(out.source is None for _, _, out in first_outs(scope.runs)):
            found.undecided("an answer in the cache may come from the journal, and rows do not say their source")
        else:
            seen.append(scope)
    return seen


def _from_journal(scope: Scope) -> dict[Hashable, list[tuple[Row, Out]]]:
    """By key, the rows whose answers came from a journal: they may have brought them into the cache."""
    found: dict[Hashable, list[tuple[Row, Out]]] = {}
    for _, row, out in _hits(scope, "journal"):
        found.setdefault(row.key, []).append((row, out))
    return found


def law_l4_a_full_cache_drops_the_least_recently_used(book: Book, found: Finding) -> None:
    """An answer is not served from a cache that has taken `max_rows` other keys since the last use of its own, save to
    a task that called for the key itself and remembers (law L13)."""
    for scope in _seen(book, found):
        most = scope.cache.get("max_rows")
        if most is None or not scope.heap:
            continue
        writes, hits, spans = _since_last_uses(scope, _hits(scope, "cache"), book)
        called = {run: {key for call in run.calls for key in call.keys} for run in scope.runs}
        for (run, row, out), others in zip(hits, distinct_between(writes, spans), strict=True):
            found.decided()
            remembered = run.setting.get("remember") and row.key in called[run]
            if others >= most and not remembered:
                what = f"row {row.row} of {run.name} has an answer from the cache for key {text_of(row.key)}, and"
                what = f"{what} {others} other keys were written since, of {most} that fit"
                found.broken(what, out.at, row.event, out.event)


Hit = tuple[Run, Row, Out]


def _since_last_uses(
    scope: Scope, hits: list[Hit], book: Book
) -> tuple[list[tuple[float, Hashable]], list[Hit], list[tuple[float, float]]]:
    """Writes that surely took place, by time; hits; and the time of each from the last possible use of its key."""
    misses = scope.cache.get("cache_missing", True)
    writes: list[tuple[float, Hashable]] = []
    uses: dict[Hashable, list[tuple[float, float, Hit | None]]] = {}
    for key, answers in scope.by_key.items():
        uses[key] = [(answer.at, answer.at, None) for answer in answers]
        writes += [(one.at, key) for one in answers if one.call.is_taken and (misses or one.value not in (None, []))]
    for key, came in _from_journal(scope).items():
        uses.setdefault(key, []).extend((row.at, out.at, None) for row, out in came)
    for hit in hits:
        uses.setdefault(hit[1].key, []).append((hit[1].at, hit[2].at, hit))
    for run in scope.runs:
        for row in run.rows.values():
            if not row.outs:
                # It may have been answered from the cache, and its task ended before it left.
                uses.setdefault(row.key, []).append((row.at, run.task.end, None))
    some: list[Hit] = []
    spans: list[tuple[float, float]] = []
    for of_key in uses.values():
        of_key.sort(key=lambda use: use[0])
        latest = None
        for begin, end, use in of_key:
            answer = None if use is None else scope.latest(use[1].key, end)
            if use is not None and latest is not None and answer is not None and answer.at <= begin:
                some.append(use)
                spans.append((latest + book.moment, begin - book.moment))
            latest = end if latest is None else max(latest, end)
    writes.sort(key=lambda write: write[0])
    return writes, some, spans


def law_l5_an_answer_expires(book: Book, found: Finding) -> None:
    """At `expire_after_write` after it came, or `expire_after_access` after its last use, an answer is gone."""
    for scope in _seen(book, found):
        hits = _hits(scope, "cache")
        written, used = scope.cache.get("expire_after_write"), scope.cache.get("expire_after_access")
        uses: dict[object, float] = {}
        journal = _from_journal(scope)
        # A row may have been answered from the cache, and its task ended before it left.
        unseen = [(run, row) for run in scope.runs for row in run.rows.values() if not row.outs]
        unseen.sort(key=lambda one: one[1].at, reverse=True)
        for run, row, out in sorted(hits, key=lambda hit: hit[1].at):
            while unseen and unseen[-1][1].at <= out.at:
                other, use = unseen.pop()
                uses[use.key] = max(other.task.end, uses.get(use.key, -inf))
            latest = scope.latest(row.key, out.at + book.moment)
            if latest is None:
                continue
            found.decided()
            # An answer from a journal may have come into the cache as late as its row left.
            came = [min(other.at, out.at) for one, other in journal.get(row.key, ()) if one.at <= out.at]
            since = max([latest.at, *came])
            # A miss has a time of its own, if one is given (L3).
            ttl = None if out.status == "missing" and scope.cache.get("missing_ttl") else written
            _judge(run, row, out, since, ttl, "expire_after_write", latest.call, book, found)
            if scope.heap:
                last = max(since, uses.get(row.key, since))
                _judge(run, row, out, last, used, "expire_after_access", latest.call, book, found)
            uses[row.key] = max(out.at, uses.get(row.key, out.at))


def _judge(
    run: Run, row: Row, out: Out, since: float, ttl: float | None, name: str, call: Call, book: Book, found: Finding
) -> None:
    if ttl is not None and row.at - since >= ttl + CACHE_CLOCK + book.near(ttl):
        what = f"row {row.row} of {run.name} has an answer from the cache for key {text_of(row.key)} after"
        found.broken(f"{what} {row.at - since:.6f} s, and {name} is {ttl}", out.at, *call.events, row.event, out.event)


def law_l5_the_cache_has_the_latest_answer(book: Book, found: Finding) -> None:
    """A row from the cache has the latest answer for its key, not an older one, and not one of another key."""
    for scope in _seen(book, found):
        journal = _from_journal(scope)
        for run, row, out in _hits(scope, "cache", "stale"):
            begin = row.at - book.moment if scope.heap else 0.0
            answers = scope.candidates(row.key, begin, out.at + book.moment)
            if out.answer is None or not answers or any(answer.value is None for answer in answers):
                found.undecided("answers are not recorded")
                continue
            found.decided()
            if any(one.at <= out.at and other.answer == out.answer for one, other in journal.get(row.key, ())):
                continue
            if all(answer.value != out.answer for answer in answers):
                what = f"row {row.row} of {run.name} has an answer from the cache that was not the current one for"
                events = [answer.call.end_event or 0 for answer in answers[-3:]]
                found.broken(f"{what} key {text_of(row.key)}", out.at, *events, row.event, out.event)


def law_l6_an_old_answer_is_refreshed(book: Book, found: Finding) -> None:
    """A hit older than `refresh_after` starts a call in the background; a refresh does not come earlier."""
    for scope in _caches(book):
        after = scope.cache.get("refresh_after")
        if after is None or not scope.heap:
            continue
        newest: dict[Hashable, tuple[float, float]] = {}
        for run in scope.runs:
            for call in run.calls:
                if call.refresh is True and call.copy_of is None:
                    _judge_refresh(scope, run, call, after, book, found)
                for key in call.keys:
                    start, stopped = newest.get(key, (-inf, -inf))
                    newest[key] = max(start, call.start), max(stopped, call.stopped)
        for run, row, out in _hits(scope, "cache"):
            latest = scope.latest(row.key, out.at + book.moment)
            if latest is None or row.at - latest.at < after + CACHE_CLOCK + book.near(after):
                continue
            if run.task.outcome != "finished" or any(name in run.setting for name in ("budget", "circuit_breaker")):
                found.undecided("a refresh may have been refused, or have waited until its task ended")
                continue
            found.decided()
            # A call that runs brings a new answer too, whichever task makes it.
            start, stopped = newest.get(row.key, (-inf, -inf))
            if start < latest.at and stopped < row.at:
                what = f"row {row.row} of {run.name} has an answer for key {text_of(row.key)} that is"
                what = f"{what} {row.at - latest.at:.6f} s old, and it was not refreshed after {after}"
                found.broken(what, out.at, *latest.call.events, row.event, out.event)


def _judge_refresh(scope: Scope, run: Run, call: Call, after: float, book: Book, found: Finding) -> None:
    """A refresh may wait for a place, while another task brings a new answer: what counts is how old the answer was
    that a row of its task had."""
    if "journal" in run.setting:
        found.undecided("an answer in the cache may come from the journal")
        return
    for key in call.keys:
        oldest = -inf
        rows = run.rows_of.get(key, [])
        before = bisect_right(rows, call.event, key=lambda row: row.event)
        for row in reversed(rows[max(0, before - MOST_ROWS) : before]):
            oldest = max(oldest, _oldest(scope, row, call.start, book))
            if oldest >= after - CACHE_CLOCK - book.near(after):
                break
        is_old = oldest >= after - CACHE_CLOCK - book.near(after)
        if before > MOST_ROWS and not is_old:
            found.undecided("too many rows have the key")
            continue
        found.decided()
        if not is_old:
            had = "none had its answer from the cache" if oldest == -inf else f"they are at most {oldest:.6f} s old"
            what = f"call {call.id!r} of {run.name} refreshes key {text_of(key)}, and of the answers of its rows"
            found.broken(f"{what} {had}: refresh_after is {after}", call.start, call.event)


def _oldest(scope: Scope, row: Row, until: float, book: Book) -> float:
    """How old the answer may have been that a row had from the cache until a time; -inf if it had none."""
    out = row.outs[0] if row.outs else None
    if out is not None and out.source not in ("cache", None):
        return -inf
    until = until if out is None else min(until, out.at)
    answers = [one for one in scope.candidates(row.key, row.at - book.moment, until) if one.at <= until]
    return until - answers[0].at if answers else -inf


def law_l6_a_stale_answer_replaces_a_failure(book: Book, found: Finding) -> None:
    """An expired answer is served only with `stale_if_error`, and only after a lookup of its key failed."""
    for scope in _caches(book):
        for run, row, out in _hits(scope, "stale"):
            if not scope.cache.get("stale_if_error"):
                found.decided()
                what = f"row {row.row} of {run.name} has a stale answer, and stale_if_error is not set"
                found.broken(what, out.at, row.event, out.event)
                continue
            begin, end = row.at - book.moment, out.at + book.moment
            calls = list(run.calls_between(row.key, begin, end))
            timeout = run.setting.get("timeout")
            begun = min((call.begun for call in calls), default=begin)
            late = timeout and end >= min(begin, begun) + timeout - book.near(timeout)
            if "circuit_breaker" in run.setting or "budget" in run.setting or late:
                found.undecided("a row may fail without a call that failed")
                continue
            found.decided()
            attempt_timeout = run.setting.get("attempt_timeout") or inf
            if not any(_may_have_failed(call, row.key, attempt_timeout, begin, end) for call in calls):
                what = f"row {row.row} of {run.name} has a stale answer, and no call for key {text_of(row.key)} failed"
                found.broken(what, out.at, row.event, out.event)


def _may_have_failed(call: Call, key: Hashable, attempt_timeout: float, begin: float, end: float) -> bool:
    """Whether a call failed for a key between two times: by its end, or by a timeout after which it ran on."""
    if call.stopped > end:
        # The limit of a part of a batch runs from the start of the whole, which is not before `begun`.
        return begin <= call.start + attempt_timeout and call.begun + attempt_timeout <= end
    if call.stopped < begin:
        return False
    if call.outcome != "result" or call.may_ask_again or call.answers is None or not call.is_aligned:
        return True
    return is_invalid(call.answers[call.keys.index(key)])
