"""The one decision about a budget: who may start how much, and when. Pure: the state and the time are passed in.

    answer(state, message, now, new_server) -> (state, reply)

States, messages and replies are JSON objects, and `now` is the coordinator's time in seconds. The given state is used
up: it may be changed. None means that the coordinator has no state and may have had one; ``{}`` that it surely never
had one. `new_server` says that no earlier state was written by this server: so it may have a copy that is older than
the last state.

A message of a worker
    kind        "ask"
    version     `terms.VERSION`
    worker      a text that no other worker has
    budget      the limits, as `spec.definition` gives them; with other limits than those of the state, the reply is an
                error while other workers are there
    epoch, seen what the last reply said as "epoch" and "now"; None before the first
    seq         counts the messages of this worker, from 1
    reports     pairs of a number and a report. The number is the "seq" with which it was first sent. A worker sends a
                report again until a reply has come, and it is applied once
    held        for each limit, units that were granted and did not start
    horizon     the seconds for which the worker wants permits ahead, at most `Terms.horizon`
    want        for each limit, the units that the worker can use within this time
    call        for each limit, the weight of the call that waits now; 0 if none does
    usual       for each limit, what a call weighs on average; 0 if none has started
    waited      seconds that the waiting call has waited
    running     how many calls run
    slots       calls in flight: how many the worker may have, and how many it wants
    spend       for each unit: how much the worker holds for running calls and ahead, how much it wants to hold, what it
                must hold if the waiting call is to start, how much it has spent in its life, and how much of that the
                last reply has confirmed

Two other kinds of messages change nothing: "statistics", and "check", whose reply has as "error" what is wrong if a new
worker had the "budget" of the message, or None.

A report
    moved       [limit, end, start, units]: units of the entry at `end` started by `start` (None: they never start)
    debts       units by unit that were used beyond an estimate, for each limit of the unit
    refused     refused calls by unit
    hints       by unit, what the source said (`usage.Hint`)
    pause       seconds for which nothing may start, or absent

A reply
    seq, now, epoch
    again       the seconds after which the worker should ask again, if it is active
    until       the time at which this grant ends
    permits     for each limit, pairs: the earliest start and units
    slots       how many calls the worker may have in flight; None: there is no limit
    spend       by unit: how much the worker holds now, what was spent, and what all workers hold
    pause       seconds for which nothing may start
    workers     how many workers want units
    supply      how much of the units there is: `terms.SCARCE`, `ENOUGH` or `PLENTY`
    drop        units whose earlier permits must be given back, because the source said that less is left
    error       only if the budget cannot be used so: what is wrong

What is lost is safe. A message that never came, a reply that never came, a worker that was killed: the units that were
granted are counted at the end of their lease, and slots and amounts are held until the worker says otherwise or has
been silent for `FORGOTTEN` seconds. After that its amounts count as spent.

A coordinator that has forgotten (another epoch than a worker has seen, or a time before what a worker has seen) counts
every limit as used up until the end of the longest lease: so the limits hold over a restart too. What was spent cannot
be counted so: a budget with a spend limit is then an error. Where it may have forgotten, as without a state or on a new
server, nothing is granted first: so those who know more are heard before those who do not.
"""

from __future__ import annotations

from functools import partial

from asyncio_operator.budget import caps, sharing, workers
from asyncio_operator.budget.statistics import statistics
from asyncio_operator.budget.terms import GRAINS, RECOVERY, SETTLING, VERSION, Json, Terms, terms_of
from asyncio_operator.policies.rate_limit import RateWindow, rounded

LATELY = 0.5
"""Seconds. A source's statement is seldom older."""

LOST = (
    "its coordinator has lost its state, and so what was spent. Let Redis write to disk (appendonly yes), or use "
    "PostgreSQL; to go on, find out what was spent, and take another name and a lower limit"
)


def answer(state: Json | None, message: Json, now: float, new_server: bool = False) -> tuple[Json, Json]:
    """The new state and the reply. See the head of this module."""
    if state and (error := _other_state(state)):
        return state, {"error": error, "now": now, "seq": message.get("seq")}
    if not state:
        state = _new(message, now, now + RECOVERY if state is None else now)
    now = _advance(state, now)
    if new_server:
        state["ready"] = max(state["ready"], now + SETTLING)
    windows = _windows(state, now)
    if message["kind"] == "statistics":
        return state, {"statistics": statistics(state, windows, now)}
    if message["kind"] == "check":
        return state, {"error": _conflict(state, message, now)}
    if error := _other_version(message) or _conflict(state, message, now):
        return state, {"error": error, "now": now, "seq": message["seq"]}
    if state["budget"] != message["budget"]:
        windows = _adopt(state, message["budget"], now)
    terms = terms_of(state["budget"])
    known = message["epoch"] in (None, state["epoch"])
    if known and message["epoch"] is not None and message["seen"] > workers.last(state, message["worker"], now)[1]:
        # An older copy of the state was restored: everything that happened since is unknown.
        state["epoch"] = _epoch(message, now)
        known = False
    if not known and message["epoch"] not in state["former"]:
        state["former"].append(message["epoch"])
        state["lost"] = bool(state["budget"]["spend"])
        for window, limit in zip(windows, state["budget"]["limits"], strict=True):
            # Workers that have ended meanwhile may have started as much.
            window.place(rounded(now + terms.lease, limit[2] / GRAINS), limit[1] + limit[3])
    if state["lost"]:
        return state, {"error": LOST, "now": now, "seq": message["seq"]}
    workers.sweep(state, now)
    _note_peaks(state, windows, now)
    reply = _reply(state, windows, message, terms, now, known)
    state["windows"] = [window.state() for window in windows]
    return state, reply


def _reply(state: Json, windows: list[RateWindow], message: Json, terms: Terms, now: float, known: bool) -> Json:
    worker = workers.heard(state, message, now, known)
    reply: Json = {"seq": message["seq"], "now": now, "epoch": state["epoch"], "until": now + terms.lease}
    reply["permits"] = [[] for _ in windows]
    reply["drop"] = []
    if worker is None:
        # A late copy of an older message: its worker does not wait for this reply.
        return {**reply, "again": terms.longest, "slots": None, "spend": {}, "pause": 0.0, "workers": 1, "supply": 0}
    for number, report in message["reports"]:
        if number > worker["applied"]:
            # Entries of another epoch are not those that a report speaks of.
            _apply(state, windows, report if known else {**report, "moved": ()}, now)
    worker["applied"] = message["seq"]
    reply["drop"] = caps.dropped(state["caps"], worker["before"], now)
    starts = max(state["ready"], state["paused"])
    reply["pause"] = max(0.0, starts - now)
    slots = reply["slots"] = sharing.slots(state, message, worker, terms, now)
    if starts <= now and slots != 0:
        full = slots is not None and slots <= message["running"]
        reply["permits"] = sharing.grant(state, windows, message, worker, terms, now, full)
    reply["workers"] = state["shares"][2] if state["shares"] else 1
    reply["supply"] = sharing.supply(state, windows, now)
    reply["spend"] = sharing.spend(state, message, worker, now)
    reply["again"] = sharing.asks_again(state, worker) or terms.interval(len(state["workers"]))
    return reply


def _apply(state: Json, windows: list[RateWindow], report: Json, now: float) -> None:
    limits = state["budget"]["limits"]
    for limit, end, start, units in report.get("moved", ()):
        windows[limit].move(end, start, units)
    for unit, units in report.get("debts", {}).items():
        for window, (other, _, per, _) in zip(windows, limits, strict=True):
            if unit == other:
                window.owe(now, units, per / GRAINS)
    for unit, count in report.get("refused", {}).items():
        state["refused"][unit] = state["refused"].get(unit, 0) + count
    pause = report.get("pause", 0.0)
    limited = {limit[0] for limit in limits}
    for unit, hint in report.get("hints", {}).items():
        own = [
            caps.Own(window.most, per, partial(_since, window, peak))
            for (other, _, per, _), window, peak in zip(limits, windows, state["peaks"], strict=True)
            if unit == other
        ]
        caps.hear(state["caps"], unit, hint, workers.outstanding(state, unit), now, own)
        if unit not in limited:
            pause = max(pause, caps.pause(hint))
    state["paused"] = max(state["paused"], now + pause)


def _new(message: Json, now: float, ready: float) -> Json:
    return {
        "version": VERSION,
        "epoch": _epoch(message, now),
        "time": now,
        "offset": 0.0,
        "ready": ready,
        "paused": now,
        "budget": message["budget"],
        "windows": [[[], [], None] for _ in message["budget"]["limits"]],
        "peaks": [[now, 0.0, 0.0] for _ in message["budget"]["limits"]],
        "workers": {},
        "gone": {},
        "spent": {},
        "refused": {},
        "caps": {},
        "shares": None,
        "line": None,
        "passed": now,
        "claim": None,
        "scarce": now - sharing.HEARD,
        "former": [],
        "lost": False,
        "swept": now,
    }


def _epoch(message: Json, now: float) -> str:
    return f"{now!r} {message.get('worker', '')}"


def _advance(state: Json, now: float) -> float:
    """The time of the state. It goes on from where it was if the coordinator's clock has gone back."""
    time: float = now + state["offset"]
    if time < state["time"]:
        state["offset"] = state["time"] - now
        time = state["time"]
    state["time"] = time
    return time


def _windows(state: Json, now: float) -> list[RateWindow]:
    lease = terms_of(state["budget"]).lease
    windows = []
    for (unit, rate, per, burst), kept in zip(state["budget"]["limits"], state["windows"], strict=True):
        rate, burst = caps.lowered(state["caps"], unit, rate, per, burst, now)
        window = RateWindow(rate, per, burst, grain=per / GRAINS, lease=lease)
        window.restore(kept)
        window.forget(now)
        windows.append(window)
    return windows


def _other_version(message: Json) -> str | None:
    if (version := message["version"]) == VERSION:
        return None
    return f"this worker speaks version {version} of the protocol of budgets, and its coordinator version {VERSION}"


def _other_state(state: Json) -> str | None:
    if (version := state.get("version")) == VERSION:
        return None
    return (
        f"its coordinator holds a state of version {version}, and this worker knows version {VERSION} only; use one "
        "version of asyncio-operator everywhere, or another name for the budget"
    )


def _since(window: RateWindow, peak: list[float], begin: float) -> float:
    # A source's answer is about an earlier moment, at which more may have been counted.
    return window.since(begin) + max(peak[1:]) - window.used()


def _note_peaks(state: Json, windows: list[RateWindow], now: float) -> None:
    """Track the recent peak of each window, over the current and the previous half second."""
    for peak, window in zip(state["peaks"], windows, strict=True):
        if now - peak[0] > LATELY:
            peak[:] = now, 0.0, peak[1]
        peak[1] = max(peak[1], window.used())


def _conflict(state: Json, message: Json, now: float) -> str | None:
    """What is wrong if the message has other limits than workers that are there."""
    if state["budget"] == message["budget"] or not workers.others(state, message["worker"], now):
        return None
    return (
        f"it is in use with {_shown(state['budget'])}, and is {_shown(message['budget'])} here; one "
        "name must have the same limits everywhere at a time: take another name, or wait until the others have ended"
    )


def _shown(definition: Json) -> str:
    parts = [
        f"{rate:g} {unit} per {per:g} s" + (f" and a burst of {burst:g}" if burst else "")
        for unit, rate, per, burst in definition["limits"]
    ]
    if definition["in_flight"] is not None:
        parts.append(f"{definition['in_flight']} calls in flight")
    parts += [f"{amount:g} {unit} to spend" for unit, amount in definition["spend"].items()]
    return ", ".join(parts)


def _adopt(state: Json, definition: Json, now: float) -> list[RateWindow]:
    """Other limits, after all workers with the old ones have gone. Windows of the same unit and length are kept."""
    kept = {
        (unit, per): entries
        for (unit, _, per, _), entries in zip(state["budget"]["limits"], state["windows"], strict=True)
    }
    state["budget"] = definition
    state["windows"] = [kept.get((unit, per), [[], [], None]) for unit, _, per, _ in definition["limits"]]
    state["peaks"] = [[now, 0.0, 0.0] for _ in definition["limits"]]
    state["shares"] = state["line"] = state["claim"] = None
    workers.forget_all(state, now)
    return _windows(state, now)
