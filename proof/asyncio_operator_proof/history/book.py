"""A history, read once into tasks, runs, rows and calls, which the laws then judge.

A run is one lookup in one task. What no run can do, such as an end without a start, is a `ValueError` with the number
of the event: such a history is incomplete, and a verdict on it would be worth nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from math import inf
from typing import Any

from asyncio_operator_proof.history.event_format import Event, wrong
from asyncio_operator_proof.history.key_flights import flights_of
from asyncio_operator_proof.history.parts import MOMENT, Call, Out, Row, Run, Snapshot, Task, may_be_refused
from asyncio_operator_proof.history.same_keys import canonical


class Book:
    """All of a history.

    Args:
        events: in the form that `History` has checked.

    Raises:
        ValueError: the history is impossible or incomplete.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self.settings: dict[int, Event] = {}
        self.tasks: dict[Any, Task] = {}
        self.runs: list[Run] = []
        self.calls: list[Call] = []
        self.said: list[tuple[int, Event]] = []
        self.faults: list[tuple[int, Event]] = []
        self.snapshots: dict[Any, Snapshot] = {}
        self.consumer_ready = False
        self.slack = 0.0
        self.drift = 0.0
        self.clocks = 0.0
        self.handover = 0.0
        self.end = 0.0
        self.made: dict[str, Any] = {}
        """What several laws make of the history, made once."""
        self._open: dict[Any, Call] = {}
        for number, event in enumerate(events):
            self._read(number, event)
            self.end = event.get("at", self.end)
        self.moment = MOMENT + 2 * self.slack
        for call in self.calls:
            if call.stopped == inf and call.run.task.outcome == "killed":
                call.stopped = max(call.start, call.run.task.end)
        for run in self.runs:
            run.moment = self.moment
            run.flights = list(flights_of(run))
            _note_beginnings(run)

    def near(self, seconds: float) -> float:
        """By how much a time that a task measures may seem longer or shorter."""
        return self.moment + self.drift * seconds

    def copies(self) -> Iterator[tuple[Call, Call]]:
        """The second calls of hedges, each with the call that it repeats."""
        return ((call, call.copy_of) for call in self.calls if call.copy_of is not None)

    # -- reading

    def _read(self, number: int, event: Event) -> None:
        match event["event"]:
            case "opened":
                self._run(number, event).opened.append((number, event["at"]))
            case "closed":
                self._run(number, event).closed.append((number, event["at"]))
            case "watermark_in":
                self._run(number, event).watermarks_in.append((number, event["at"], event["timestamp"]))
            case "watermark_out":
                self._run(number, event).emitted.append((number, event["at"], None, event["timestamp"]))
            case "said":
                self.said.append((number, event))
            case "fault":
                self.faults.append((number, event))
            case kind:
                getattr(self, f"_{kind}")(number, event)

    def _history(self, number: int, event: Event) -> None:
        if number or event.get("version", 1) != 1:
            raise wrong(number, "history must be the first event, of version 1")
        self.slack = float(event.get("slack", 0.0))
        self.drift = float(event.get("drift", 0.0))
        self.clocks = float(event.get("clocks", 0.0))
        self.handover = float(event.get("handover", 0.0))
        self.consumer_ready = event.get("consumer") == "ready"
        if event.get("dropped"):
            raise wrong(
                number, f"{event['dropped']} events were dropped when the history was recorded; record it whole"
            )

    def _setting(self, number: int, event: Event) -> None:
        lookup = event.get("lookup", 0)
        if lookup in self.settings:
            raise wrong(number, f"lookup {lookup} has settings already")
        if self.tasks:
            raise wrong(number, "a setting comes after the start of a task")
        self.settings[lookup] = event

    def _task_started(self, number: int, event: Event) -> None:
        if event["task"] in self.tasks:
            raise wrong(number, f"task {event['task']!r} has started already; an attempt needs a name of its own")
        task = self.tasks[event["task"]] = Task(number, event)
        if task.restored is not None and task.restored not in self.snapshots:
            raise wrong(number, f"the task starts with snapshot {task.restored!r}, which was not taken")

    def _task_ended(self, number: int, event: Event) -> None:
        task = self._task(number, event)
        if task.outcome is not None:
            raise wrong(number, f"task {task.name!r} has ended already, in event {task.end_event}")
        task.end, task.end_event, task.outcome = event["at"], number, event["outcome"]
        task.error = event.get("error")

    def _snapshot(self, number: int, event: Event) -> None:
        run = self._run(number, event)
        snapshot = Snapshot(number, event, run)
        if snapshot.name in self.snapshots:
            raise wrong(number, f"snapshot {snapshot.name!r} exists already; it needs a name of its own")
        self.snapshots[snapshot.name] = snapshot
        run.snapshots.append(snapshot)

    def _row_in(self, number: int, event: Event) -> None:
        run = self._run(number, event)
        if event["row"] in run.rows:
            raise wrong(number, f"row {event['row']} was read already, in event {run.rows[event['row']].event}")
        row = Row(number, event)
        try:
            row.key = canonical(event.get("key"))
        except ValueError as error:
            raise wrong(number, str(error)) from None
        run.rows[row.row] = row
        if row.key is not None:
            run.rows_of.setdefault(row.key, []).append(row)

    def _row_out(self, number: int, event: Event) -> None:
        run = self._run(number, event)
        row = run.rows.get(event["row"])
        if row is None:
            raise wrong(number, f"row {event['row']} was emitted, and no event says that it was read")
        out = Out(number, event)
        row.outs.append(out)
        run.emitted.append((number, out.at, row, out))

    def _call_started(self, number: int, event: Event) -> None:
        run = self._run(number, event)
        call = Call.of(number, event, run, self._keys(number, event, run))
        if call.id in self._open:
            raise wrong(number, f"call {call.id!r} has started already, in event {self._open[call.id].event}")
        if "copy_of" in event:
            first = self._open.get(event["copy_of"])
            if first is None or first.run is not run:
                raise wrong(number, f"the call is a copy of {event['copy_of']!r}, which is no call of its lookup")
            call.copy_of = first
            first.copies.append(call)
        self._open[call.id] = call
        self.calls.append(call)
        run.calls.append(call)
        # A table in memory is asked for a key as often as rows of a batch have it.
        for key in dict.fromkeys(call.keys):
            run.calls_of.setdefault(key, []).append(call)

    def _keys(self, number: int, event: Event, run: Run) -> tuple[Hashable, ...]:
        if ("keys" in event) == ("rows" in event):
            raise wrong(number, "a call has keys, or rows, and not both")
        given = event["rows"] if "rows" in event else event["keys"]
        if not given:
            raise wrong(number, "the call has no keys")
        if run.calls and run.of_rows != ("rows" in event):
            raise wrong(number, "calls of one lookup have either keys or rows")
        run.of_rows = "rows" in event
        if run.of_rows:
            for row in given:
                if type(row) is not int or row not in run.rows:
                    raise wrong(number, f"the call is for row {row!r}, and no event says that it was read")
            return tuple(given)
        try:
            return tuple(map(canonical, given))
        except ValueError as error:
            raise wrong(number, str(error)) from None

    def _call_ended(self, number: int, event: Event) -> None:
        self._task(number, event)
        call = self._open.get(event["call"])
        if call is None:
            raise wrong(number, f"call {event['call']!r} has ended, and no event says that it started")
        if call.end_event is not None:
            raise wrong(number, f"call {call.id!r} has ended already, in event {call.end_event}")
        if call.run.task.name != event["task"]:
            raise wrong(number, f"call {call.id!r} belongs to task {call.run.task.name!r}")
        call.end(number, event)

    def _task(self, number: int, event: Mapping[str, Any]) -> Task:
        task = self.tasks.get(event["task"])
        if task is None:
            raise wrong(number, f"task {event['task']!r} has not started")
        return task

    def _run(self, number: int, event: Event) -> Run:
        task = self._task(number, event)
        lookup = event.get("lookup", 0)
        run = task.runs.get(lookup)
        if run is None:
            setting = self.settings.get(lookup)
            if setting is None:
                raise wrong(number, f"lookup {lookup} has no setting")
            run = task.runs[lookup] = Run(task, lookup, setting)
            self.runs.append(run)
        return run


def _note_beginnings(run: Run) -> None:
    """Note for every call the earliest beginning of the lookups that it may belong to."""
    timeout = run.setting.get("timeout") or inf
    repeated = run.setting.get("max_attempts", 1) > 1
    retried = repeated or "batch" in run.setting
    for key, calls in run.calls_of.items():
        # The starts of calls that may be of the same lookup, the earliest first.
        starts: deque[float] = deque()
        before: Call | None = None
        for call in calls:
            again = before is not None and (retried or before is call.copy_of)
            if not again or (before is not None and before.outcome == "result" and before.stopped < call.start):
                starts.clear()
            starts.append(call.start)
            while call.start > starts[0] + timeout:
                starts.popleft()
            call.begun = min(call.begun, starts[0])
            if timeout < inf and repeated and may_be_refused(run, call.start):
                # An attempt that a circuit breaker refused begins the time of a lookup, and is no call. No attempt
                # starts after the deadline (law R3), so that time began at most a timeout before the call.
                rows = run.rows_with(key)
                call.begun = min(call.begun, max(rows[0].at if rows else -inf, call.start - timeout))
            before = call
