"""Laws of limits: a rate limit of a run (R10), and budgets that tasks share (G).

Windows are judged by a sweep over all starts, so every window is looked at, and not some.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from math import inf
from typing import Any

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.event_format import Event
from asyncio_operator_proof.history.parts import LONGEST_WAIT, Call, Run
from asyncio_operator_proof.history.report import Finding
from asyncio_operator_proof.history.shared_limits import (
    KNOWN,
    TROUBLE,
    Limit,
    Shared,
    budgets,
    limits_of,
    outages,
    whole_calls,
)
from asyncio_operator_proof.history.sweeps import at_once, over_long_run, over_window

HEARD = 0.5
"""Seconds until all tasks of a budget believe what the source says (G5)."""

STOPPED = 1.0
"""Seconds until a coordinator that cannot be reached stops all starts (G7)."""

ROUGHLY = 0.02
"""The part of a limit by which debts may be counted roughly (G4)."""


def _own_limits(book: Book, found: Finding) -> list[Shared]:
    """The rate limits without a budget."""
    shared: dict[Run, Shared] = {}
    for call in whole_calls(book, found, "limits"):
        run = call.run
        if "budget" in run.setting:
            continue
        if run not in shared:
            shared[run] = Shared(run.name, run.setting)
        shared[run].calls.append(call)
    return list(shared.values())


def _judge_windows(shared: Shared, book: Book, found: Finding) -> None:
    for limit in shared.limits:
        unit, most = limit.unit, limit.rate + limit.burst
        starts = [(call.start, call.weight(unit)) for call in shared.calls]
        less = [(call.stopped, place, _too_high(call, unit)) for place, call in enumerate(shared.calls)]
        freed = sorted(one for one in less if one[2])
        found.decided(len(starts))
        for first, last, units in over_window(starts, most, limit.per, book.near(limit.per), freed):
            found.broken(
                f"{units:g} {limit.unit} of {shared.name} start within {limit.per:g} s, and the limit is {limit}",
                starts[last][0],
                *(call.event for call in (*shared.calls[first : first + 3], *shared.calls[last - 1 : last + 1])),
            )


def _too_high(call: Call, unit: str) -> float:
    """What the estimate of a call was too high: it is free again when the call has returned."""
    estimate = call.weight(unit)
    return max(0.0, estimate - call.settled.get(unit, estimate))


def law_r10_a_rate_limit_holds_in_every_window(book: Book, found: Finding) -> None:
    """At most `rate` calls start in any window of `per` seconds, plus `burst`: every call, retries and halves too."""
    for shared in _own_limits(book, found):
        _judge_windows(shared, book, found)


def law_g1_a_budget_has_the_same_limits_everywhere(book: Book, found: Finding) -> None:
    """All that name one budget have the same limits."""
    for shared in budgets(book, found):
        terms = _terms(shared.setting)
        for run in book.runs:
            if run.setting.get("budget") == shared.setting["budget"]:
                found.decided()
                if _terms(run.setting) != terms and run.calls:
                    what = f"{run.name} makes calls under {shared.name} with other limits than others"
                    found.broken(what, run.calls[0].start, shared.calls[0].event, run.calls[0].event)


def _terms(setting: Event) -> tuple[Any, ...]:
    """The limits in one form, however they are written."""
    return Counter(limits_of(setting)), setting.get("in_flight"), setting.get("spend", {})


def law_g1_at_most_in_flight_calls_run(book: Book, found: Finding) -> None:
    """At most `in_flight` calls of a budget run, over all of its tasks; a call runs until it has returned."""
    for shared in budgets(book, found):
        most = shared.setting.get("in_flight")
        if most is None:
            continue
        for call, running in at_once((call.span for call in shared.calls), book.moment):
            found.decided()
            if running > most:
                what = f"{running} calls of {shared.name} run, and in_flight is {most}"
                found.broken(what, call.start, call.event)


def law_g2_a_limit_holds_in_every_window(book: Book, found: Finding) -> None:
    """In every window of `per` seconds at most `rate` units start, plus `burst`, whatever tasks start, end or die."""
    for shared in budgets(book, found):
        _judge_windows(shared, book, found)


def law_g2_a_burst_is_paid_back(book: Book, found: Finding) -> None:
    """In any time T at most ``rate * T / per + rate + burst`` units start, by what they weighed in the end."""
    for shared in budgets(book, found):
        for limit in shared.limits:
            unit = limit.unit
            starts = [(call.start, call.weight(unit) - _too_high(call, unit)) for call in shared.calls]
            found.decided(len(starts))
            most = limit.rate + limit.burst
            for first, last, above in over_long_run(starts, limit.rate, limit.per, most, book.near(book.end)):
                seconds = starts[last][0] - starts[first][0]
                what = f"{above:g} {limit.unit} too many of {shared.name} start in {seconds:.6f} s, and the limit is"
                found.broken(f"{what} {limit}", starts[last][0], shared.calls[first].event, shared.calls[last].event)


def law_g4_a_debt_is_paid_from_the_next_windows(book: Book, found: Finding) -> None:
    """What calls weighed above their estimates is paid: later calls wait until the limit has room for it."""
    for shared in budgets(book, found):
        for limit in shared.limits:
            if limit.unit != "calls" and any(limit.unit in call.settled for call in shared.calls):
                _judge_debts(shared, limit, book, found)


def _judge_debts(shared: Shared, limit: Limit, book: Book, found: Finding) -> None:
    """A level that falls by `rate` units in `per` seconds, and rises with every start and with every debt.

    A call may start if it fits below ``rate + burst``; debts that others have just made need not be known yet. What an
    estimate was too high is free again, while the start is in the window.
    """
    changes: list[tuple[float, int, bool, float, Call]] = []
    for call in shared.calls:
        estimate = call.weight(limit.unit)
        changes.append((call.start, call.event, True, estimate, call))
        debt = call.settled.get(limit.unit, estimate) - estimate
        if debt > 0 or (debt < 0 and call.stopped < call.start + limit.per):
            changes.append((call.stopped, call.end_event or call.event, False, debt, call))
    # A call that takes no time has started before it is settled.
    changes.sort(key=lambda change: (change[0], change[1]))
    most, speed = limit.rate + limit.burst, limit.rate / limit.per
    tolerance = most * ROUGHLY + speed * book.near(limit.per)
    level, before, recent = 0.0, 0.0, 0.0
    young: deque[tuple[float, float]] = deque()
    for at, _, starts, units, call in changes:
        level, before = max(0.0, max(0.0, level - speed * (at - before)) + units), at
        if not starts and units < 0:
            continue
        if not starts:
            young.append((at, units))
            recent += units
            continue
        while young and young[0][0] < at - KNOWN:
            recent -= young.popleft()[1]
        found.decided()
        if level - recent > most + tolerance and units > 0:
            unpaid = f"{level - recent - most:g} {limit.unit}"
            what = f"call {call.id!r} of {shared.name} starts while {unpaid} of debts are unpaid"
            found.broken(f"{what}, and the limit is {limit}", at, call.event)


def law_g5_all_tasks_believe_the_source(book: Book, found: Finding) -> None:
    """Within 0.5 s all tasks of a budget obey what the source says: a wait, or how much is left until a reset."""
    for shared in budgets(book, found):
        hints = [(number, event) for number, event in book.said if _concerns(event, shared, book)]
        disturbed = _disturbances(shared, book) if hints else []
        heard = [one for one in hints if not _is_in(one[1]["at"], disturbed)]
        if len(heard) < len(hints):
            found.undecided("a worker that heard the source, or the coordinator, may not have said so")
        if hints:
            _judge_waits(shared, heard, book, found)
            _judge_remaining(shared, hints, heard, book, found)


def _concerns(event: Event, shared: Shared, book: Book) -> bool:
    if "budget" in event:
        return bool(event["budget"] == shared.setting["budget"])
    task = book.tasks.get(event.get("task"))
    run = None if task is None else task.runs.get(event.get("lookup", 0))
    return run is not None and run.setting.get("budget") == shared.setting["budget"]


def _disturbances(shared: Shared, book: Book) -> list[tuple[float, float]]:
    """The times in which a fault may keep what the source says from other tasks, for longer than it should take. They
    do not overlap, and are in the order of time."""
    faults = [(begin, end + TROUBLE) for begin, end, _ in outages(shared, book)]
    for _, event in book.faults:
        if event.get("budget", shared.setting["budget"]) == shared.setting["budget"]:
            lasts = TROUBLE if event["what"] == "message_lost" else 0.0
            faults.append((event["at"], event["at"] + lasts))
    found: list[tuple[float, float]] = []
    for begin, end in sorted(faults):
        begin -= HEARD + book.moment
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _is_in(at: float, spans: list[tuple[float, float]]) -> bool:
    place = bisect_right(spans, (at, inf))
    return place > 0 and at <= spans[place - 1][1]


def _is_right(hint: Event) -> bool:
    """Whether what a hint says is left can be right. Others are ignored."""
    limit, remaining = hint.get("limit", inf), hint.get("remaining", -1)
    return bool(limit != 0 and 0 <= remaining <= limit and 0 < hint.get("reset", 0) <= LONGEST_WAIT)


def _judge_waits(shared: Shared, hints: list[tuple[int, Event]], book: Book, found: Finding) -> None:
    """Hints in the order of time: nothing starts between half a second after one and the end of its wait."""
    waits = [
        (event["at"] + HEARD + book.moment, event["at"] + event["wait"] - book.near(event["wait"]), number)
        for number, event in hints
        if 0 < event.get("wait", 0) <= LONGEST_WAIT
    ]
    place, until, said = 0, -inf, 0
    for call in shared.calls:
        while place < len(waits) and waits[place][0] <= call.start:
            if waits[place][1] > until:
                until, said = waits[place][1], waits[place][2]
            place += 1
        if waits:
            found.decided()
        if call.start < until:
            what = f"call {call.id!r} of {shared.name} starts, though the source asked for a wait until {until:.6f}"
            found.broken(what, call.start, said, call.event)


def _judge_remaining(
    shared: Shared, hints: list[tuple[int, Event]], heard: list[tuple[int, Event]], book: Book, found: Finding
) -> None:
    """What starts after a hint, and before its reset or the next hint for the unit, is no more than it left."""
    by_unit: dict[str, list[tuple[int, Event]]] = {}
    for number, event in hints:
        if _is_right(event):
            by_unit.setdefault(event.get("unit", "calls"), []).append((number, event))
    sure = {number for number, _ in heard}
    for unit, some in by_unit.items():
        refill = max((limit.rate / limit.per for limit in shared.limits if limit.unit == unit), default=0.0)
        place = 0
        for index, (number, event) in enumerate(some):
            if number not in sure:
                continue
            begin = event["at"] + HEARD + book.moment
            end = event["at"] + event["reset"] - book.near(event["reset"])
            if index + 1 < len(some):
                end = min(end, some[index + 1][1]["at"])
            while place < len(shared.calls) and shared.calls[place].start <= begin:
                place += 1
            # Of a source that gives back nothing before the reset there is no more.
            speed = 0.0 if event.get("refills") is False else refill
            units, position = 0.0, place
            found.decided()
            while position < len(shared.calls) and (call := shared.calls[position]).start < end:
                units += call.weight(unit)
                # A source that refills all the time gives no more than the user's own limit.
                if units > event["remaining"] + speed * (call.start - event["at"]) + 1e-9:
                    what = f"{units:g} {unit} of {shared.name} start after the source said that"
                    found.broken(f"{what} {event['remaining']:g} are left", call.start, number, call.event)
                    break
                position += 1
            place = position


def law_g7_nothing_starts_without_a_coordinator(book: Book, found: Finding) -> None:
    """From a second after the coordinator cannot be reached no call starts, until it is back."""
    for shared in budgets(book, found):
        for begin, end, number in outages(shared, book):
            found.decided()
            place = bisect_right(shared.calls, begin + STOPPED + book.moment, key=lambda call: call.start)
            if place < len(shared.calls) and (call := shared.calls[place]).start < end:
                what = f"call {call.id!r} of {shared.name} starts, and its coordinator is gone since {begin:.6f}"
                found.broken(what, call.start, number, call.event)
