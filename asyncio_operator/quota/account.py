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

import math
from collections.abc import Sequence

from asyncio_operator.quota import caps
from asyncio_operator.quota.state import Claim, Shares, State, Worker, statistics, windows_of
from asyncio_operator.quota.terms import (
    ENOUGH,
    MOST_WORKERS_A_SECOND,
    PLENTY,
    RECOVERY,
    SCARCE,
    SETTLING,
    VERSION,
    Json,
    Terms,
)
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
    name, shares = message["worker"], divide(state, message, now)
    slots = reply["slots"] = slots_of(state, worker, name, shares, now)
    if starts <= now and slots != 0:
        full = slots is not None and slots <= message["running"]
        reply["permits"] = grant(state, message, worker, shares.levels, now, full)
    reply["workers"] = shares.sharers
    reply["supply"] = supply(state, now)
    reply["spend"] = spend(state, message, worker, now)
    reply["again"] = asks_again(state, worker, name, shares) or terms.interval(len(state.workers))
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


# -- who gets how much: permits and amounts to spend are divided by what workers want

HEARD = 1.0  # Seconds after its last message in which the wishes of a worker count.
REFRESH = 0.02  # Seconds for which levels are kept: they cost a look at all workers.
NO_LEVEL = 1e300  # All get what they want.
LATELY = 0.1  # Seconds in which units are scarce after one worker had to wait for them.

CLAIM_AFTER = 1.0
"""Seconds after which a waiting call of one worker is served before the others, so that heavy calls do not starve."""

TURN = 2.0  # Seconds after which a worker passes a slot on that others wait for.
SOON = 0.01  # Seconds after which the first in the line ask again, so that no slot is empty for long.

LATE = 0.1
"""Seconds by which a message of a worker in the line may be late. One that is killed must not hold the others up."""


def level(amount: float, wishes: Sequence[float]) -> float:
    """The highest level at which ``sum(min(wish, level))`` is at most `amount`; infinity if all can have all."""
    left, rest = amount, len(wishes)
    for wish in sorted(wishes):
        if wish * rest > left:
            return left / rest
        left -= wish
        rest -= 1
    return math.inf


def divide(state: State, message: Json, now: float) -> Shares:
    """What each worker may have, from what all want, unless that was found just before.

    The division is max-min fair ("water-filling"): there is one level, and each worker gets what it wants, up to the
    level. So what one does not need goes to those that do, and no one who wants little waits for those who want much. A
    worker with a waiting call may always get what this call needs, even if that is more than the level.

    A slot is the right to have a call in flight. Slots are divided as permits are, but a level is seldom a whole
    number. Each worker may have as many as it wants, up to the whole number below the level: its share. What then
    remains goes round: workers form a line, in the order in which they came, and the first of those that want more have
    one slot more. Each keeps it for `TURN` seconds and then goes to the end of the line. They do so one after the
    other, because a slot that is passed on, when a call returns, is empty for a moment. So where S slots go round among
    W workers, a worker waits for ``(W - S) / S + 1`` turns at most, each of `TURN` and the rest of a call.
    """
    if state.shares is not None and now - state.shares.at < REFRESH:
        return state.shares
    terms, active = state.terms, state.active(now, HEARD)
    horizon, until = now + min(message["horizon"], terms.horizon), now + terms.lease
    levels, sharers = [], 1
    for place, window in enumerate(state.windows):
        wishes = [worker.want[place] for worker in active if worker.want[place]]
        sharers = max(sharers, len(wishes))
        pool = window.room(horizon, until) + sum(worker.held[place] for worker in active)
        levels.append(min(level(max(0.0, pool), wishes), NO_LEVEL))
    share = turns = 0
    line: list[str] = []
    if (most := terms.in_flight) is not None:
        slot_wishes = [worker.wants for worker in active if worker.wants]
        share = int(min(level(most, slot_wishes), most))
        turns = max(0, most - sum(min(wish, share) for wish in slot_wishes))
        lately = now - 2 * terms.interval(len(state.workers)) - LATE
        line = [name for name, one in state.workers.items() if one.wants > share and one.seen >= lately]
        often = TURN / max(1, turns)
        over = min(turns, int((now - state.passed) / often)) if len(line) > turns else 0
        state.passed = max(state.passed + over * often, now - often) if len(line) > turns else now
        for name in line[:over]:
            state.workers[name] = state.workers.pop(name)
        line = [*line[over:], *line[:over]]
    state.shares = Shares(now, levels, sharers, share, turns, line[: turns + 1])
    return state.shares


def grant(
    state: State, message: Json, worker: Worker, levels: Sequence[float], now: float, full: bool
) -> list[list[list[float]]]:
    """The permits for a worker, for each limit. They are placed in the windows. `levels`: see `Shares`. `full`: the
    worker's slots are all in use, so its waiting call may not start now."""
    windows, terms = state.windows, state.terms
    calls = [0.0] * len(windows) if full else message["call"]
    until, horizon = now + terms.lease, now + min(message["horizon"], terms.horizon)
    claim, name = state.claim, message["worker"]
    if claim is not None:
        claimer = state.workers.get(claim.worker)
        if claim.worker == name or claimer is None or now - claimer.seen > HEARD:
            claim = None
    if claim is None and message["waited"] >= CLAIM_AFTER:
        claim = Claim(name, message["call"])
    state.claim = claim
    plans = []
    for place, window in enumerate(windows):
        held, call, fair = worker.held[place], calls[place], levels[place]
        if call and fair < NO_LEVEL:
            # A part of a call is of no use, so some workers have one more than others for now.
            fair = math.ceil(fair / call * (1 - 1e-9)) * call
        target = max(min(worker.want[place], fair), call) - held
        if claim is not None and claim.worker != name:
            # The others leave to that worker what its call needs.
            target = min(target, window.room(horizon, until) - claim.call[place])
        target = min(target, caps.available(state.caps, window.limit.unit, now))
        plan = window.plan(now, horizon, until, target) if target > 0 else []
        total = sum(units for _, units in plan)
        if not full and target > 0 and (total < target or plan[0][0] > now):
            state.scarce = now
        if call and held + total < call * (1 - 1e-9):
            # Less than the call needs is of no use to this worker, in no unit.
            return [[] for _ in windows]
        if (part := call or message["usual"][place]) and plan:
            # As many units as whole calls need: a part of one is of no use.
            whole = math.floor((held + total) / part * (1 + 1e-9)) * part - held
            plan = window.plan(now, horizon, until, whole) if whole < total else plan
        plans.append(plan)
    for place, window in enumerate(windows):
        total = sum(units for _, units in plans[place])
        if total > 0:
            window.place(rounded(until, window.grain), total)
            worker.held[place] += total
            if place == 0 or windows[place - 1].limit.unit != window.limit.unit:
                caps.take(state.caps, window.limit.unit, total, now)
    if claim is not None and claim.worker == name:
        state.claim = None
    return plans


def supply(state: State, now: float) -> int:
    """How much there is: `SCARCE`, `ENOUGH` or `PLENTY`."""
    if all(2 * window.used <= window.most for window in state.windows):
        return PLENTY
    return SCARCE if now - state.scarce <= LATELY else ENOUGH


def spend(state: State, message: Json, worker: Worker, now: float) -> Json:
    """By unit: what a worker may hold, what was spent, and what all workers hold."""
    reply: Json = {}
    for unit, most in state.terms.spend.items():
        held, wanted, needed, _, _ = message["spend"][unit]
        spent = state.spent.get(unit, 0.0)
        total = sum(other.spend.get(unit, 0.0) for other in state.workers.values())
        # Before that, others may hold amounts of which this state does not know.
        free = max(0.0, most * (1 + 1e-9) - spent - total) if now >= state.ready else 0.0
        given = min(max(min(wanted, held + free / len(state.workers)), needed) - held, free)
        if given > 0 and held + given >= needed * (1 - 1e-9):
            worker.spend[unit] = held + given
            total += given
        reply[unit] = [worker.spend.get(unit, 0.0), spent, total]
    return reply


def slots_of(state: State, worker: Worker, name: str, shares: Shares, now: float) -> int | None:
    """How many calls a worker may have in flight. None: there is no limit."""
    most, held = state.terms.in_flight, worker.slots
    if most is None:
        return None
    # Before that, others may have slots of which this state does not know.
    free = max(0, most - sum(other.slots for other in state.workers.values())) if now >= state.ready else 0
    first = name in shares.line[: shares.turns]
    allowed = min(worker.wants, shares.slots + first, held + free)
    # Until the worker says that it has fewer, it may still use what it had.
    worker.slots = max(held, allowed)
    return allowed


def asks_again(state: State, worker: Worker, name: str, shares: Shares) -> float | None:
    """The seconds after which a worker asks again that waits for its slot beyond its share, or is the next to get one;
    None for others."""
    if worker.slots > shares.slots or name not in shares.line:
        return None
    waiting = sum(one in state.workers and state.workers[one].slots <= shares.slots for one in shares.line)
    return max(SOON, waiting / MOST_WORKERS_A_SECOND)
