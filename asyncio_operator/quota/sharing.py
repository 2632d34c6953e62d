"""Who gets how much: permits and amounts to spend are divided by what workers want.

The division is max-min fair ("water-filling"): there is one level, and each worker gets what it wants, up to the level.
So what one does not need goes to those that do, and no one who wants little waits for those who want much. A worker
with a waiting call may always get what this call needs, even if that is more than the level.

A slot is the right to have a call in flight. Slots are divided as permits are, but a level is seldom a whole number.
Each worker may have as many as it wants, up to the whole number below the level: its share. What then remains goes
round: workers form a line, in the order in which they came, and the first of those that want more have one slot more.
Each keeps it for `TURN` seconds and then goes to the end of the line. They do so one after the other, because a slot
that is passed on, when a call returns, is empty for a moment. So where S slots go round among W workers, a worker waits
for ``(W - S) / S + 1`` turns at most, each of `TURN` and the rest of a call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from asyncio_operator.quota import caps
from asyncio_operator.quota.state import Claim, Shares, State, Worker
from asyncio_operator.quota.terms import ENOUGH, MOST_WORKERS_A_SECOND, PLENTY, SCARCE, Json
from asyncio_operator.quota.window import rounded

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
    """What each worker may have, from what all want, unless that was found just before."""
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


def slots(state: State, worker: Worker, name: str, shares: Shares, now: float) -> int | None:
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
