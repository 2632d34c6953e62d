"""Laws of deadlines and retries (R). They judge flights: the attempts for one lookup of a key, or for one row."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from math import inf

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.key_flights import splits
from asyncio_operator_proof.history.known_flights import (
    DOUBT,
    NO_HINTS,
    TIMER,
    asked_wait,
    flight_name,
    most_wait,
    sure_flights,
)
from asyncio_operator_proof.history.parts import (
    LONGEST_WAIT,
    MOMENT,
    Attempt,
    Call,
    Flight,
    Out,
    Row,
    Run,
    may_be_refused,
)
from asyncio_operator_proof.history.report import Finding


def _asked(flight: Flight) -> Iterator[tuple[Row, Out]]:
    """The rows whose outcome is that of the flight, with the first part of it."""
    for row in flight.rows:
        if row.outs and (flight.run.of_rows or row.outs[0].source in ("call", None)):
            yield row, row.outs[0]


def law_r1_an_attempt_ends_at_its_timeout(book: Book, found: Finding) -> None:
    """An attempt that exceeds `attempt_timeout` has failed: its result is not used, and it is not cut before."""
    for flight in sure_flights(book, found, "attempt_timeout"):
        limit = flight.run.setting["attempt_timeout"]
        for attempt in flight.attempts:
            found.decided()
            call = attempt.decisive
            # The deadline of another key of its batch may have ended the task.
            end = min(attempt.start + limit, _earliest_deadline(flight), flight.run.task.end)
            if _was_cut(call) and call.stopped < end - book.near(max(flight.run.limits)):
                what = f"call {call.id!r} for {flight_name(flight)} was cut after {call.stopped - call.start:.6f} s"
                found.broken(f"{what}, and attempt_timeout is {limit}", call.stopped, *call.events)
        last = flight.attempts[-1]
        if last.decisive.outcome != "result" or last.decisive.stopped <= last.start + limit + TIMER + book.near(limit):
            continue
        for row, out in _asked(flight):
            if out.status in ("found", "missing"):
                what = f"row {row.row} has the result of an attempt for {flight_name(flight)} that took longer than"
                found.broken(f"{what} attempt_timeout, {limit}", out.at, *last.decisive.events, out.event)


def _was_cut(call: Call) -> bool:
    """Whether only a limit can have ended the call: not its copy, nor the end of its task."""
    alone = not call.copies and call.copy_of is None
    finished = call.run.task.outcome == "finished"
    return call.outcome == "timed_out" or (call.outcome == "cancelled" and alone and finished)


def law_r1_a_call_is_cancelled_at_the_end_of_its_attempt(book: Book, found: Finding) -> None:
    """A call is cancelled at `attempt_timeout`: it has returned `returns_within` later, where that is known."""
    _judge_cancelled(book, found, "attempt_timeout")


def law_r2_a_call_is_cancelled_at_the_deadline(book: Book, found: Finding) -> None:
    """A call is cancelled at the deadline of its element, in a batch of the last one: it has returned `returns_within`
    later, where that is known."""
    _judge_cancelled(book, found, "timeout")


def _judge_cancelled(book: Book, found: Finding, option: str) -> None:
    for run in book.runs:
        limit, within = run.setting.get(option), run.setting.get("returns_within")
        if not limit or not run.calls:
            continue
        begun = _latest_beginnings(run, of_attempts=option == "attempt_timeout")
        for call in run.calls:
            end, stopped = begun[call] + limit, min(call.stopped, book.end)
            if not (run.whole_calls and within is not None) and stopped > end + TIMER + book.near(limit):
                found.undecided("whether a call goes on after its cancellation, or for other keys, is not known")
                continue
            found.decided()
            if stopped > end + (within or 0.0) + TIMER + book.near(limit + (within or 0.0)):
                what = (
                    f"call {call.id!r} of {run.name} runs on after {end:.6f}, when its {option} of {limit} had passed"
                )
                found.broken(what, end, *call.events)


def _latest_beginnings(run: Run, *, of_attempts: bool) -> dict[Call, float]:
    """For each call the latest moment at which an attempt, or a lookup, that it belongs to may have begun."""
    found = dict.fromkeys(run.calls, -inf)
    for flight in run.flights:
        for attempt in flight.attempts:
            for call in attempt.calls:
                begun = attempt.start if of_attempts else flight.start
                found[call] = max(found[call], begun if flight.sure else call.start)
    return {call: call.start if begun == -inf else begun for call, begun in found.items()}


def law_r2_an_element_ends_at_its_deadline(book: Book, found: Finding) -> None:
    """At the deadline an element ends with its timeout result: a later result is not used, and it waits no longer."""
    for flight in sure_flights(book, found, "timeout", "attempt_timeout"):
        decisive = flight.attempts[-1].decisive
        for row, out in _asked(flight):
            found.decided()
            late = decisive.stopped > flight.deadline + TIMER + book.near(flight.timeout)
            if out.status in ("found", "missing") and decisive.outcome == "result" and late:
                what = (
                    f"row {row.row} has the result of call {decisive.id!r} for {flight_name(flight)}, which came after"
                )
                found.broken(f"{what} the deadline at {flight.deadline:.6f}", out.at, *decisive.events, out.event)
            elif out.status == "timed_out" and decisive.error is None and out.at < _earliest_end(flight, book):
                what = f"row {row.row} timed out before the deadline of {flight_name(flight)} at {flight.deadline:.6f}"
                found.broken(what, out.at, *flight.events, out.event)
            elif (
                book.consumer_ready
                and out.at > flight.deadline + TIMER + book.near(flight.timeout) + book.handover
                and not _held(flight.run, row, book)
            ):
                what = f"row {row.row} left after the deadline of {flight_name(flight)} at {flight.deadline:.6f}"
                found.broken(what, out.at, *flight.events, out.event)


def _earliest_deadline(flight: Flight) -> float:
    """A flight whose first attempts a circuit breaker refused began before its first call."""
    if not flight.timeout or not may_be_refused(flight.run, flight.start):
        return flight.deadline
    return flight.attempts[0].calls[0].begun + flight.timeout


def _earliest_end(flight: Flight, book: Book) -> float:
    """The earliest moment at which the flight may time out: at its deadline, or at the limit of its last attempt."""
    limit = flight.run.setting.get("attempt_timeout")
    cut = flight.attempts[-1].start + limit - book.near(limit) if limit else inf
    return min(cut, _earliest_deadline(flight) - book.near(flight.timeout))


def _held(run: Run, row: Row, book: Book) -> bool:
    """Whether what left just before the row may have held it."""
    if run.setting.get("mode") == "unordered" and not run.watermarks_in:
        return False
    position = bisect_left(run.emitted, row.outs[0].event, key=lambda one: one[0])
    if position == 0:
        return any(before[1] <= row.outs[0].at for before in run.watermarks_in)
    return run.emitted[position - 1][1] >= row.outs[0].at - book.moment


def law_r3_no_attempt_starts_after_the_deadline(book: Book, found: Finding) -> None:
    """No call starts after the deadline of its element, and no back-off begins that would end after it."""
    for flight in sure_flights(book, found, "timeout"):
        for attempt in flight.attempts:
            found.decided()
            for call in attempt.calls:
                if call.start > flight.deadline + TIMER + book.near(flight.timeout):
                    what = (
                        f"call {call.id!r} for {flight_name(flight)} starts after the deadline at {flight.deadline:.6f}"
                    )
                    found.broken(what, call.start, flight.attempts[0].calls[0].event, call.event)
        last = flight.attempts[-1]
        wait = _least_wait(flight, last)
        # A call that goes on after its attempt was cut delays no back-off.
        ended = min(last.stopped, last.start + (flight.run.setting.get("attempt_timeout") or inf))
        # The halves of a batch wait for a place, and not for a back-off.
        if wait is None or splits(last.decisive) or ended + wait <= flight.deadline + book.near(flight.timeout):
            continue
        for row, out in _asked(flight):
            early = flight.deadline - book.near(flight.timeout)
            waited = out.at > ended + TIMER + book.near(flight.timeout) + book.handover and out.at >= early
            waited = waited and out.status == "failed" and book.consumer_ready and not _held(flight.run, row, book)
            if (out.status == "timed_out" or waited) and last.stopped < early:
                what = f"row {row.row} waited for its deadline, though the back-off after call {last.decisive.id!r}"
                found.broken(f"{what} would have ended after it", out.at, *last.decisive.events, out.event)


def law_r4_a_result_in_time_wins(book: Book, found: Finding) -> None:
    """A result that came before the deadline is not lost to it."""
    for flight in sure_flights(book, found, "timeout", "attempt_timeout"):
        last = flight.attempts[-1]
        call = last.decisive
        limit = flight.run.setting.get("attempt_timeout") or inf
        if call.outcome == "result" and call.may_ask_again and not call.retryable:
            found.undecided(NO_HINTS)
        if call.outcome != "result" or call.may_ask_again or not call.is_aligned:
            continue
        longest = flight.timeout + (limit if limit < inf else 0.0)
        if call.stopped >= min(flight.deadline, last.start + limit) - book.near(longest):
            continue
        for row, out in _asked(flight):
            found.decided()
            if out.status == "timed_out":
                what = (
                    f"row {row.row} timed out, though call {call.id!r} for {flight_name(flight)} gave a result in time"
                )
                found.broken(what, out.at, *call.events, out.event)


def law_r5_max_attempts_counts_calls(book: Book, found: Finding) -> None:
    """At most `max_attempts` attempts are made; none after a result, or after an error that is not to be retried."""
    for run in book.runs:
        if run.setting.get("asks_per_batch"):
            found.undecided("each row of a key has calls of its own")
            continue
        most = run.setting.get("max_attempts", 1)
        for flight in run.flights:
            if flight.sure:
                found.decided()
                _judge_attempts(flight, most, book, found)
            else:
                _judge_numbers(run, flight, most, found)


def _judge_attempts(flight: Flight, most: int, book: Book, found: Finding) -> None:
    if len(flight.attempts) > most:
        late = flight.attempts[most].calls[0]
        what = f"{flight_name(flight)} has {len(flight.attempts)} attempts, and max_attempts is {most}"
        found.broken(what, late.start, *flight.events)
    for attempt, following in zip(flight.attempts, flight.attempts[1:], strict=False):
        call, after = attempt.decisive, following.calls[0]
        events = (*call.events, after.event)
        if call.outcome == "result" and call.may_ask_again and not call.retryable:
            found.undecided(NO_HINTS)
        elif (
            call.outcome == "result"
            and not call.retryable
            and after.start >= call.stopped
            and not _late(flight, call, book)
        ):
            found.broken(f"{flight_name(flight)} is called again after a result", after.start, *events)
        elif (
            call.outcome == "error"
            and call.retryable is False
            and not _cut_between(flight, attempt, after)
            # The circuit breaker may have refused the halves, which are then tried again.
            and not (splits(call) and may_be_refused(flight.run, after.start))
            and not _late(flight, call, book)
        ):
            what = f"{flight_name(flight)} is called again after {call.error or 'an error'}, which is not to be retried"
            found.broken(what, after.start, *events)
    last = flight.attempts[-1].decisive
    for row, out in _asked(flight):
        if out.attempts is not None and out.attempts != flight.calls and not _counts_more(flight):
            what = f"row {row.row} says {out.attempts} attempts, and {flight.calls} calls were made for"
            found.broken(f"{what} {flight_name(flight)}", out.at, *flight.events, out.event)
        wanted = {"error": ("failed",), "result": ("found", "missing")}.get(last.outcome or "", ())
        gave_up = out.status in wanted and last.retryable is True
        made = len(flight.attempts)
        if may_be_refused(flight.run, last.start):
            # Each refusal was an attempt too. Without a status their number is not known.
            made = most if out.attempts is None else out.attempts
        if gave_up and made < most and not _no_time(flight, last, book) and out.error in (last.error, None):
            what = f"{flight_name(flight)} ended after {made} of {most} attempts, though its {last.outcome} is to be"
            found.broken(f"{what} retried", out.at, *flight.events, out.event)


def _counts_more(flight: Flight) -> bool:
    """Whether attempts are more than calls: a refusal of a circuit breaker is one. Copies are for law H3."""
    return "circuit_breaker" in flight.run.setting or flight.calls > len(flight.attempts)


def _cut_between(flight: Flight, attempt: Attempt, after: Call) -> bool:
    """Whether the attempt may have been cut before a half of its batch could start."""
    limit = flight.run.setting.get("attempt_timeout") or inf
    return splits(attempt.decisive) and after.start >= attempt.start + limit - MOMENT


def _late(flight: Flight, call: Call, book: Book) -> bool:
    """Whether the call may have ended after the limit of its attempt, which then counts as timed out."""
    limit = flight.run.setting.get("attempt_timeout") or inf
    return limit < inf and call.stopped > call.start + limit - book.near(limit)


def _no_time(flight: Flight, last: Call, book: Book) -> bool:
    """Whether the wait for a retry may be too long."""
    if (last.retry_after or 0) > LONGEST_WAIT:
        return True
    if flight.deadline == inf:
        return False
    wait = most_wait(flight, flight.attempts[-1])
    return wait is None or last.stopped + wait > _earliest_deadline(flight) - TIMER - book.near(flight.timeout)


def _judge_numbers(run: Run, flight: Flight, most: int, found: Finding) -> None:
    """Where lookups cannot be distinguished: not more attempts than all rows with the key could have."""
    read = 0
    rows = run.rows_of.get(flight.key, [])
    if not rows or "refresh_after" in run.setting.get("cache", {}):
        found.undecided(DOUBT)
        return
    found.decided()
    for count, attempt in enumerate(flight.attempts, start=1):
        while read < len(rows) and rows[read].event < attempt.calls[0].event:
            read += 1
        if count > most * read:
            what = f"{flight_name(flight)} has {count} attempts for {read} rows, and max_attempts is {most}"
            found.broken(what, attempt.start, *(call.event for call in attempt.calls), rows[0].event)
            return


def law_r7_a_retry_waits_for_its_back_off(book: Book, found: Finding) -> None:
    """A retry waits until its back-off, or what the source asked for, has passed since the failed attempt."""
    for flight in sure_flights(book, found, "delay", "backoff", "max_attempts"):
        for number, (attempt, following) in enumerate(zip(flight.attempts, flight.attempts[1:], strict=False), start=1):
            wait = _least_wait(flight, attempt, number)
            if wait is None:
                found.undecided("the back-off has jitter, or is not recorded")
                continue
            found.decided()
            ended, call = _cut_at(flight, attempt), following.calls[0]
            # The end of an attempt that was cut is measured by the task's clock too.
            if call.start < ended + wait - book.near(wait + max((0.0, *flight.run.limits))):
                what = f"the next attempt for {flight_name(flight)} starts {call.start - ended:.6f} s after the last,"
                found.broken(
                    f"{what} and its back-off is {wait:.6f} s", call.start, *attempt.decisive.events, call.event
                )


def _cut_at(flight: Flight, attempt: Attempt) -> float:
    """When an attempt failed: a call that ignored its cancellation runs longer."""
    limit = flight.run.setting.get("attempt_timeout") or inf
    return min(attempt.decisive.stopped, attempt.start + limit)


def _least_wait(flight: Flight, attempt: Attempt, number: int | None = None) -> float | None:
    """The least time between an attempt that failed and the next; None if it is not known."""
    wait, setting = most_wait(flight, attempt, number), flight.run.setting
    # Without a recorded back-off and a fixed delay only what the source asked for is known.
    random = "delay" not in setting and setting.get("backoff", {}).get("jitter", True)
    return None if random and asked_wait(attempt) is None else wait


def law_r8_a_due_retry_goes_before_new_input(book: Book, found: Finding) -> None:
    """An element whose back-off is over is called before an element that has not been called yet."""
    for run in book.runs:
        setting = run.setting
        if setting.get("max_attempts", 1) <= 1:
            continue
        if any(name in setting for name in ("limits", "budget", "batch", "circuit_breaker", "cache")):
            found.undecided("limits, batches or a cache decide too when a call starts")
            continue
        _judge_due(run, book, found)


def _judge_due(run: Run, book: Book, found: Finding) -> None:
    firsts = sorted(flight.attempts[0].calls[0].start for flight in run.flights if flight.sure)
    if len(firsts) < len(run.flights):
        found.undecided(DOUBT)
        return
    cut = bool(run.setting.get("timeout") or run.setting.get("attempt_timeout"))
    place = 0
    waits = []
    for flight in run.flights:
        for number, (attempt, following) in enumerate(zip(flight.attempts, flight.attempts[1:], strict=False), start=1):
            wait = _least_wait(flight, attempt, number)
            if wait is None or (cut and attempt.decisive.outcome != "error"):
                found.undecided("the back-off has jitter, or a call was cut")
            else:
                waits.append((attempt.stopped + wait, following.calls[0], flight))
    for due, call, flight in sorted(waits, key=lambda one: (one[0], one[1].event)):
        found.decided()
        while place < len(firsts) and firsts[place] <= due + book.near(due - flight.start):
            place += 1
        if place < len(firsts) and firsts[place] < call.start - book.moment:
            what = (
                f"a new element of {run.name} is called at {firsts[place]:.6f}, and {flight_name(flight)} is due since"
            )
            found.broken(f"{what} {due:.6f}", call.start, *flight.events)
