"""The one decision about a budget: who may start how much, and when. Pure: the state and the time are passed in.

    answer(state, message, now, new_server) -> (state, reply)

Messages and replies are JSON objects, and `now` is the coordinator's time in seconds. A state is a `State`, or its JSON
as a server has stored it. The given one is used up: it may be changed; the message may not: it may be answered again.
None means that the coordinator has no state and may have had one; ``{}`` that it surely never had one. `new_server`
says that no earlier state was written by this server: so it may have a copy that is older than the last state.

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

from asyncio_operator.quota import caps, sharing
from asyncio_operator.quota.state import State, windows_of
from asyncio_operator.quota.statistics import statistics
from asyncio_operator.quota.terms import RECOVERY, SETTLING, VERSION, Json, Terms
from asyncio_operator.quota.usage import Hint
from asyncio_operator.quota.window import rounded

LOST = (
    "its coordinator has lost its state, and so what was spent. Let Redis write to disk (appendonly yes), or use "
    "PostgreSQL; to go on, find out what was spent, and take another name and a lower limit"
)


def answer(
    stored: State | Json | None, message: Json, now: float, new_server: bool = False
) -> tuple[State | Json, Json]:
    """The new state and the reply. See the head of this module."""
    if isinstance(stored, dict) and stored:
        if (version := stored.get("version")) != VERSION:
            problem = (
                f"its coordinator holds a state of version {version}, and this worker knows version {VERSION} only; "
                "use one version of asyncio-operator everywhere, or another name for the budget"
            )
            return stored, {"error": problem, "now": now, "seq": message.get("seq")}
        stored = State.of(stored)
    if isinstance(stored, State):
        state = stored
    else:
        terms = Terms(message["budget"])
        ready = now + RECOVERY if stored is None else now
        epoch = f"{now!r} {message.get('worker', '')}"
        state = State(terms, epoch, now, ready, windows_of(terms, now))
    now = state.advance(now)
    if new_server:
        state.ready = max(state.ready, now + SETTLING)
    if message["kind"] == "statistics":
        return state, {"statistics": statistics(state, now)}
    if message["kind"] == "check":
        return state, {"error": _conflict(state, message, now)}
    if (version := message["version"]) == VERSION:
        error = _conflict(state, message, now)
    else:
        error = f"this worker speaks version {version} of the budget protocol, its coordinator version {VERSION}"
    if error:
        return state, {"error": error, "now": now, "seq": message["seq"]}
    if state.terms.definition != message["budget"]:
        state.adopt(message["budget"])
    known = message["epoch"] in (None, state.epoch)
    if known and message["epoch"] is not None and message["seen"] > state.last(message["worker"], now)[1]:
        # An older copy of the state was restored: everything that happened since is unknown.
        state.epoch = f"{now!r} {message['worker']}"
        known = False
    if not known and message["epoch"] not in state.former:
        state.former.append(message["epoch"])
        state.lost = bool(state.terms.spend)
        for window in state.windows:
            # Workers that have ended meanwhile may have started as much.
            window.place(rounded(now + state.terms.lease, window.grain), window.limit.rate + window.limit.burst)
    if state.lost:
        return state, {"error": LOST, "now": now, "seq": message["seq"]}
    state.sweep(now)
    for window in state.windows:
        window.note_peak(now)
    return state, _reply(state, message, now, known)


def _reply(state: State, message: Json, now: float, known: bool) -> Json:
    terms, worker = state.terms, state.hear(message, now, known)
    reply: Json = {"seq": message["seq"], "now": now, "epoch": state.epoch, "until": now + terms.lease}
    reply["permits"] = [[] for _ in state.windows]
    reply["drop"] = []
    if worker is None:
        # A late copy of an older message: its worker does not wait for this reply.
        return {**reply, "again": terms.longest, "slots": None, "spend": {}, "pause": 0.0, "workers": 1, "supply": 0}
    for number, report in message["reports"]:
        if number > worker.applied:
            # Entries of another epoch are not those that a report speaks of.
            _apply(state, report if known else {**report, "moved": ()}, now)
    worker.applied = message["seq"]
    reply["drop"] = caps.dropped(state.caps, worker.before, now)
    starts = max(state.ready, state.paused)
    reply["pause"] = max(0.0, starts - now)
    name, shares = message["worker"], sharing.divide(state, message, now)
    slots = reply["slots"] = sharing.slots(state, worker, name, shares, now)
    if starts <= now and slots != 0:
        full = slots is not None and slots <= message["running"]
        reply["permits"] = sharing.grant(state, message, worker, shares.levels, now, full)
    reply["workers"] = shares.sharers
    reply["supply"] = sharing.supply(state, now)
    reply["spend"] = sharing.spend(state, message, worker, now)
    reply["again"] = sharing.asks_again(state, worker, name, shares) or terms.interval(len(state.workers))
    return reply


def _apply(state: State, report: Json, now: float) -> None:
    for place, end, start, units in report.get("moved", ()):
        state.windows[place].move(end, start, units)
    for unit, units in report.get("debts", {}).items():
        for window in state.windows:
            if window.limit.unit == unit:
                window.owe(now, units, window.grain)
    for unit, count in report.get("refused", {}).items():
        state.refused[unit] = state.refused.get(unit, 0) + count
    pause = report.get("pause", 0.0)
    for unit, said in report.get("hints", {}).items():
        hint = Hint(**said)
        limiting = [window for window in state.windows if window.limit.unit == unit]
        caps.hear(state.caps, unit, hint, state.outstanding(unit), now, limiting)
        if not limiting:
            pause = max(pause, caps.pause(hint))
    state.paused = max(state.paused, now + pause)


def _conflict(state: State, message: Json, now: float) -> str | None:
    """What is wrong if the message has other limits than workers that are there."""
    if state.terms.definition == message["budget"] or not state.others(message["worker"], now):
        return None
    return (
        f"it is in use with {state.terms}, and is {Terms(message['budget'])} here; one name must have the same limits "
        "everywhere at a time: take another name, or wait until the others have ended"
    )
