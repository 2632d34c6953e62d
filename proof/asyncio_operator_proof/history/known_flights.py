"""The flights of which it is known what belongs to them, and how long their retries may wait. It judges nothing."""

from __future__ import annotations

from collections.abc import Iterator

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.parts import Attempt, Flight
from asyncio_operator_proof.history.report import Finding
from asyncio_operator_proof.history.same_keys import text_of

TIMER = 0.002
"""Seconds by which a timer of a loop may be late: a millisecond for each of two."""

NO_HINTS = "it was not recorded whether a call asked for a retry"

DOUBT = "which calls were attempts of one lookup cannot be seen; record their attempt"


def sure_flights(book: Book, found: Finding, *options: str) -> Iterator[Flight]:
    """The sure flights of runs that use one of these options. The others are counted as undecided."""
    for run in book.runs:
        if options and not any(run.setting.get(option) for option in options):
            continue
        for flight in run.flights:
            if flight.sure:
                yield flight
            elif len(flight.attempts) > 1:
                found.undecided(DOUBT)


def flight_name(flight: Flight) -> str:
    """Of a flight, for sentences."""
    what = f"row {flight.key}" if flight.run.of_rows else f"key {text_of(flight.key)}"
    return f"{what} of {flight.run.name}"


def asked_wait(attempt: Attempt) -> float | None:
    """The wait that the source asked for."""
    wait = attempt.decisive.retry_after
    return wait if wait is not None and wait >= 0 else None


def most_wait(flight: Flight, attempt: Attempt, number: int | None = None) -> float | None:
    """The longest back-off between an attempt that failed and the next; None if it is not known."""
    setting, call = flight.run.setting, attempt.decisive
    number = len(flight.attempts) if number is None else number
    if number >= setting.get("max_attempts", 1) or call.outcome not in ("error", "timed_out", "result"):
        return None
    if not flight.run.retry_hints and call.outcome != "timed_out":
        return None
    if call.outcome == "result" and not call.retryable:
        return None
    if (asked := asked_wait(attempt)) is not None:
        return asked
    if "delay" in setting:
        delay: float = setting["delay"]
        return delay
    backoff = setting.get("backoff")
    if backoff is None:
        return None
    initial, multiplier = backoff.get("initial", 0.1), backoff.get("multiplier", 2.0)
    wait: float = backoff.get("maximum", 10.0)
    try:
        wait = min(wait, initial * float(multiplier) ** (number - 1))
    except OverflowError:
        wait = wait if initial else 0.0
    return wait
