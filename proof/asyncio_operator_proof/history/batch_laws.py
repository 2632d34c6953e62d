"""Laws of batches (B)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from math import inf

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.key_flights import NEVER_SPLIT, number_of, splits
from asyncio_operator_proof.history.parts import Call, Run
from asyncio_operator_proof.history.report import Finding
from asyncio_operator_proof.history.same_keys import text_of


def law_b1_a_batch_has_at_most_max_size_keys(book: Book, found: Finding) -> None:
    """A batch is called when `max_size` values wait: it has no more, and without `batch` a call has one."""
    for run in book.runs:
        if not run.whole_calls:
            continue
        batch = run.setting.get("batch")
        most = (batch or {}).get("max_size", inf) if batch is not None else 1
        for call in run.calls:
            found.decided()
            if len(call.keys) > most:
                what = f"call {call.id!r} of {run.name} has {len(call.keys)} keys, and max_size is {most}"
                found.broken(what, call.start, call.event)


def law_b3_a_list_of_another_length_fails_its_keys(book: Book, found: Finding) -> None:
    """A result list of another length than the batch is an error of every key, and is neither split nor retried."""
    for run in book.runs:
        for call in run.calls:
            if call.outcome != "result" or call.answers is None:
                continue
            found.decided()
            if call.is_aligned:
                continue
            for key in call.keys:
                following = run.next_call(key, call)
                if following is not None and not _may_be_another_lookup(run, key, call, following):
                    what = f"key {text_of(key)} of {run.name} is asked for again after {len(call.answers)} answers for"
                    found.broken(f"{what} {len(call.keys)} keys", following.start, *call.events, following.event)
                _judge_rows_of(run, key, call, found)


def _judge_rows_of(run: Run, key: Hashable, call: Call, found: Finding) -> None:
    rows = run.rows_with(key)
    if len(rows) != 1 or len(run.calls_of[key]) != 1 or not rows[0].outs:
        return
    out = rows[0].outs[0]
    if out.status in ("found", "missing") and out.source in ("call", None) and run.setting.get("on_error") != "return":
        what = f"row {rows[0].row} of {run.name} has a result of a call with {len(call.answers or ())} answers for"
        found.broken(f"{what} {len(call.keys)} keys", out.at, *call.events, out.event)


def law_b4_a_failing_batch_is_halved(book: Book, found: Finding) -> None:
    """A failing batch is called again in halves. An error that no key caused fails all keys, or retries the batch."""
    for run in book.runs:
        if run.setting.get("asks_per_batch"):
            found.undecided("a key may be in both halves")
            continue
        for call in run.calls:
            if call.outcome != "error" or len(call.keys) < 2 or call.copies or call.copy_of is not None:
                continue
            if splits(call):
                _judge_halves(run, call, found)
            elif call.error not in NEVER_SPLIT:
                _judge_whole(run, call, found)


def _judge_halves(run: Run, call: Call, found: Finding) -> None:
    setting, size = run.setting, len(call.keys)
    retried = setting.get("max_attempts", 1) > 1
    if "circuit_breaker" in setting or (retried and setting.get("attempt_timeout")):
        found.undecided("a half may have been refused, or cut before it started")
        return
    found.decided()
    # Keys whose deadline has passed are in no half, so the halves are of those that are left.
    halves = (
        [set(call.keys)] if setting.get("timeout") else [set(call.keys[: size // 2 + 1]), set(call.keys[size // 2 :])]
    )
    if size % 2 == 0 and len(halves) == 2:
        halves[0].discard(call.keys[size // 2])
    # Halves may wait until their time ends. One that would pass a spend limit is split uncalled, or ends (law G6).
    ends = setting.get("timeout") or setting.get("attempt_timeout") or setting.get("spend")
    least = 1 if ends else size // 2
    lost = []
    for key in call.keys:
        after = run.next_call(key, call)
        if after is None:
            lost.append(key)
        if after is None or _may_be_another_lookup(run, key, call, after):
            continue
        if not least <= len(after.keys) < size or not any(half.issuperset(after.keys) for half in halves):
            what = f"call {call.id!r} of {run.name} failed, and key {text_of(key)} is called again with"
            found.broken(
                f"{what} {len(after.keys)} keys that are no half of its {size}", after.start, *call.events, after.event
            )
            return
    hidden = setting.get("on_error", "fail") != "fail"
    if hidden and lost and not ends and run.task.outcome == "finished":
        what = f"call {call.id!r} of {run.name} failed with {size} keys, and key {text_of(lost[0])}, for one, ended"
        found.broken(f"{what} without a half", call.stopped, *call.events)


def _may_be_another_lookup(run: Run, key: Hashable, call: Call, after: Call) -> bool:
    """Whether a later call for a key may be for another row than the first was for."""
    if run.of_rows:
        return False
    if after.refresh is True:
        return True
    before, number = number_of(call, key), number_of(after, key)
    if before is not None and number is not None:
        return number == 1 and (number != before or not splits(call))
    refreshes = after.refresh is None and "refresh_after" in run.setting.get("cache", {})
    return refreshes or bisect_right(run.rows_of.get(key, []), after.event, key=lambda row: row.event) != 1


def _judge_whole(run: Run, call: Call, found: Finding) -> None:
    """The next call of each key is that of a retry: there is none where there are no retries."""
    if run.setting.get("max_attempts", 1) > 1 and call.retryable is not False:
        found.undecided("an error that no key caused may be retried")
        return
    found.decided()
    for key in call.keys:
        after = run.next_call(key, call)
        if after is not None and not _may_be_another_lookup(run, key, call, after):
            what = f"call {call.id!r} of {run.name} failed by no fault of a key, and key {text_of(key)} is called again"
            found.broken(what, after.start, *call.events, after.event)
            return
