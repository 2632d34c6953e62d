"""The law of circuit breakers (R10): an open one refuses every call, and then lets one try.

A breaker counts how calls end. The end of some cannot be seen exactly: a call that was cut counts when it is cut, and
one that is not needed any more does not count. So each call has the earliest and the latest time at which it may count,
and the circuit is judged only where it is open in every case.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.parts import FAILURE_RATIO, MINIMUM_CALLS, MOMENT, PARTS, Call, Run
from asyncio_operator_proof.history.report import Finding

WINDOW, OPEN_FOR = 30.0, 10.0
"""Defaults of a circuit breaker: seconds for which a call counts, and for which it is open."""

SURELY = 29 / 30
"""The part of the window for which a call surely counts."""

FAILED, SUCCEEDED, DROPPED, UNKNOWN = "failed", "succeeded", "dropped", "unknown"
"""How a call counts. One that was dropped counts as failed, or not at all; one that is unknown in any way."""

COUNTS_FROM, COUNTS, FORGOTTEN_FROM, FORGOTTEN = range(4)
"""Of a call, what happens at a time: it may count, it surely counts, it may be forgotten, it surely is."""

UNSEEN = "when the circuit was open cannot be seen exactly"


class Count(NamedTuple):
    """How a call counts, and when: between these times."""

    kind: str
    early: float
    late: float


def law_r10_a_refusal_follows_failures(book: Book, found: Finding) -> None:
    """A row that a circuit breaker refused came after enough calls that failed, or were cut."""
    for run in book.runs:
        if "circuit_breaker" not in run.setting:
            continue
        needed, enough = run.failures
        for number, at, row, out in run.emitted:
            if row is None or out.error != "CircuitOpenError":
                continue
            found.decided()
            if enough > at + book.moment:
                what = f"row {row.row} of {run.name} was refused by the circuit breaker before {needed} calls failed"
                found.broken(what, at, number)


def law_r10_an_open_circuit_refuses_calls(book: Book, found: Finding) -> None:
    """While a circuit breaker is open no call starts, and when `open_for` has passed one, which tries it, alone."""
    for run in book.runs:
        if "circuit_breaker" in run.setting:
            if run.whole_calls:
                _Circuit(run, book, found).judge()
            else:
                found.undecided(PARTS)


class _Circuit:
    """The breaker of a run. It is closed with all counts at 0, until it opens, and again after a call that tried it."""

    def __init__(self, run: Run, book: Book, found: Finding) -> None:
        breaker = run.setting["circuit_breaker"]
        self._ratio = breaker.get("failure_ratio", FAILURE_RATIO)
        self._minimum = breaker.get("minimum_calls", MINIMUM_CALLS)
        self._open_for = breaker.get("open_for", OPEN_FOR)
        self._run = run
        self._book = book
        self._found = found
        self._counts = [_count(call, run, book) for call in run.calls]
        window = breaker.get("window", WINDOW)
        self._edges = sorted(self._made_edges(window * SURELY - book.near(window), window + book.near(window)))

    def _made_edges(self, surely: float, perhaps: float) -> Iterator[tuple[float, int, int]]:
        for place, (_, early, late) in enumerate(self._counts):
            yield early, COUNTS_FROM, place
            yield late, COUNTS, place
            yield max(late, early + surely), FORGOTTEN_FROM, place
            yield late + perhaps, FORGOTTEN, place

    def judge(self) -> None:
        first: int | None = 0
        edge = 0
        while first is not None:
            perhaps, surely, edge = self._opens(first, edge)
            first = self._closes(first, perhaps, surely)

    def _closes(self, first: int, perhaps: float, surely: float) -> int | None:
        """Judge a circuit from its opening until a call closes it. Returns the place of the next call after that; None
        if the circuit stays open, or if what happens to it cannot be seen."""
        while perhaps < inf:
            if surely >= perhaps + self._open_for - self._book.near(self._open_for):
                self._found.undecided(UNSEEN)
                return None
            probe = self._judge_open(first, perhaps, surely)
            if probe is None:
                return None
            first, (kind, perhaps, surely) = probe + 1, self._counts[probe]
            if kind == SUCCEEDED:
                return first
            if kind == UNKNOWN:
                self._found.undecided(UNSEEN)
                return None
            if kind == DROPPED:
                # It failed, or the next call tries the circuit: when cannot be seen.
                perhaps = surely = -inf
        return None

    def _opens(self, first: int, edge: int) -> tuple[float, float, int]:
        """When the closed circuit may open, and surely has, counting the calls from the first one on; where the sweep
        stopped."""
        fails = succeeds = surely_failed = surely_succeeded = 0
        perhaps = inf
        while edge < len(self._edges):
            at, what, place = self._edges[edge]
            edge += 1
            if place < first:
                continue
            kind, early, late = self._counts[place]
            if what in (COUNTS_FROM, FORGOTTEN):
                change = 1 if what == COUNTS_FROM else -1
                fails += change if kind != SUCCEEDED else 0
                succeeds += change if kind in (SUCCEEDED, UNKNOWN) else 0
                # As few of the others as the minimum needs.
                others = max(surely_succeeded, min(succeeds, self._minimum - fails))
                calls = fails + others
                if perhaps == inf and fails and calls >= self._minimum and fails >= self._ratio * calls - 1e-9:
                    perhaps = at
                continue
            change = 1 if what == COUNTS else -1
            surely_failed += change if kind == FAILED else 0
            surely_succeeded += change if kind == SUCCEEDED else 0
            exact = what == COUNTS and kind in (FAILED, SUCCEEDED) and late - early <= 3 * MOMENT
            enough = surely_failed + surely_succeeded >= self._minimum
            if exact and enough and surely_failed / (surely_failed + succeeds) >= self._ratio:
                return min(perhaps, at), at, edge
            if at > perhaps + self._open_for:
                break
        return perhaps, inf, edge

    def _judge_open(self, first: int, perhaps: float, surely: float) -> int | None:
        """Judge the calls of an open circuit. Returns the place of the one that tries it, if there is one."""
        run, book, found = self._run, self._book, self._found
        until = perhaps + self._open_for - book.near(self._open_for)
        probe = None
        for place in range(first, len(run.calls)):
            call = run.calls[place]
            if call.start <= surely + book.moment:
                continue
            found.decided()
            if probe is not None:
                if call.start >= self._counts[probe].early - book.moment:
                    break
                other = run.calls[probe]
                what = f"call {call.id!r} of {run.name} starts while call {other.id!r} tries the open circuit"
                found.broken(what, call.start, other.event, call.event)
            elif call.start < until:
                what = f"call {call.id!r} of {run.name} starts {call.start - surely:.6f} s after the circuit opened,"
                found.broken(f"{what} and open_for is {self._open_for}", call.start, call.event)
            else:
                probe = place
        return probe


def _count(call: Call, run: Run, book: Book) -> Count:
    """How a call counts for the circuit breaker."""
    cut = max(call.start, min((call.begun + limit - book.near(limit) for limit in run.limits), default=inf))
    in_time = call.stopped < cut
    early = call.stopped if in_time else cut
    others = [*call.copies, *([] if call.copy_of is None else [call.copy_of])]
    if call.outcome == "result":
        lost = any(other.outcome == "result" and other.stopped <= call.stopped for other in others)
        surely = in_time and not lost and not call.is_malformed
        return Count(SUCCEEDED if surely else UNKNOWN, early, call.stopped)
    if call.outcome in (None, "cancelled"):
        return Count(DROPPED, call.start, call.stopped)
    if call.error == "ResultError":
        return Count(UNKNOWN, early, call.stopped)
    if call.outcome == "timed_out":
        return Count(DROPPED if others else FAILED, min(early, call.stopped), call.stopped)
    left = any(other.outcome == "result" and other.stopped <= call.stopped + book.moment for other in others)
    return Count(DROPPED if left else FAILED, min(early, call.stopped), call.stopped)
