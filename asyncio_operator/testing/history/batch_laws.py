"""Laws of batches (B) and of hedged calls (H)."""

from __future__ import annotations

from collections.abc import Hashable
from math import inf

from asyncio_operator.testing.history.book import Book
from asyncio_operator.testing.history.key_flights import NEVER_SPLIT, number_of, splits
from asyncio_operator.testing.history.parts import Call, Run
from asyncio_operator.testing.history.report import Finding
from asyncio_operator.testing.history.same_keys import text_of


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


def law_b1_a_batch_waits_no_longer_than_linger(book: Book, found: Finding) -> None:
    """A key that waits alone is called `linger` after it came, if there is room for a call."""
    for run in book.runs:
        setting = run.setting
        linger = (setting.get("batch") or {}).get("linger")
        if linger is None or run.lookup or "capacity" not in setting or not run.whole_calls:
            continue
        if any(name in setting for name in ("limits", "budget", "circuit_breaker", "journal", "buffer", "hedge")):
            continue
        if setting.get("mode") == "key_ordered" or setting.get("cache", {}).get("store", "heap") != "heap":
            continue
        _judge_linger(run, linger, book, found)


def _judge_linger(run: Run, linger: float, book: Book, found: Finding) -> None:
    """Judges keys that came while nothing ran and nothing was inside, so that only `linger` can hold them."""
    calls, place = run.calls, 0
    busy_until, latest_row = -inf, -inf
    for row in run.rows.values():
        while place < len(calls) and calls[place].event < row.event:
            busy_until = max(busy_until, calls[place].stopped)
            place += 1
        # The first call of all waits for the service to be opened too.
        alone = (
            -inf < busy_until < row.at - book.moment
            and place < len(calls)
            and row.at - latest_row > linger + book.moment
        )
        latest_row = inf if row.left is None else max(latest_row, row.left)
        key: Hashable = row.row if run.of_rows else row.key
        # A row that was answered from a cache waits for no call.
        if alone and row.outs and row.outs[-1].event < calls[place].event:
            continue
        if alone and calls[place].keys.count(key) and run.calls_of[key][0] is calls[place]:
            found.decided()
            if calls[place].start > row.at + linger + book.near(linger):
                what = f"row {row.row} of {run.name} waited {calls[place].start - row.at:.6f} s for its call alone"
                found.broken(f"{what}, and linger is {linger}", calls[place].start, row.event, calls[place].event)


def law_b3_a_list_of_another_length_fails_its_keys(book: Book, found: Finding) -> None:
    """A result list of another length than the batch is an error of every key, and is neither split nor retried."""
    for run in book.runs:
        for call in run.calls:
            if call.outcome != "result" or call.answers is None:
                continue
            found.decided()
            if len(call.answers) == len(call.keys):
                continue
            for key in call.keys:
                following = run.next_call(key, call)
                if following is not None and not _may_be_another_lookup(run, key, call, following):
                    what = f"key {text_of(key)} of {run.name} is asked for again after {len(call.answers)} answers for"
                    found.broken(f"{what} {len(call.keys)} keys", following.start, *call.events, following.event)
                _judge_rows_of(run, key, call, found)


def _judge_rows_of(run: Run, key: Hashable, call: Call, found: Finding) -> None:
    rows = [run.rows[key]] if run.of_rows else run.rows_of.get(key, [])  # type: ignore[index]
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
    called = False
    for key in call.keys:
        after = run.next_call(key, call)
        called = called or after is not None
        if after is None or _may_be_another_lookup(run, key, call, after):
            continue
        if len(after.keys) >= size or not any(half.issuperset(after.keys) for half in halves):
            what = f"call {call.id!r} of {run.name} failed, and key {text_of(key)} is called again with"
            found.broken(
                f"{what} {len(after.keys)} keys that are no half of its {size}", after.start, *call.events, after.event
            )
            return
    hidden = setting.get("on_error", "fail") != "fail"
    # While the halves wait for a place, or for a budget, their time may end.
    ends = setting.get("timeout") or setting.get("attempt_timeout")
    if hidden and not called and not ends and run.task.outcome == "finished":
        what = f"call {call.id!r} of {run.name} failed with {size} keys, which were judged without halves"
        found.broken(what, call.stopped, *call.events)


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
    return refreshes or run.rows_before(key, after.event) != 1


def _judge_whole(run: Run, call: Call, found: Finding) -> None:
    """The next call of each key is that of a retry: there is none where there are no retries."""
    found.decided()
    if run.setting.get("max_attempts", 1) > 1 and call.retryable is not False:
        return
    for key in call.keys:
        after = run.next_call(key, call)
        if after is not None and not _may_be_another_lookup(run, key, call, after):
            what = f"call {call.id!r} of {run.name} failed by no fault of a key, and key {text_of(key)} is called again"
            found.broken(what, after.start, *call.events, after.event)
            return


# -- hedged calls


def law_h1_a_copy_is_made_of_a_slow_call(book: Book, found: Finding) -> None:
    """A call is made a second time only after it ran for `after` (a percentile: at least `floor`), and only once."""
    for run in book.runs:
        hedge = run.setting.get("hedge")
        for call in run.calls:
            if call.copy_of is None:
                continue
            found.decided()
            first = call.copy_of
            if hedge is None:
                found.broken(f"call {call.id!r} of {run.name} is a copy, and no hedge is set", call.start, call.event)
                continue
            after = hedge.get("after", "p98")
            least = hedge.get("floor", 0.01) if type(after) is str else after
            if call.start < first.start + least - book.near(least):
                what = f"call {call.id!r} of {run.name} repeats call {first.id!r} after"
                found.broken(
                    f"{what} {call.start - first.start:.6f} s, not {least}", call.start, first.event, call.event
                )
            if first.copy_of is not None or first.copies[0] is not call:
                what = f"call {call.id!r} of {run.name} is another copy of call {first.id!r}"
                found.broken(what, call.start, first.event, call.event)


def law_h1_copies_are_a_share_of_the_calls(book: Book, found: Finding) -> None:
    """Fewer than `extra` of all calls are second ones; the share passes from task to task of a worker."""
    counts: dict[tuple[object, int], list[int]] = {}
    for call in book.calls:
        run = call.run
        hedge = run.setting.get("hedge")
        if hedge is None:
            continue
        count = counts.setdefault((run.task.worker, run.lookup), [0, 0])
        count[0] += 1
        if call.copy_of is None:
            continue
        count[1] += 1
        found.decided()
        extra = hedge.get("extra", 0.02)
        if count[1] > extra * count[0] + 1e-9:
            what = f"call {call.id!r} of {run.name} is copy {count[1]} of {count[0]} calls, and extra is {extra}"
            found.broken(what, call.start, call.copy_of.event, call.event)


def law_h1_the_first_answer_wins(book: Book, found: Finding) -> None:
    """The first answer of a call and its copy is used, and if one fails the other is awaited."""
    for run in book.runs:
        for copy in run.calls:
            first = copy.copy_of
            if first is None or copy.outcome is None or first.outcome is None:
                continue
            winner = min(
                (call for call in (first, copy) if call.outcome == "result"), key=lambda c: c.stopped, default=None
            )
            if winner is None:
                continue
            loser = copy if winner is first else first
            if abs(first.stopped - copy.stopped) <= book.moment:
                continue
            for position, key in enumerate(winner.keys):
                _judge_winner(run, key, winner, loser, winner.answer_of(position), found)


def law_h1_the_loser_is_cancelled(book: Book, found: Finding) -> None:
    """When a call or its copy has answered the other one is cancelled: it has returned `returns_within` later, where
    that is known."""
    for run in book.runs:
        within = run.setting.get("returns_within")
        limits = [run.setting[name] for name in ("timeout", "attempt_timeout") if run.setting.get(name)]
        if within is None:
            continue
        for copy in run.calls:
            if copy.copy_of is None:
                continue
            for winner, loser in (copy, copy.copy_of), (copy.copy_of, copy):
                in_time = all(winner.stopped < winner.begun + limit - book.near(limit) for limit in limits)
                if winner.outcome != "result" or not in_time:
                    continue
                found.decided()
                if min(loser.stopped, book.end) > winner.stopped + within + book.near(within):
                    what = f"call {loser.id!r} of {run.name} runs on after {winner.stopped:.6f}, when call"
                    what = f"{what} {winner.id!r} had answered"
                    found.broken(what, winner.stopped, *winner.events, *loser.events)


def _judge_winner(run: Run, key: Hashable, winner: Call, loser: Call, answer: object, found: Finding) -> None:
    rows = [run.rows[key]] if run.of_rows else run.rows_of.get(key, [])  # type: ignore[index]
    if len(rows) != 1 or len(run.calls_of[key]) != 2 or not rows[0].outs:
        return
    out = rows[0].outs[0]
    if run.setting.get("timeout") or run.setting.get("attempt_timeout") or winner.retryable:
        return
    found.decided()
    if out.status == "failed" and out.source in ("call", None) and out.error == loser.error and loser.error is not None:
        what = (
            f"row {rows[0].row} of {run.name} failed with the error of call {loser.id!r}, and call {winner.id!r} gave"
        )
        found.broken(f"{what} a result", out.at, *winner.events, *loser.events, out.event)
    elif answer is not None and out.answer is not None and out.answer != answer:
        what = f"row {rows[0].row} of {run.name} does not have the first answer, that of call {winner.id!r}"
        found.broken(what, out.at, *winner.events, out.event)


def law_h2_only_a_running_first_attempt_is_repeated(book: Book, found: Finding) -> None:
    """No call is hedged that has ended, whose element failed before, or that is not idempotent."""
    for run in book.runs:
        for copy in run.calls:
            first = copy.copy_of
            if first is None:
                continue
            found.decided()
            events = (*first.events, copy.event)
            if run.setting.get("idempotent") is False:
                what = f"call {copy.id!r} of {run.name} is a copy, and calls must not be repeated"
                found.broken(what, copy.start, *events)
            if first.stopped < copy.start - book.moment:
                what = f"call {copy.id!r} of {run.name} repeats call {first.id!r}, which has ended"
                found.broken(what, copy.start, *events)
            if not set(copy.keys) <= set(first.keys):
                what = f"call {copy.id!r} of {run.name} has other keys than call {first.id!r}, which it repeats"
                found.broken(what, copy.start, *events)
            if first.refresh is True:
                what = f"call {copy.id!r} of {run.name} repeats a refresh, for which no row waits"
                found.broken(what, copy.start, *events)


def law_h2_no_retry_and_no_half_is_repeated(book: Book, found: Finding) -> None:
    """No call is hedged that is a retry, or a half of a batch that failed."""
    for run in book.runs:
        seen: set[Call] = set()
        for flight in run.flights if "hedge" in run.setting else ():
            for number, attempt in enumerate(flight.attempts):
                for copy in attempt.calls:
                    first = copy.copy_of
                    if first is None or copy in seen or first not in attempt.calls:
                        continue
                    if not flight.sure:
                        found.undecided("which calls are retries cannot be seen; record their attempt")
                        continue
                    found.decided()
                    if number or first is not attempt.calls[0]:
                        seen.add(copy)
                        what = f"call {copy.id!r} of {run.name} repeats call {first.id!r}, which is"
                        kind = "a retry" if number else "a half of a batch that failed"
                        found.broken(f"{what} {kind}", copy.start, attempt.calls[0].event, first.event, copy.event)


def law_h3_copies_count_as_attempts(book: Book, found: Finding) -> None:
    """A call and its copy are one attempt, and the status counts both."""
    for run in book.runs:
        if "circuit_breaker" in run.setting:
            continue
        for flight in run.flights:
            if not flight.sure or not any(attempt.copies for attempt in flight.attempts):
                continue
            for row in flight.rows:
                if not row.outs or row.outs[0].attempts is None or row.outs[0].source not in ("call", None):
                    continue
                found.decided()
                if row.outs[0].attempts != flight.calls:
                    what = f"row {row.row} of {run.name} says {row.outs[0].attempts} attempts, and with copies"
                    found.broken(f"{what} {flight.calls} were made", row.outs[0].at, *flight.events, row.outs[0].event)
