"""Laws of lookups (L): which key is called, what is shared, remembered and cached, and whose answer a row gets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import takewhile
from math import inf

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.known_flights import TIMER
from asyncio_operator_proof.history.parts import Call, Out, Row, Run, first_outs, may_be_refused
from asyncio_operator_proof.history.report import Finding
from asyncio_operator_proof.history.same_keys import text_of
from asyncio_operator_proof.history.usable_answers import CACHE_CLOCK, REMEMBERED, Answer, Scope, lifetime, scopes

REMEMBERED_LONGER = 1.05
"""By this factor an answer may be remembered for longer: answers of about the same time are forgotten together."""

MAY_SHARE_MORE = ("journal", "budget", "circuit_breaker", "asks_per_batch")
"""Options with which a row may share an answer, or a refusal, that came from no call."""


def law_l1_a_key_is_looked_up_for_a_row(book: Book, found: Finding) -> None:
    """Only keys of rows are called, and never one that is null in any part: such a row is a miss that cost nothing."""
    for run in book.runs:
        if run.of_rows:
            continue
        for call in run.calls:
            found.decided()
            for key in call.keys:
                rows = run.rows_of.get(key)
                if key is None:
                    found.broken(f"call {call.id!r} of {run.name} has a null key", call.start, call.event)
                elif run.rows and (rows is None or rows[0].event > call.event):
                    what = f"call {call.id!r} of {run.name} asks for key {text_of(key)}, which no row had"
                    found.broken(what, call.start, call.event)
        for row in run.rows.values():
            # Without calls it is not known whether the run is one of a function, whose rows need no keys.
            if row.key is None and row.outs and (run.calls or row.outs[0].source is not None):
                out = row.outs[0]
                if out.status == "found" or out.attempts or out.source not in ("none", None):
                    what = f"row {row.row} of {run.name} has a null key, and left as {out.status} from {out.source}"
                    found.broken(f"{what} after {out.attempts} attempts", out.at, row.event, out.event)


def law_l1_an_answer_has_a_source(book: Book, found: Finding) -> None:
    """A row says truly where its answer came from: a call of its key, the cache, a shared call, or nowhere."""
    for scope in scopes(book):
        for run, row, out in first_outs(scope.runs):
            if row.key is None or out.status not in ("found", "missing"):
                continue
            latest = scope.latest(row.key, out.at + book.moment)
            match out.source:
                case "call" | "shared" if out.source == "call" or _gives_own_answers(scope):
                    right = any(answer.call.run is run for answer in _while_inside(scope, row, out, book))
                case "shared":
                    # A row may share what another had from the journal, from a cache that workers share, or from an
                    # older answer when a circuit breaker, or a budget, refused the call.
                    asked = latest is not None and _may_be_called(run, row, out.at + book.moment)
                    right = asked or "journal" in run.setting or not scope.heap
                case "cache" | "stale":
                    if latest is None and not scope.heap:
                        found.undecided("an answer in a store that outlives workers may be older than the history")
                        continue
                    right = latest is not None and "cache" in run.setting
                case "none":
                    right = False
                case _:
                    if not _needs_a_call(run) or any(row.key in one.calls_of for one in scope.runs):
                        continue
                    right = out.status == "missing"
            found.decided()
            if not right:
                what = f"row {row.row} of {run.name} says that its answer for key {text_of(row.key)} is from"
                what = f"{what} {out.source!r}, where it cannot be from"
                if out.source is None:
                    what = f"row {row.row} of {run.name} is found, and no call was made for key {text_of(row.key)}"
                found.broken(what, out.at, row.event, out.event)


def _needs_a_call(run: Run) -> bool:
    """Whether a row is found by a call alone, of its worker: not by a hook, a journal or a store of all workers."""
    setting = run.setting
    hooked = setting.get("on_error") in ("return", "skip") or "circuit_breaker" in setting
    stored = setting.get("cache", {}).get("store", "heap") != "heap" or "journal" in setting
    return bool(run.calls) and not hooked and not stored


def _gives_own_answers(scope: Scope) -> bool:
    """Whether a row that shares an answer has that of a call which ended while it was inside."""
    remembers = scope.setting.get("remember")
    return not (remembers or "journal" in scope.setting or not scope.heap or scope.cache.get("stale_if_error"))


def _may_be_called(run: Run, row: Row, until: float) -> bool:
    """Whether a call for the key of a row was made, or may have been refused, until a time."""
    called = any(call.start <= until for call in run.calls_of.get(row.key, ())[:1])
    return called or run.setting.get("on_spent") == "null" or may_be_refused(run, until)


def _while_inside(scope: Scope, row: Row, out: Out, book: Book) -> Iterator[Answer]:
    """The answers for the key of a row that came while it was inside, the latest first."""
    answers = scope.answers(row.key, out.at + book.moment)
    return takewhile(lambda answer: answer.at >= row.at - book.moment, answers)


def law_l2_concurrent_lookups_share_a_call(book: Book, found: Finding) -> None:
    """While a call for a key runs no other one starts for it in the task, copies apart."""
    for run in book.runs:
        if run.of_rows:
            continue
        if run.setting.get("asks_per_batch"):
            found.undecided("each batch of rows asks for its keys")
            continue
        for key, calls in run.calls_of.items():
            before = None
            for call in calls:
                if call.copy_of is not None:
                    continue
                found.decided()
                overlap = before is not None and call.start < before.stopped - book.moment
                if before is not None and overlap and not _was_left(before, call, run.limits, book):
                    what = f"call {call.id!r} of {run.name} asks for key {text_of(key)} while call {before.id!r} does"
                    found.broken(what, call.start, *before.events, call.event)
                before = call if before is None or call.stopped >= before.stopped else before


def _was_left(before: Call, call: Call, limits: list[float], book: Book) -> bool:
    """Whether all who waited for the earlier call may have left it, so that no caller needs it."""
    if before.outcome in ("cancelled", "timed_out", None):
        return True
    return any(call.start >= before.begun + limit - book.moment for limit in limits)


def law_l2_all_who_wait_get_the_answer(book: Book, found: Finding) -> None:
    """A row whose source is a call, its own or a shared one, has the answer that the call gave for its key."""
    for scope in scopes(book):
        for run, row, out in first_outs(scope.runs):
            if out.source not in ("call", "shared") or out.status not in ("found", "missing") or row.key is None:
                continue
            if out.source == "shared" and ("journal" in run.setting or not scope.heap):
                found.undecided("a row may share an answer of the journal, or of a cache that workers share")
                continue
            if out.source == "call":
                answers = _while_inside(scope, row, out, book)
            else:
                # The latest answer when the row was read, if it is remembered, and what came while it was inside.
                candidates = scope.candidates(row.key, row.at - book.moment, out.at + book.moment)
                least = row.at - _longest(scope, out, book)
                answers = (one for one in reversed(candidates) if _taken_at_most(one) >= least)
            # A row that shares a call which failed may share an old answer, which another task of the worker had.
            stale = out.source == "shared" and scope.cache.get("stale_if_error")
            _judge_answer(run, row, out, (one for one in answers if stale or one.call.run is run), found)


def _judge_answer(run: Run, row: Row, out: Out, answers: Iterator[Answer], found: Finding) -> None:
    seen: list[int] = []
    wanted = [] if out.status == "missing" and out.answer is None else out.answer
    for answer in answers:
        if answer.value is None:
            break
        if answer.value == wanted:
            found.decided()
            return
        seen.append(answer.call.end_event or 0)
    else:
        if not seen:
            found.undecided("no call of the task gave an answer for the key then")
            return
        if wanted is not None:
            found.decided()
            what = f"row {row.row} of {run.name} has an answer that no call gave then for key {text_of(row.key)}"
            found.broken(what, out.at, row.event, out.event, *seen[:3])
            return
    found.undecided("answers are not recorded")


def law_l2_a_row_shares_a_call_that_runs(book: Book, found: Finding) -> None:
    """Where nothing is remembered, a row shares a call of its task for its key that runs while the row is inside."""
    _judge_sharing(book, found, remembers=False)


def law_l12_an_answer_is_remembered_for_its_time(book: Book, found: Finding) -> None:
    """A row that shares no call that runs has an answer of the last `remember` seconds, and no error."""
    _judge_sharing(book, found, remembers=True)


def _judge_sharing(book: Book, found: Finding, *, remembers: bool) -> None:
    for scope in scopes(book):
        setting = scope.setting
        remember = setting.get("remember", 0.0)
        if bool(remember) is not remembers:
            continue
        for run, row, out in first_outs(scope.runs):
            if out.source != "shared" or row.key is None:
                continue
            if not scope.heap or any(name in setting for name in MAY_SHARE_MORE):
                found.undecided("a row may share what no call of its task gave")
                continue
            found.decided()
            begin, end = row.at - book.moment, out.at + book.moment
            if any(run.calls_between(row.key, begin, end)) or _may_wait(run, row, out, book):
                continue
            if out.status == "failed" and any(call.is_malformed for call in run.calls_of.get(row.key, ())):
                # That an answer is of no use may be found when its columns are built, after others have shared it.
                continue
            latest = scope.latest(row.key, end)
            if out.status in ("found", "missing") and latest is not None and remembers:
                if row.at - _taken_at_most(latest) <= _longest(scope, out, book):
                    continue
            elif out.status not in ("found", "missing", "failed", "timed_out"):
                continue
            what = (
                f"row {row.row} of {run.name} is {out.status!r} and shares a call for key {text_of(row.key)}, and none"
            )
            what = f"{what} runs while it is inside" + (
                f", nor was an answer remembered for {remember} s" if remember else ""
            )
            found.broken(what, out.at, row.event, out.event)


def _longest(scope: Scope, out: Out, book: Book) -> float:
    """Seconds for which a row may share an answer that has come. With `stale_if_error` it may be of any age. A cache
    shortens the time (L13)."""
    if scope.cache.get("stale_if_error"):
        return inf
    longest: float = scope.setting.get("remember", 0.0) * REMEMBERED_LONGER
    if "cache" in scope.setting:
        longest = min(longest, lifetime(scope, missing=out.status == "missing") + CACHE_CLOCK)
    return longest + book.near(longest)


def _taken_at_most(answer: Answer) -> float:
    """When an answer had surely come into memory: with the others of its batch of rows, which had been read by then."""
    run, start = answer.call.run, answer.call.start
    place = bisect_right(run.left, start, key=lambda one: one[0])
    return max(answer.at, run.left[place - 1][1] if place else -inf)


def _may_wait(run: Run, row: Row, out: Out, book: Book) -> bool:
    """Whether a lookup of the key may have ended at a limit while it waited for a retry, or for the place of a half."""
    limit = max(run.limits, default=0.0)
    failed = out.status in ("failed", "timed_out") or run.setting.get("cache", {}).get("stale_if_error")
    if not limit or not failed:
        return False
    calls = run.calls_of.get(row.key, [])
    place = bisect_right(calls, out.at + book.moment, key=lambda call: call.start)
    return place > 0 and row.at <= calls[place - 1].start + limit + TIMER + book.near(limit)


def law_l3_an_error_is_no_miss(book: Book, found: Finding) -> None:
    """An error is never taken for a miss, and never kept; misses are cached only if `cache_missing` says so."""
    for scope in scopes(book):
        ttl = scope.cache.get("missing_ttl")
        for run, row, out in first_outs(scope.runs):
            if row.key is None or out.status != "missing":
                continue
            if out.source in ("call", "shared") or (out.source is None and "cache" not in run.setting):
                found.decided()
                calls = [call for call in run.calls_of.get(row.key, ()) if call.stopped <= out.at + book.moment]
                if (
                    calls
                    and all(call.outcome in ("error", "timed_out") for call in calls)
                    and "journal" not in run.setting
                    and not (out.source == "shared" and _may_be_stale(scope, row, out, book))
                ):
                    what = f"row {row.row} of {run.name} is a miss, and every call for key {text_of(row.key)} failed"
                    found.broken(what, out.at, *calls[-1].events, out.event)
            elif out.source == "cache":
                found.decided()
                if scope.cache.get("cache_missing") is False:
                    what = f"row {row.row} of {run.name} is a miss from the cache, which keeps none"
                    found.broken(what, out.at, row.event, out.event)
                elif ttl is not None:
                    _judge_age(scope, run, row, out, ttl, "missing_ttl", book, found)


def _may_be_stale(scope: Scope, row: Row, out: Out, book: Book) -> bool:
    """Whether a row may share an older answer that was served because the call failed."""
    return bool(scope.cache.get("stale_if_error")) and scope.latest(row.key, out.at + book.moment) is not None


def _judge_age(scope: Scope, run: Run, row: Row, out: Out, ttl: float, name: str, book: Book, found: Finding) -> None:
    """Whether any answer was young enough at some time between the reading of the row and its output."""
    latest = scope.latest(row.key, out.at + book.moment)
    if latest is None:
        return
    age = row.at - latest.at
    if age >= ttl + CACHE_CLOCK + book.near(ttl):
        what = f"row {row.row} of {run.name} has an answer from the cache for key {text_of(row.key)} that is"
        found.broken(f"{what} {age:.6f} s old, and {name} is {ttl}", out.at, *latest.call.events, row.event, out.event)


def law_l9_no_rows_are_a_miss(book: Book, found: Finding) -> None:
    """An answer without rows is a miss, and one with rows is none."""
    for run, row, out in first_outs(book.runs):
        if run.of_rows or out.answer is None or out.status not in ("found", "missing"):
            continue
        found.decided()
        if (out.answer == []) != (out.status == "missing"):
            what = f"row {row.row} of {run.name} is {out.status!r}, and its answer is {text_of(out.answer)}"
            found.broken(what, out.at, out.event)


def law_l10_a_batch_has_no_key_twice(book: Book, found: Finding) -> None:
    """Keys that are the same are one key, in a batch too; but not where each batch of rows asks for its keys."""
    for run in book.runs:
        if run.of_rows or "asks_per_batch" in run.setting:
            continue
        for call in run.calls:
            found.decided()
            if len(set(call.keys)) < len(call.keys):
                twice = next(key for key in call.keys if call.keys.count(key) > 1)
                found.broken(f"call {call.id!r} of {run.name} has key {text_of(twice)} twice", call.start, call.event)


def law_l12_a_task_remembers_what_was_answered(book: Book, found: Finding) -> None:
    """Without a cache a key that was answered in the last `remember` seconds is not asked again in the task."""
    for scope in scopes(book):
        remember = scope.setting.get("remember")
        if not remember or "cache" in scope.setting:
            continue
        most = scope.setting.get("remember_rows", REMEMBERED)
        for run in scope.runs:
            ends = sorted(call.stopped for call in run.calls if call.outcome == "result" for _ in call.keys)
            for call in run.calls:
                if call.copy_of is None:
                    _judge_memory(scope, call, remember, most, ends, book, found)


def _judge_memory(
    scope: Scope, call: Call, remember: float, most: int, ends: list[float], book: Book, found: Finding
) -> None:
    for key in call.keys:
        found.decided()
        answer = scope.latest(key, call.start - book.moment)
        if answer is None or not answer.call.is_taken or call.start - answer.at >= remember - book.near(remember):
            continue
        # The key itself, and since then at most as many others as there were answers.
        if bisect_left(ends, call.start) - bisect_left(ends, answer.at) <= most:
            what = f"call {call.id!r} of {call.run.name} asks for key {text_of(key)}, which was answered"
            found.broken(f"{what} {call.start - answer.at:.6f} s before", call.start, *answer.call.events, call.event)
