"""`history_of_trace`: the history of a run that a `Trace` recorded, for `check_history`.

A trace knows elements and their attempts. So the rows of the history are the elements, and each attempt and each copy
is a call for one row, but for attempts that the circuit breaker refused: no call is made then. Of an `enrich`, elements
are the keys that were called, and each task of Spark is a task of the history. When rows of Spark leave is in no trace,
so the order of rows is then undecided. Of batches a trace knows no calls, so laws that count calls are undecided.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from asyncio_operator.trace import Event, Trace
from asyncio_operator_proof.history.event_format import History

STATUS = {"result": "found", "timeout": "timed_out", "failed": "failed", "skipped": "skipped"}

CUT = ("timed_out", "cancelled")
"""Outcomes of attempts after which the call may run on."""

REFUSED = "CircuitOpenError"


def history_of_trace(
    trace: Trace, *, task: str = "trace", consumer: str | None = None, slack: float = 0.0, **setting: Any
) -> History:
    """The latest run of a trace as a history.

    Args:
        trace: of an operator, or of an `enrich`, where elements are keys that were called.
        task: the name of the task, of an operator.
        consumer: "ready" if the output was read at once, always.
        slack: seconds by which events may be recorded late; 0 on virtual time.
        setting: the options of the run, named as the format of histories names them (`testing.history.event_format`).
            `mode` is of no use for an `enrich`. A trace does not know whether an error or a result asked for a retry,
            so laws of retries are undecided where that matters. With ``retry_hints=True`` you say that none of them
            did.

    Raises:
        ValueError: an option is not one of the format.
    """
    parts = trace.parts
    if parts:
        # A key leaves the trace when it has its outcome, whatever the order of rows is.
        setting["mode"] = "unordered"
    if "batch" in setting:
        setting["whole_calls"] = False
    setting.setdefault("retry_hints", False)
    history = History()
    history.add("history", version=1, consumer=consumer, slack=slack, source="trace", dropped=trace.dropped or None)
    history.add("setting", lookup=0, **setting)
    events = trace.events()
    named = {first: f"{name} ({number})" for number, (first, name) in enumerate(parts)} or {0: task}
    # The text of a long key is cut, so two of them may look the same.
    keyed = bool(parts) and not any((event.value or "").endswith("...") for event in events)
    reader = _Reader(history, named, keyed, _returns(events))
    refused = _refused(events) if "circuit_breaker" in setting else frozenset()
    for number, event in enumerate(events):
        if number not in refused:
            reader.read(number, event)
    return history


def _refused(events: list[Event]) -> frozenset[int]:
    """The starts and ends of attempts that a circuit breaker refused: they end as they start."""
    found: set[int] = set()
    started: dict[int | None, tuple[int, float]] = {}
    for number, event in enumerate(events):
        if event.kind == "attempt_started":
            started[event.element] = number, event.time
        elif event.kind == "attempt_ended":
            start, at = started.pop(event.element, (number, -1.0))
            if at == event.time and _error(event) == REFUSED:
                found |= {start, number}
    return frozenset(found)


def _error(event: Event) -> str | None:
    """The name of the error's type."""
    return None if event.text is None else event.text.partition(":")[0].strip()


def _returns(events: list[Event]) -> dict[int, int]:
    """The end of each attempt that was cut, by the event of its call's return.

    An attempt of a batch may end while a half of it waits for its turn: then no call runs, and none returns.
    """
    cut: dict[int | None, list[int]] = {}
    found: dict[int, int] = {}
    for number, event in enumerate(events):
        if event.kind in ("attempt_ended", "copy_ended") and event.outcome in CUT:
            cut.setdefault(event.element, []).append(number)
        elif event.kind == "call_returned" and cut.get(event.element):
            found[number] = cut[event.element].pop()
    return found


class _Reader:
    """Writes the events of a trace into a history."""

    def __init__(self, history: History, tasks: dict[int, str], keyed: bool, returns: dict[int, int]) -> None:
        self._history = history
        self._tasks = tasks
        self._firsts = sorted(tasks)
        self._keyed = keyed
        self._returns = returns
        self._returning = frozenset(returns.values())
        self._number = 0
        self._watermarks: dict[int, int] = {}
        self._status: dict[int, str] = {}
        self._keys: dict[int, str | None] = {}
        # By task, the elements inside, and those that failed.
        self._inside: dict[str, set[int]] = {}
        self._failed: set[str] = set()
        # The calls that run, by element, and those that were cut, by the event that says so.
        self._running: dict[int, str] = {}
        self._copies: dict[int, str] = {}
        self._cut: dict[int, tuple[str, str]] = {}

    def read(self, number: int, event: Event) -> None:
        """Write what one event of the trace says, if it says anything that can be seen from outside."""
        self._number = number
        match event.kind:
            case "admitted":
                self._admitted(event)
            case "watermark":
                self._watermark(event)
            case "attempt_started" | "copy_started":
                self._started(event)
            case "attempt_ended":
                self._ended(self._running.pop(_element(event), None), event)
            case "copy_ended":
                self._ended(self._copies.pop(_element(event), None), event)
            case "call_returned":
                self._returned(event)
            case "completed":
                self._completed(event)
            case "emitted":
                self._emitted(event)
            case "ended":
                for task, inside in self._inside.items():
                    outcome = "finished" if not inside else "failed" if task in self._failed else "closed"
                    self._history.add("task_ended", at=max(0.0, event.time), task=task, outcome=outcome)

    def _task(self, event: Event) -> str:
        """The task of an element. It starts when it is seen first."""
        task = self._tasks[self._firsts[bisect_right(self._firsts, _element(event)) - 1]]
        if task not in self._inside:
            self._inside[task] = set()
            self._history.add("task_started", at=max(0.0, event.time), task=task)
        return task

    def _add(self, kind: str, event: Event, **fields: Any) -> None:
        task = self._task(event)
        self._history.add(kind, at=max(0.0, event.time), task=task, **fields)

    def _admitted(self, event: Event) -> None:
        element = _element(event)
        key = event.value if self._keyed else event.key
        self._keys[element] = None if key is None or key.endswith("...") else key
        self._inside[self._task(event)].add(element)
        self._add("row_in", event, row=element, key=self._keys[element])

    def _watermark(self, event: Event) -> None:
        assert event.timestamp is not None
        self._watermarks[_element(event)] = event.timestamp
        self._add("watermark_in", event, timestamp=event.timestamp)

    def _started(self, event: Event) -> None:
        element = _element(event)
        name = first = f"{element}.{event.attempt}"
        if event.kind == "copy_started":
            name = self._copies[element] = f"{first}.copy"
            self._add("call_started", event, call=name, attempt=event.attempt, copy_of=first, **self._about(element))
        else:
            self._running[element] = name
            self._add("call_started", event, call=name, attempt=event.attempt, **self._about(element))

    def _about(self, element: int) -> dict[str, Any]:
        return {"keys": [self._keys[element]]} if self._keyed else {"rows": [element]}

    def _ended(self, name: str | None, event: Event) -> None:
        if name is None or event.outcome is None:
            return
        if event.outcome in CUT and self._number in self._returning:
            # It runs until it has returned.
            self._cut[self._number] = name, event.outcome
            return
        self._add("call_ended", event, call=name, outcome=event.outcome, error=_error(event))

    def _returned(self, event: Event) -> None:
        cut = self._cut.pop(self._returns.get(self._number, -1), None)
        if cut is not None:
            name, outcome = cut
            self._add("call_ended", event, call=name, outcome=outcome)

    def _completed(self, event: Event) -> None:
        assert event.outcome is not None
        self._status[_element(event)] = STATUS[event.outcome]
        if event.outcome == "failed":
            self._failed.add(self._task(event))

    def _emitted(self, event: Event) -> None:
        element = _element(event)
        if element in self._watermarks:
            self._add("watermark_out", event, timestamp=self._watermarks[element])
            return
        self._inside[self._task(event)].discard(element)
        self._add("row_out", event, row=element, status=self._status.get(element, "skipped"))


def _element(event: Event) -> int:
    assert event.element is not None
    return event.element
