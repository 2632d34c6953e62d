"""The attempts of each key, or each row of a function: which calls were one attempt, and which attempts one lookup.

A batch and the halves that it was split into are one attempt of each of their keys, and so are a call and its copy. All
attempts of a key for one lookup of it are a *flight*. From outside it cannot always be seen which calls belong
together: two rows with one key may be two lookups of it, one after the other. A flight is *sure* where there is no
doubt: the calls have their `attempt`, the run calls a function with rows, or only one row of the run has the key.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator

from asyncio_operator_proof.history.parts import Attempt, Call, Flight, Row, Run


def splits(call: Call) -> bool:
    """Whether the call failed in a way that one of its keys may have caused, so that it is split (law B4)."""
    return (
        call.outcome == "error"
        and len(call.keys) > 1
        and call.retry_after is None
        and call.retryable is not True
        and not call.overload
        and not call.lost
        and call.error not in NEVER_SPLIT
    )


MOST_ROWS = 200
"""Rows with one key, from the last one that was read, that are looked at for those that wait for one flight."""

NEVER_SPLIT = frozenset(
    ("CircuitOpenError", "ElementTimeoutError", "TimeoutError", "BudgetExceeded", "CoordinatorError", "ResultError")
)
"""Errors that no single key causes, or that a smaller batch would repeat."""


def flights_of(run: Run) -> Iterator[Flight]:
    """The flights of a run. Refreshes are left out: no row waits for them."""
    for key, calls in run.calls_of.items():
        calls = [call for call in calls if call.refresh is not True]
        if calls:
            yield from _flights_of_key(run, key, calls)


def _flights_of_key(run: Run, key: Hashable, calls: list[Call]) -> Iterator[Flight]:
    rows = run.rows_with(key)
    numbered = all(number_of(call, key) is not None for call in calls)
    cached = "cache" in run.setting and not numbered
    # A refresh that is not marked as one looks like a lookup.
    refreshed = cached and "refresh_after" in run.setting["cache"] and any(call.refresh is None for call in calls)
    sure = numbered or (len(rows) == 1 and not refreshed)
    flight = Flight(run, key, sure)
    for call in calls:
        if not flight.attempts:
            flight.attempts.append(Attempt(key, call))
        elif call.copy_of is not None:
            _attempt_with(flight, call.copy_of).calls.append(call)
        elif numbered and number_of(call, key) == 1 and not _is_half(call, flight.attempts[-1], key):
            yield _with_rows(flight, rows)
            flight = Flight(run, key, sure)
            flight.attempts.append(Attempt(key, call))
        elif _is_half(call, flight.attempts[-1], key):
            flight.attempts[-1].calls.append(call)
        elif _may_be_half(call, flight.attempts[-1]):
            flight.sure = False
            flight.attempts[-1].calls.append(call)
        else:
            flight.attempts.append(Attempt(key, call))
    yield _with_rows(flight, rows)


def number_of(call: Call, key: Hashable) -> int | None:
    """The recorded number of the attempt, for a key of the call."""
    attempt = call.attempt
    if type(attempt) is list:
        return attempt[call.keys.index(key)] if len(attempt) == len(call.keys) else None
    return attempt if type(attempt) is int else None


def _attempt_with(flight: Flight, call: Call) -> Attempt:
    for attempt in reversed(flight.attempts):
        if call in attempt.calls:
            return attempt
    return flight.attempts[-1]


def _is_half(call: Call, attempt: Attempt, key: Hashable) -> bool:
    """Whether the call is a half of the batch that failed last in this attempt."""
    last = attempt.calls[-1]
    # Of two calls that fail, the error of the one that was repeated counts.
    last = last.copy_of or last
    if not splits(last) or len(call.keys) >= len(last.keys) or call.start < last.stopped:
        return False
    if (number := number_of(call, key)) is not None and number != number_of(last, key):
        return False
    setting = call.run.setting
    limit = setting.get("attempt_timeout")
    # The attempt had ended before a half could start: this is the next one, of the keys that are left.
    if number is None and limit and setting.get("max_attempts", 1) > 1:
        beyond, moment = call.start - (attempt.start + limit), call.run.moment
        if setting.get("delay") == 0:
            is_next = beyond >= -moment
        else:
            # A half may start at this very moment, and has no time left. A next attempt waits for its back-off.
            is_half = beyond <= moment and _follows_a_call(call)
            is_next = beyond >= 0.0 and not is_half
        if is_next:
            return False
    return set(call.keys) <= set(last.keys)


def _may_be_half(call: Call, attempt: Attempt) -> bool:
    """Whether the call looks like the next attempt, and may be a half that started at the limit of this one."""
    setting, last = call.run.setting, attempt.calls[-1]
    limit = setting.get("attempt_timeout")
    at_the_end = limit and abs(call.start - attempt.start - limit) <= call.run.moment
    return bool(
        at_the_end and _follows_a_call(call) and setting.get("delay") == 0 and call.attempt is None and splits(last)
    )


def _follows_a_call(call: Call) -> bool:
    """Whether a call starts as another one ends: its batch failed then, or it waited for the other half's place."""
    return any(abs(call.start - one.stopped) <= call.run.moment for one in call.run.calls)


def _with_rows(flight: Flight, rows: list[Row]) -> Flight:
    """A flight with the rows that wait for it: those that were read before its end and left after its start."""
    if flight.run.of_rows or len(rows) == 1:
        flight.rows = rows
    elif flight.sure:
        end = max(attempt.stopped for attempt in flight.attempts)
        start = flight.attempts[-1].start
        stop = bisect_right(rows, end, key=lambda row: row.at)
        some = rows[max(0, stop - MOST_ROWS) : stop]
        flight.rows = [row for row in some if row.left is None or row.left >= start]
    return flight
