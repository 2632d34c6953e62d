"""What a coordinator knows of one budget: a `State`. A server stores it as a JSON object of the same fields.

A worker that is silent for `FORGOTTEN` seconds is gone: its slots are free, and the amounts that it held count as
spent, because its calls may have been made. If it comes back, its own figures count again.

Silence of all workers is most likely that of the coordinator: it was stopped, or could not be reached. Their calls run
on meanwhile, so their slots must not be free when it is there again. Of such a time only `QUIET` seconds count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from asyncio_operator.quota.caps import Cap, lowered
from asyncio_operator.quota.terms import FORGOTTEN, GRAINS, VERSION, Json, Terms
from asyncio_operator.quota.window import Window

REMEMBERED = 120.0  # Seconds for which a gone worker may come back and repeat a report that was applied before.

SWEEP_EVERY = 0.5

QUIET = 1.0  # Seconds. Workers that have something to do ask more often, unless there are more than a thousand.


@dataclass
class Worker:
    """What a worker said last, and what it was granted."""

    seen: float  # The time of its last message. It is moved on while all workers are silent.
    applied: int = 0  # The number of that message.
    totals: dict[str, float] = field(default_factory=dict)  # By unit: what it has spent in its life.
    before: float = 0.0  # The time of the message before.
    heard: float = 0.0  # The time of its last message, also of one that came too late to be applied.
    held: list[float] = field(default_factory=list)  # For each limit: units that were granted and did not start.
    want: list[float] = field(default_factory=list)  # For each limit: units that it can use.
    slots: int = 0  # The calls that it may have in flight, and those that it wants:
    wants: int = 0
    spend: dict[str, float] = field(default_factory=dict)  # By unit: what it holds of a sum.
    idle: bool = False  # Whether it has nothing to do.


class Gone(NamedTuple):
    """A worker that is gone: since when, and what it had then."""

    since: float
    applied: int
    spend: dict[str, float]
    totals: dict[str, float]


class Shares(NamedTuple):
    """What each worker may have, as it was found at a time from what all want."""

    at: float
    levels: list[float]  # For each limit: the units that none may have more of, unless all have what they want.
    sharers: int  # How many want units.
    slots: int  # The calls in flight of each worker that wants them.
    turns: int  # The slots that remain, for the first in the line.
    line: list[str]  # These, and the next one.


class Claim(NamedTuple):
    """The worker whose call has waited longest, and what the call weighs in each limit."""

    worker: str
    call: list[float]


@dataclass
class State:
    """All that is known of a budget. Times are the coordinator's, in seconds."""

    terms: Terms
    epoch: str  # Another one after something was lost.
    time: float  # Of the last message.
    ready: float  # Nothing is granted before, because this state may be older than the last one.
    windows: list[Window]
    paused: float = 0.0  # Nothing is granted before, because the source has asked so.
    passed: float = 0.0  # When the first in the line last went to its end.
    scarce: float = -1.0  # When a worker last had to wait for units.
    swept: float = 0.0  # When silent workers were last looked for.
    offset: float = 0.0  # What is added to the coordinator's clock, which may have gone back.
    workers: dict[str, Worker] = field(default_factory=dict)  # In the order of their line.
    gone: dict[str, Gone] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)  # By unit.
    refused: dict[str, int] = field(default_factory=dict)  # Calls by unit.
    caps: dict[str, Cap] = field(default_factory=dict)  # By unit.
    shares: Shares | None = None
    claim: Claim | None = None
    former: list[str | None] = field(default_factory=list)  # Earlier epochs that workers have named.
    lost: bool = False  # Whether it is unknown what was spent.

    @classmethod
    def of(cls, stored: Json) -> State:
        """From JSON, which is used up."""
        read = {name: value for name, value in stored.items() if name not in ("version", "budget", "peaks")}
        terms = read["terms"] = Terms(stored["budget"])
        read["windows"] = windows = windows_of(terms, 0.0)
        for window, entries, peak in zip(windows, stored["windows"], stored["peaks"], strict=True):
            window.restore(entries)
            window.peak = peak
        workers = read["workers"] = {}
        for name, fields in stored["workers"].items():
            # In a tenth of the time of `Worker(**fields)`: there may be a thousand.
            worker = workers[name] = object.__new__(Worker)
            worker.__dict__ = fields
        read["gone"] = {name: Gone(*one) for name, one in stored["gone"].items()}
        read["caps"] = {unit: Cap(**one) for unit, one in stored["caps"].items()}
        read["shares"] = stored["shares"] and Shares(*stored["shares"])
        read["claim"] = stored["claim"] and Claim(*stored["claim"])
        return cls(**read)

    def as_json(self) -> Json:
        """As JSON, which shares lists and dictionaries with the state: to be written at once."""
        written: Json = {"version": VERSION, "budget": self.terms.definition, **vars(self)}
        del written["terms"]
        written["windows"] = [window.state() for window in self.windows]
        written["peaks"] = [window.peak for window in self.windows]
        written["workers"] = {name: vars(worker) for name, worker in self.workers.items()}
        written["caps"] = {unit: vars(cap) for unit, cap in self.caps.items()}
        return written

    def advance(self, now: float) -> float:
        """The time of the state. It goes on from where it was if the coordinator's clock has gone back."""
        self.offset = max(self.offset, self.time - now)
        self.time = max(self.time, now + self.offset)
        self._renew_windows()
        return self.time

    def _renew_windows(self) -> None:
        for window in self.windows:
            window.allow(*lowered(self.caps, window.limit, self.time))
            window.forget(self.time)

    def adopt(self, definition: Json) -> None:
        """Other limits, after all workers with the old ones have gone. Windows of the same unit and length are kept."""
        kept = {(window.limit.unit, window.limit.per): window.state() for window in self.windows}
        self.terms = terms = Terms(definition)
        self.windows = windows_of(terms, self.time)
        for window in self.windows:
            if entries := kept.get((window.limit.unit, window.limit.per)):
                window.restore(entries)
        self._renew_windows()
        self.shares = self.claim = None
        for name in [*self.workers]:
            self._let_go(name, self.time)

    # -- workers

    def hear(self, message: Json, now: float, known: bool) -> Worker | None:
        """The worker that sent the message; None if a later message of it was applied before. `known`: the worker
        speaks of this state, and not of one that was lost."""
        name = message["worker"]
        worker = self.workers.get(name)
        if message["seq"] <= self.last(name, now)[0]:
            if worker is not None:
                # It may hear the time of this reply.
                worker.heard = now
            return None
        if worker is None:
            worker = self.workers[name] = Worker(now)
            if (gone := self.gone.pop(name, None)) is not None:
                worker.applied, worker.totals = gone.applied, gone.totals
                for unit, amount in gone.spend.items():
                    self.spent[unit] -= amount
        worker.before, worker.seen, worker.heard = worker.seen, now, now
        worker.held, worker.want = [*message["held"]], message["want"]  # What is granted is added to the copy.
        worker.slots, worker.wants = message["slots"]
        worker.spend = {}
        for unit, (holds, _, _, total, confirmed) in message["spend"].items():
            worker.spend[unit] = holds
            # Of a worker that was silent for long, no record is left; it knows itself what was counted.
            counted = worker.totals.get(unit, confirmed if known else 0.0)
            self.spent[unit] = self.spent.get(unit, 0.0) + total - counted
            worker.totals[unit] = total
        has = worker.slots, worker.wants, *worker.held, *worker.want, *worker.spend.values()
        worker.idle = not (message["running"] or any(has))
        return worker

    def last(self, name: str, now: float) -> tuple[int, float]:
        """The number of the worker's last message, and a time since which none came, as far as this state knows."""
        if (worker := self.workers.get(name)) is not None:
            return worker.applied, worker.heard
        gone = self.gone.get(name)
        return (0, now - REMEMBERED) if gone is None else (gone.applied, gone.since)

    def sweep(self, now: float) -> None:
        """Let go of workers that are silent."""
        silence = now - self.swept
        if silence < SWEEP_EVERY:
            return
        self.swept = now
        for name, worker in [*self.workers.items()]:
            worker.seen += max(0.0, silence - QUIET)
            if now - worker.seen > FORGOTTEN:
                self._let_go(name, now)
        self.gone = {name: gone for name, gone in self.gone.items() if now - gone.since <= REMEMBERED}

    def _let_go(self, name: str, now: float) -> None:
        worker = self.workers.pop(name)
        held = {unit: amount for unit, amount in worker.spend.items() if amount}
        for unit, amount in held.items():
            self.spent[unit] = self.spent.get(unit, 0.0) + amount
        self.gone[name] = Gone(now, worker.applied, held, worker.totals)

    def active(self, now: float, lately: float = FORGOTTEN) -> list[Worker]:
        """The workers that were heard in the last seconds."""
        return [worker for worker in self.workers.values() if now - worker.seen <= lately]

    def others(self, name: str, now: float) -> bool:
        """Whether workers other than this one were heard lately, and did not say that they have nothing to do."""
        return any(not worker.idle for worker in self.active(now) if worker is not self.workers.get(name))

    def outstanding(self, unit: str) -> float:
        """The units that were granted and did not start, as far as it is known."""
        places = [place for place, window in enumerate(self.windows) if window.limit.unit == unit]
        return max((sum(worker.held[place] for worker in self.workers.values()) for place in places), default=0.0)


def windows_of(terms: Terms, now: float) -> list[Window]:
    """Empty windows."""
    return [Window(limit, limit.per / GRAINS, terms.lease, now) for limit in terms.limits]


def statistics(state: State, now: float) -> Json:
    """The fields of `BudgetStatistics` as JSON."""
    units: Json = {}
    workers = state.active(now)
    for place, window in enumerate(state.windows):
        unit, rate, _, burst = window.limit
        held = sum(worker.held[place] for worker in workers)
        used = max(0.0, window.used - held)
        # Of several limits of a unit, the one that has least left.
        last = units.get(unit)
        if last is None or rate + burst - used - held < last["allowed"] - last["used"] - last["reserved"]:
            units[unit] = _unit(rate + burst, used, held)
    if state.terms.in_flight is not None:
        units["in_flight"] = _unit(state.terms.in_flight, sum(worker.slots for worker in workers), 0)
    for unit, most in state.terms.spend.items():
        held = sum(worker.spend.get(unit, 0.0) for worker in state.workers.values())
        units[unit] = _unit(most, state.spent.get(unit, 0.0), held)
    for unit, refused in state.refused.items():
        if unit in units:
            units[unit]["refused"] = refused
    for unit, cap in state.caps.items():
        if now < cap.shown_until:
            hint = dict(cap.hint)
            if "reset_after" in hint:
                hint["reset_after"] -= now - cap.heard
            units.setdefault(unit, _unit(0.0, 0.0, 0.0))["hint"] = hint
    return {"units": units, "workers": len(workers), "paused_for": max(0.0, state.paused - now, state.ready - now)}


def _unit(allowed: float, used: float, reserved: float) -> Json:
    # Sums of floats have rounding errors, and a call that says nothing of a unit weighs next to nothing.
    used, reserved = (0.0 if abs(one) < 1e-9 * allowed else float(f"{one:.12g}") for one in (used, reserved))
    return {"allowed": allowed, "used": used, "reserved": reserved, "refused": 0, "hint": None}
