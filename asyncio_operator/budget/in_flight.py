"""Who may have how many calls in flight. A slot is the right to have one.

Slots are divided as permits are, but a level is seldom a whole number. Each worker may have as many as it wants, up to
the whole number below the level: its share. What then remains goes round. Workers that want more than their share form
a line, in the order in which they came, and the first gets the next slot that is free. One that has had such a slot
for `TURN` seconds passes it on when a call returns, if others wait, and goes to the end of the line. They do so one
after the other, because a slot that is passed on is empty for a moment. So where S slots go round among W workers, a
worker waits for ``(W - S) / S + 1`` turns at most, each of `TURN` and the rest of a call.
"""

from __future__ import annotations

from bisect import bisect_left

from asyncio_operator.budget.sharing import HEARD, NO_LEVEL, REFRESH, level
from asyncio_operator.budget.terms import MOST_WORKERS_A_SECOND, Json, Terms

TURN = 2.0
"""Seconds after which a worker passes a slot on that others wait for."""

SOON = 0.01
"""Seconds after which the first in the line ask again, so that no slot is empty for long."""

LATE = 0.1
"""Seconds by which a message of a worker in the line may be late. One that is killed must not hold the others up."""


def slots(state: Json, message: Json, worker: Json, terms: Terms, now: float) -> int | None:
    """How many calls a worker may have in flight. None: there is no limit."""
    most = state["budget"]["in_flight"]
    if most is None:
        return None
    held, wanted = message["slots"]
    taken = sum(other["slots"] for other in state["workers"].values())
    # Before that, others may have slots of which this state does not know.
    free = max(0, most - taken) if now >= state["ready"] else 0
    line = _line(state, most, terms, now)
    share = line["share"]
    allowed: int = min(wanted, share, held + free)
    if wanted <= share:
        worker["turn"] = worker["waits"] = None
        worker["passes"] = False
    elif held > share:
        allowed += _keeps(state, line, worker, now)
    else:
        worker["turn"], worker["passes"] = None, False
        if worker["waits"] is None:
            worker["waits"] = now
        # Those that have less than their share go first.
        if free - max(line["owed"], share - held) > bisect_left(line["waiting"], worker["waits"]):
            worker["turn"], worker["waits"] = now, None
            allowed = share + 1
    # Until the worker says that it has fewer, it may still use what it had.
    worker["slots"] = max(held, allowed)
    return allowed


def _keeps(state: Json, line: Json, worker: Json, now: float) -> bool:
    """Whether a worker keeps a slot beyond its share."""
    worker["waits"] = None
    if worker["turn"] is None:
        worker["turn"] = now
    if worker["passes"]:
        # It says so again until a call has returned.
        return False
    often = TURN / max(1, line["turns"])
    if line["beyond"] > line["turns"]:
        worker["passes"] = True
    elif line["passing"] < len(line["waiting"]) and now - worker["turn"] > TURN and now - state["passed"] >= often:
        worker["passes"] = True
        state["passed"] = max(state["passed"] + often, now - often)
    line["passing"] += worker["passes"]
    line["beyond"] -= worker["passes"]
    return not worker["passes"]


def asks_again(state: Json, worker: Json) -> float | None:
    """The seconds after which a worker asks again that is soon the first in the line; None for others."""
    line = state["line"]
    if line is None or worker["waits"] is None:
        return None
    first = 1 + line["passing"]
    if bisect_left(line["waiting"], worker["waits"]) >= first:
        return None
    soon: float = max(SOON, first / MOST_WORKERS_A_SECOND)
    return soon


def _line(state: Json, most: int, terms: Terms, now: float) -> Json:
    """The share, how many slots go round, and who waits for one."""
    line: Json | None = state["line"]
    if line is not None and now - line["at"] < REFRESH:
        return line
    active = [worker for worker in state["workers"].values() if now - worker["seen"] <= HEARD]
    wishes = [worker["wants"] for worker in active if worker["wants"]]
    share = int(min(level(most, wishes), NO_LEVEL))
    lately = now - 2 * terms.interval(len(state["workers"])) - LATE
    line = state["line"] = {
        "at": now,
        "share": share,
        "turns": max(0, most - sum(min(wish, share) for wish in wishes)),
        "owed": sum(max(0, min(worker["wants"], share) - worker["slots"]) for worker in active),
        "waiting": sorted(one["waits"] for one in active if one["waits"] is not None and one["seen"] >= lately),
        "passing": sum(worker["passes"] for worker in active),
        "beyond": sum(worker["slots"] > share and not worker["passes"] for worker in active),
    }
    return line
