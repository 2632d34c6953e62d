"""Laws of hedged calls (H)."""

from __future__ import annotations

from collections.abc import Hashable
from math import inf

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.key_flights import number_of
from asyncio_operator_proof.history.parts import Call, Flight
from asyncio_operator_proof.history.report import Finding
from asyncio_operator_proof.history.same_keys import text_of

NOT_AWAITED = ("BudgetExceeded", "CoordinatorError", "SystemExit", "KeyboardInterrupt", "ResultError")
"""Errors that end the run, or that are results which cannot be used: such a result has won."""

NO_USE = "an answer that is of no use may win, or fail"


def law_h1_a_copy_is_made_of_a_slow_call(book: Book, found: Finding) -> None:
    """A call is made a second time only after it ran for `after` (a percentile: at least `floor`), and only once."""
    for copy, first in book.copies():
        found.decided()
        hedge = copy.run.setting.get("hedge")
        if hedge is None:
            found.broken(f"call {copy.id!r} of {copy.run.name} is a copy, and no hedge is set", copy.start, copy.event)
            continue
        after = hedge.get("after", "p98")
        least = hedge.get("floor", 0.01) if type(after) is str else after
        what, ran = f"call {copy.id!r} of {copy.run.name}", copy.start - first.start
        if ran < least - book.near(least):
            early = f"{what} repeats call {first.id!r} after {ran:.6f} s, not {least}"
            found.broken(early, copy.start, first.event, copy.event)
        if first.copy_of is not None or first.copies[0] is not copy:
            found.broken(f"{what} is another copy of call {first.id!r}", copy.start, first.event, copy.event)


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
    for copy, first in book.copies():
        if copy.outcome is None or first.outcome is None:
            continue
        if first.is_malformed or copy.is_malformed:
            found.undecided(NO_USE)
            continue
        winners = sorted((call for call in (first, copy) if call.outcome == "result"), key=lambda call: call.stopped)
        if not winners or abs(first.stopped - copy.stopped) <= book.moment:
            continue
        winner = winners[0]
        for position, key in enumerate(winner.keys):
            _judge_winner(key, winner, copy if winner is first else first, winner.answer_of(position), found)


def law_h1_the_loser_is_cancelled(book: Book, found: Finding) -> None:
    """When a call or its copy has answered the other one is cancelled: it has returned `returns_within` later, where
    that is known."""
    for copy, first in book.copies():
        run, within = copy.run, copy.run.setting.get("returns_within")
        if within is None:
            continue
        for winner, loser in (copy, first), (first, copy):
            if winner.outcome != "result" or winner.stopped >= _cut(winner, book) or loser.start > winner.stopped:
                continue
            if winner.is_malformed:
                found.undecided(NO_USE)
                continue
            found.decided()
            if min(loser.stopped, book.end) > winner.stopped + within + book.near(within):
                what = f"call {loser.id!r} of {run.name} runs on after {winner.stopped:.6f}, when call"
                found.broken(f"{what} {winner.id!r} had answered", winner.stopped, *winner.events, *loser.events)


def law_h1_the_other_call_is_awaited(book: Book, found: Finding) -> None:
    """If a call or its copy fails while the other one runs, that one is awaited: it is not cancelled, and until it has
    ended its keys are not called again, and their rows do not fail."""
    for copy, first in book.copies():
        if "asks_per_batch" in copy.run.setting:
            continue
        for failed, other in (copy, first), (first, copy):
            if failed.outcome != "error" or failed.error in NOT_AWAITED:
                continue
            until = min(other.stopped, _cut(other, book))
            if other.start < failed.stopped - book.moment and failed.stopped < until - book.moment:
                found.decided()
                _judge_awaited(failed, other, until - book.moment, book, found)


def _cut(call: Call, book: Book) -> float:
    """The earliest moment at which a limit may cut a call."""
    return min((call.begun + limit - book.near(limit) for limit in call.run.limits), default=inf)


def _judge_awaited(failed: Call, other: Call, until: float, book: Book, found: Finding) -> None:
    run = failed.run
    why = f"call {failed.id!r} of {run.name} failed while call {other.id!r}, of the same attempt, ran, and"
    events = (*failed.events, *other.events)
    if other.outcome == "cancelled" and run.task.outcome == "finished" and other.stopped < _cut(other, book):
        found.broken(f"{why} that was cancelled", other.stopped, *events)
    for key in other.keys:
        after = next((call for call in run.calls_of[key] if call.event > (failed.end_event or 0)), None)
        if after is not None and after.start < until and after.refresh is not True:
            found.broken(f"{why} key {text_of(key)} is called again", after.start, *events, after.event)
        rows = run.rows_with(key)
        for out in rows[0].outs[:1] if len(rows) == 1 else ():
            if (
                out.status == "failed"
                and out.source in ("call", None)
                and failed.stopped - book.moment <= out.at < until
            ):
                found.broken(f"{why} row {rows[0].row} failed", out.at, *events, out.event)


def _judge_winner(key: Hashable, winner: Call, loser: Call, answer: object, found: Finding) -> None:
    run = winner.run
    rows = run.rows_with(key)
    if len(rows) != 1 or len(run.calls_of[key]) != 2:
        found.undecided("which calls a row waited for cannot be seen")
        return
    if not rows[0].outs:
        return
    if not winner.is_taken:
        found.undecided("a result may have come too late, or ask for a retry")
        return
    found.decided()
    out = rows[0].outs[0]
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
    for copy, first in book.copies():
        found.decided()
        what, events = f"call {copy.id!r} of {copy.run.name}", (*first.events, copy.event)
        if copy.run.setting.get("idempotent") is False:
            found.broken(f"{what} is a copy, and calls must not be repeated", copy.start, *events)
        if first.stopped < copy.start - book.moment:
            found.broken(f"{what} repeats call {first.id!r}, which has ended", copy.start, *events)
        if not set(copy.keys) <= set(first.keys):
            found.broken(f"{what} has other keys than call {first.id!r}, which it repeats", copy.start, *events)
        if first.refresh is True:
            found.broken(f"{what} repeats a refresh, for which no row waits", copy.start, *events)


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
                    again = bool(number) or (number_of(first, flight.key) or 1) > 1
                    if again or first is not attempt.calls[0] or _was_refused(flight):
                        seen.add(copy)
                        what = f"call {copy.id!r} of {run.name} repeats call {first.id!r}, which is"
                        kind = "a half of a batch that failed" if first is not attempt.calls[0] else "a retry"
                        found.broken(f"{what} {kind}", copy.start, attempt.calls[0].event, first.event, copy.event)


def _was_refused(flight: Flight) -> bool:
    """Whether a circuit breaker refused the element before the only attempt with calls, which gave its result."""
    if len(flight.attempts) > 1 or flight.attempts[0].decisive.outcome != "result":
        return False
    return any(
        out.status in ("found", "missing") and out.source in ("call", None) and (out.attempts or 0) > flight.calls
        for row in flight.rows
        for out in row.outs[:1]
    )


def law_h3_copies_count_as_attempts(book: Book, found: Finding) -> None:
    """A call and its copy are one attempt, and the status counts both."""
    for run in book.runs:
        for flight in run.flights:
            if not any(attempt.copies for attempt in flight.attempts):
                continue
            if not flight.sure or "circuit_breaker" in run.setting:
                found.undecided("which calls a row waited for, or what a circuit breaker refused, cannot be seen")
                continue
            for row in flight.rows:
                if not row.outs or row.outs[0].attempts is None or row.outs[0].source not in ("call", None):
                    continue
                found.decided()
                if row.outs[0].attempts != flight.calls:
                    what = f"row {row.row} of {run.name} says {row.outs[0].attempts} attempts, and with copies"
                    found.broken(f"{what} {flight.calls} were made", row.outs[0].at, *flight.events, row.outs[0].event)
