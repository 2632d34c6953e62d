"""Laws of what waits although there is room for a call: a retry that is due (R7), a batch that is full or old (B1).

There is room while fewer calls run than `capacity`. The time of `linger` may begin when there is room: nothing needs to
be read before. Where anything else may hold a call, such as a limit, nothing is
judged: a wait is accused only if nothing can be its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.key_flights import splits
from asyncio_operator_proof.history.known_flights import TIMER, flight_name, most_wait, sure_flights
from asyncio_operator_proof.history.parts import Attempt, Row, Run
from asyncio_operator_proof.history.report import Finding
from asyncio_operator_proof.history.room import Span, in_both, longest, room_for_calls, room_for_rows
from asyncio_operator_proof.history.same_keys import text_of

HOLDS = ("limits", "budget", "circuit_breaker", "adaptive")
"""Options with which something beside the capacity decides when a call starts."""

BEYOND_CAPACITY = "something beside the capacity decides when a call starts"


def _is_held(run: Run) -> bool:
    setting = run.setting
    return (
        any(name in setting for name in HOLDS)
        or "capacity" not in setting
        or not run.whole_calls
        or setting.get("mode") == "key_ordered"
    )


def law_r7_a_retry_that_is_due_is_not_left_waiting(book: Book, found: Finding) -> None:
    """A retry starts when its back-off is over, in a batch `linger` later, if there is room for a call."""
    rooms: dict[Run, list[Span]] = {}
    for flight in sure_flights(book, found, "max_attempts"):
        run = flight.run
        linger = (run.setting.get("batch") or {}).get("linger", 0.0)
        for number, (attempt, following) in enumerate(zip(flight.attempts, flight.attempts[1:], strict=False), start=1):
            wait = most_wait(flight, attempt, number)
            if wait is None or _ended_at_most(attempt) == inf:
                continue
            due, call = _ended_at_most(attempt) + wait, following.calls[0]
            little = linger + TIMER + book.near(wait + linger)
            if call.start > due + little and _is_held(run):
                found.undecided(BEYOND_CAPACITY)
                continue
            found.decided()
            if call.start <= due + little:
                continue
            if run not in rooms:
                rooms[run] = room_for_calls(run)
            if longest(rooms[run], due, call.start) > little:
                what = f"the next attempt for {flight_name(flight)} starts {call.start - due:.6f} s after it was due,"
                found.broken(f"{what} and there was room for it", call.start, *attempt.decisive.events, call.event)


def _ended_at_most(attempt: Attempt) -> float:
    """When an attempt had surely ended: a half of a batch may wait in vain for a place until its limit."""
    if not splits(attempt.decisive):
        return attempt.stopped
    limit = attempt.decisive.run.setting.get("attempt_timeout") or inf
    return max(attempt.stopped, attempt.start + limit)


def law_b1_a_batch_that_is_full_or_old_is_called(book: Book, found: Finding) -> None:
    """A batch is called when `max_size` keys wait, or `linger` after the first of them came, if there is room."""
    for run in book.runs:
        batch = run.setting.get("batch")
        if batch is None or not run.calls:
            continue
        waits = list(_waits(run))
        if run.lookup and waits:
            found.undecided("when a row reached a later lookup cannot be seen", len(waits))
            continue
        if _is_held(run) or _may_be_known(run) or any(name in run.setting for name in ("journal", "asks_per_batch")):
            if any(end - begin > TIMER + book.near(0.0) for begin, end, _ in waits):
                found.undecided(f"{BEYOND_CAPACITY}, or an answer is known")
            continue
        room = in_both(room_for_calls(run), room_for_rows(run, book.consumer_ready))
        found.decided(len(waits))
        if "linger" in batch:
            _judge_old(run, waits, room, batch["linger"], book, found)
        if "max_size" in batch:
            _judge_full(run, waits, room, batch["max_size"], book, found)


def _waits(run: Run) -> Iterator[tuple[float, float, Row]]:
    """The rows that wait for the first call of their keys: from, until, the row."""
    for key, calls in run.calls_of.items():
        rows = run.rows_with(key)
        if not rows or rows[0].at >= calls[0].start:
            continue
        if "cache" not in run.setting or any(out.source in ("call", None) for out in rows[0].outs):
            yield rows[0].at, calls[0].start, rows[0]


def _may_be_known(run: Run) -> bool:
    """Whether rows may wait for a store of answers, or have their answers from a cache and do not say so."""
    cache = run.setting.get("cache")
    if cache is None:
        return False
    return cache.get("store", "heap") != "heap" or any(
        out.source is None for row in run.rows.values() for out in row.outs
    )


def _judge_old(
    run: Run, waits: list[tuple[float, float, Row]], room: list[Span], linger: float, book: Book, found: Finding
) -> None:
    little = linger + TIMER + book.near(linger)
    for begin, end, row in waits:
        if end > begin + little and longest(room, begin, end) > little:
            what = f"row {row.row} of {run.name} waited {end - begin:.6f} s for its call, and linger is {linger},"
            found.broken(f"{what} though there was room", end, row.event)


def _judge_full(
    run: Run, waits: list[tuple[float, float, Row]], room: list[Span], most: int, book: Book, found: Finding
) -> None:
    edges = [(begin, 1, row) for begin, _, row in waits] + [(end, -1, row) for _, end, row in waits]
    edges.sort(key=lambda edge: edge[:2])
    waiting, since = 0, inf
    little = TIMER + book.near(0.0)
    for at, change, row in edges:
        before, waiting = waiting, waiting + change
        if before < most <= waiting:
            since = at
        elif waiting < most <= before and longest(room, since, at) > little:
            key = row.row if run.of_rows else row.key
            what = f"{before} keys of {run.name} waited for their calls, {text_of(key)} among them, max_size is {most},"
            found.broken(f"{what} and there was room", at, row.event)
