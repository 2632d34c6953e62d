"""What a coordinator knows of each worker: when it was heard, what it holds and wants.

A worker that is silent for `FORGOTTEN` seconds is gone: its slots are free, and the amounts that it held count as
spent, because its calls may have been made. If it comes back, its own figures count again.

Silence of all workers is most likely that of the coordinator: it was stopped, or could not be reached. Their calls run
on meanwhile, so their slots must not be free when it is there again. Of such a time only `QUIET` seconds count.
"""

from __future__ import annotations

from asyncio_operator.budget.terms import FORGOTTEN, Json

REMEMBERED = 120.0
"""Seconds for which a gone worker may come back and repeat a report that was applied before."""

SWEEP_EVERY = 0.5

QUIET = 1.0
"""Seconds. Workers that have something to do ask more often, unless there are more than a thousand."""


def heard(state: Json, message: Json, now: float, known: bool) -> Json | None:
    """The record of the worker that sent the message; None if a later message of it was applied before.

    Args:
        known: whether the worker speaks of this state, and not of one that was lost.
    """
    name = message["worker"]
    worker: Json | None = state["workers"].get(name)
    if message["seq"] <= last(state, name, now)[0]:
        if worker is not None:
            # It may hear the time of this reply.
            worker["heard"] = now
        return None
    if worker is None:
        worker = _new(state, name, now)
    state["workers"][name] = worker
    worker["before"], worker["seen"], worker["heard"] = worker["seen"], now, now
    for field in ("held", "want"):
        worker[field] = message[field]
    held, wanted = message["slots"]
    worker["slots"], worker["wants"] = held, wanted
    worker["idle"] = not (message["running"] or wanted or held or any(message["held"]) or any(message["want"]))
    worker["spend"] = {}
    for unit, (holds, _, _, total, confirmed) in message["spend"].items():
        worker["spend"][unit] = holds
        worker["idle"] &= not holds
        # Of a worker that was silent for long, no record is left; it knows itself what was counted.
        counted = worker["totals"].get(unit, confirmed if known else 0.0)
        state["spent"][unit] = state["spent"].get(unit, 0.0) + total - counted
        worker["totals"][unit] = total
    return worker


def last(state: Json, name: str, now: float) -> tuple[int, float]:
    """The number of the worker's last message, and a time since which none came, as far as this state knows."""
    if (worker := state["workers"].get(name)) is not None:
        return worker["applied"], worker["heard"]
    if (gone := state["gone"].get(name)) is not None:
        return gone[1], gone[0]
    return 0, now - REMEMBERED


def _new(state: Json, name: str, now: float) -> Json:
    worker: Json = {"applied": 0, "seen": now, "slots": 0, "turn": None, "waits": None, "passes": False, "totals": {}}
    gone = state["gone"].pop(name, None)
    if gone is not None:
        _, worker["applied"], held, worker["totals"] = gone
        for unit, amount in held.items():
            state["spent"][unit] -= amount
    return worker


def sweep(state: Json, now: float) -> None:
    """Let go of workers that are silent."""
    silence = now - state["swept"]
    if silence < SWEEP_EVERY:
        return
    state["swept"] = now
    for worker in state["workers"].values():
        worker["seen"] += max(0.0, silence - QUIET)
    for name, worker in [*state["workers"].items()]:
        if now - worker["seen"] > FORGOTTEN:
            _let_go(state, name, worker, now)
    for name, (since, _, _, _) in [*state["gone"].items()]:
        if now - since > REMEMBERED:
            del state["gone"][name]


def forget_all(state: Json, now: float) -> None:
    """Let go of all workers: the limits have changed."""
    for name, worker in [*state["workers"].items()]:
        _let_go(state, name, worker, now)


def _let_go(state: Json, name: str, worker: Json, now: float) -> None:
    held = {unit: amount for unit, amount in worker["spend"].items() if amount}
    for unit, amount in held.items():
        state["spent"][unit] = state["spent"].get(unit, 0) + amount
    state["gone"][name] = [now, worker["applied"], held, worker["totals"]]
    del state["workers"][name]


def others(state: Json, name: str, now: float) -> bool:
    """Whether workers other than this one were heard lately, and did not say that they have nothing to do."""
    return any(
        other != name and not worker["idle"] and now - worker["seen"] <= FORGOTTEN
        for other, worker in state["workers"].items()
    )


def outstanding(state: Json, unit: str) -> float:
    """The units that were granted and did not start, as far as it is known."""
    places = [place for place, limit in enumerate(state["budget"]["limits"]) if limit[0] == unit]
    return max((sum(worker["held"][place] for worker in state["workers"].values()) for place in places), default=0.0)
