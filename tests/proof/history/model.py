"""A plain model of lookups in one task, which writes lawful histories. It shares no code with the library."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]


@dataclass
class Plan:
    """What happens: for each row when it comes and its key, and for each call how long it takes and whether it fails.

    Times are in tenths of a second.
    """

    rows: list[tuple[int, int | None]]
    calls: list[tuple[int, bool]]
    capacity: int = 1
    ordered: bool = True
    attempts: int = 1
    delay: int = 0
    remember: bool = True


@dataclass
class Pending:
    """A key that is looked up, the rows that wait for it, and the attempts that were made."""

    key: int
    rows: list[int]
    attempts: int = 0


@dataclass
class Model:
    """Runs a plan, event by event. ``events`` is the history."""

    plan: Plan
    events: list[Event] = field(default_factory=list)
    now: int = 0
    running: int = 0
    started: int = 0

    def __post_init__(self) -> None:
        plan = self.plan
        setting: Event = {"event": "setting", "capacity": plan.capacity, "on_error": "null", "single": True}
        setting |= {"mode": "ordered" if plan.ordered else "unordered", "max_attempts": plan.attempts}
        setting |= {"delay": plan.delay / 10, "remember": 1000.0 if plan.remember else None}
        self.events.append({name: value for name, value in setting.items() if value is not None})
        self.waiting: list[Pending] = []
        self.pending: dict[int, Pending] = {}
        self.known: dict[int, Any] = {}
        self.done: dict[int, Event] = {}
        self.emitted = 0
        # What happens next: time, number, kind, and about what.
        self.agenda: list[tuple[int, int, str, Any]] = []
        self.numbers = 0

    def at(self, time: int, kind: str, about: Any) -> None:
        self.numbers += 1
        heapq.heappush(self.agenda, (time, self.numbers, kind, about))

    def note(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, "at": self.now / 10, "task": "t", **fields})

    def run(self) -> list[Event]:
        self.note("task_started")
        for row, (time, key) in enumerate(self.plan.rows):
            self.at(time, "row", (row, key))
        while self.agenda:
            self.now, _, kind, about = heapq.heappop(self.agenda)
            if kind == "row":
                self.read(*about)
            elif kind == "due":
                self.waiting.insert(0, about)
            else:
                self.end(*about)
            self.start()
        self.note("task_ended", outcome="finished")
        return self.events

    def read(self, row: int, key: int | None) -> None:
        self.note("row_in", row=row, **({} if key is None else {"key": key}))
        if key is None:
            self.finish(row, status="missing", source="none", attempts=0, answer=[])
        elif key in self.known:
            self.answer(row, self.known[key], "shared", 0)
        elif key in self.pending:
            self.pending[key].rows.append(row)
        else:
            self.pending[key] = Pending(key, [row])
            self.waiting.append(self.pending[key])

    def start(self) -> None:
        while self.waiting and self.running < self.plan.capacity:
            pending = self.waiting.pop(0)
            pending.attempts += 1
            seconds, fails = self.plan.calls[self.started % len(self.plan.calls)]
            self.note("call_started", call=self.started, keys=[pending.key], attempt=pending.attempts)
            self.at(self.now + seconds, "end", (pending, self.started, fails))
            self.started += 1
            self.running += 1

    def end(self, pending: Pending, call: int, fails: bool) -> None:
        self.running -= 1
        if fails:
            self.note("call_ended", call=call, outcome="error", error="OSError", retryable=True)
            if pending.attempts < self.plan.attempts:
                self.at(self.now + self.plan.delay, "due", pending)
                return
            del self.pending[pending.key]
            for place, row in enumerate(pending.rows):
                source = "shared" if place else "call"
                self.finish(row, status="failed", source=source, attempts=pending.attempts, error="OSError")
            return
        answer = [] if pending.key == 0 else [[pending.key, call]]
        self.note("call_ended", call=call, outcome="result", answers=[answer])
        del self.pending[pending.key]
        if self.plan.remember:
            self.known[pending.key] = answer
        for place, row in enumerate(pending.rows):
            self.answer(row, answer, "shared" if place else "call", pending.attempts)

    def answer(self, row: int, answer: Any, source: str, attempts: int) -> None:
        status = "found" if answer else "missing"
        self.finish(row, status=status, source=source, attempts=attempts, answer=answer)

    def finish(self, row: int, **out: Any) -> None:
        if not self.plan.ordered:
            self.note("row_out", row=row, **out)
            return
        self.done[row] = out
        while self.emitted in self.done:
            self.note("row_out", row=self.emitted, **self.done.pop(self.emitted))
            self.emitted += 1
