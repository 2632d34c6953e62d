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
from asyncio_operator.trace.stories import Attempt, read
from asyncio_operator_proof.history.event_format import History

STATUS = {"result": "found", "timeout": "timed_out", "failed": "failed", "skipped": "skipped"}

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
        setting: the options of the run, named as the format of histories names them (`history.event_format`).
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
    done = {event.element for event in events if event.kind == "completed" and event.outcome != "failed"}
    if all(event.element in done for event in events if event.kind == "admitted"):
        # A trace ends with its last call. A slow consumer takes the last rows of the same run after that.
        events.sort(key=lambda event: event.kind == "ended")
    named = {first: f"{name} ({number})" for number, (first, name) in enumerate(parts)} or {0: task}
    # The text of a long key is cut, so two of them may look the same.
    keyed = bool(parts) and not any((event.value or "").endswith("...") for event in events)
    reader = _Reader(history, named, keyed, read(events)[1], "circuit_breaker" in setting)
    for place, event in enumerate(events):
        reader.read(place, event)
    return history


def _error(call: Attempt) -> str | None:
    """The name of the error's type."""
    return call.text.partition(":")[0].strip() or None


class _Reader:
    """Writes the events of a trace into a history."""

    def __init__(
        self, history: History, tasks: dict[int, str], keyed: bool, calls: dict[int, Attempt], breaker: bool
    ) -> None:
        self._history, self._keyed, self._calls, self._breaker = history, keyed, calls, breaker
        self._tasks, self._firsts = tasks, sorted(tasks)
        self._now = 0.0
        self._watermarks: dict[int, int] = {}
        self._status: dict[int, str] = {}
        self._keys: dict[int, str | None] = {}
        # By task, the elements inside, and those that failed.
        self._inside: dict[str, set[int]] = {}
        self._failed: set[str] = set()
        self._names: dict[int, str] = {}

    def read(self, place: int, event: Event) -> None:
        """Write what one event of the trace says, if it says anything that can be seen from outside."""
        self._now = max(self._now, event.time)
        match event.kind:
            case "admitted":
                self._admitted(event)
            case "watermark":
                self._watermark(event)
            case "ended":
                for task, inside in self._inside.items():
                    outcome = "finished" if not inside else "failed" if task in self._failed else "closed"
                    self._history.add("task_ended", at=self._now, task=task, outcome=outcome)
            case _ if event.element not in self._keys and event.element not in self._watermarks:
                pass  # Its admission was dropped, or it is no element.
            case "completed":
                self._completed(event)
            case "emitted":
                self._emitted(event)
            case _ if place in self._calls:
                self._call(event, self._calls[place])

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

    def _call(self, event: Event, call: Attempt) -> None:
        """An event of a call. One that was cut runs until it has returned."""
        if self._breaker and call.end == call.start and _error(call) == REFUSED:
            return  # It ends as it starts: the circuit breaker has refused it.
        if event.kind in ("attempt_started", "copy_started"):
            element = _element(event)
            first = f"{element}.{event.attempt}"
            copy = event.kind == "copy_started"
            self._names[id(call)] = name = f"{first}.copy" if copy else first
            about = {"keys": [self._keys[element]]} if self._keyed else {"rows": [element]}
            self._add("call_started", event, call=name, attempt=event.attempt, copy_of=first if copy else None, **about)
        elif event.kind == "call_returned":
            self._add("call_ended", event, call=self._names[id(call)], outcome=call.outcome)
        elif call.returned is None:
            self._add("call_ended", event, call=self._names[id(call)], outcome=call.outcome, error=_error(call))

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
