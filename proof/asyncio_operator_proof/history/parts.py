"""The parts of a history that laws judge: tasks, runs, rows, calls, and the attempts and flights of keys."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import inf
from typing import Any

from asyncio_operator_proof.history.event_format import Event, wrong

MOMENT = 1.5e-6
"""Seconds: times are rounded to 1e-6, so two that differ by less are one moment."""

LONGEST_WAIT = 3600.0
"""Seconds: a source that asks for more is not believed, and an element without a deadline does not wait for it."""

FAILURE_RATIO, MINIMUM_CALLS = 0.5, 20
"""Defaults of a circuit breaker: the part of the calls that must fail before it opens, and how many there must be."""

ENDINGS = {"answers", "error", "retryable", "retry_after", "overload", "lost", "settled", "free"}
"""What the end of a call may say."""

PARTS = "calls are recorded for each of their keys"
"""Why laws that count calls cannot be decided."""


def is_invalid(answer: Any) -> bool:
    """Whether an answer is an error of its key."""
    return type(answer) is dict and len(answer) == 1 and "invalid" in answer


class Out:
    """A row, or a part of it, that was emitted."""

    __slots__ = ("answer", "at", "attempts", "error", "event", "part", "source", "status")

    def __init__(self, number: int, event: Event) -> None:
        self.event = number
        self.at: float = event["at"]
        self.part: int = event.get("part", 0)
        self.status: str = event["status"]
        self.source: str | None = event.get("source")
        self.attempts: int | None = event.get("attempts")
        self.error: str | None = event.get("error")
        self.answer: Any = event.get("answer")


class Row:
    """A row that was read, and what was emitted for it."""

    __slots__ = ("at", "event", "key", "outs", "row")

    def __init__(self, number: int, event: Event) -> None:
        self.event = number
        self.at: float = event["at"]
        self.row: int = event["row"]
        self.key: Hashable = None
        self.outs: list[Out] = []

    @property
    def left(self) -> float | None:
        """When its last part was emitted; None if it was not."""
        return self.outs[-1].at if self.outs else None


@dataclass(slots=True, eq=False)
class Call:
    """A call of the service. ``keys`` are keys, or the numbers of rows in a run of a function.

    ``stopped`` is when it did not run any more: infinity if that was not seen. ``begun`` is the earliest moment at
    which the lookup of any of its keys may have begun: their deadlines are not before that plus the timeout.
    """

    event: int
    run: Run
    keys: tuple[Hashable, ...]
    start: float
    id: Any
    weights: dict[str, float]
    attempt: Any
    refresh: bool | None
    begun: float = inf
    stopped: float = inf
    end_event: int | None = None
    outcome: str | None = None
    answers: list[Any] | None = None
    error: str | None = None
    retryable: bool | None = None
    retry_after: float | None = None
    overload: bool = False
    lost: bool = False
    settled: dict[str, float] = field(default_factory=dict)
    free: bool = False
    copy_of: Call | None = None
    copies: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, number: int, event: Event, run: Run, keys: tuple[Hashable, ...]) -> Call:
        more = event.get("weights", {}), event.get("attempt"), event.get("refresh")
        return cls(number, run, keys, event["at"], event["call"], *more, begun=event["at"])

    def end(self, number: int, event: Event) -> None:
        self.end_event, self.stopped, self.outcome = number, event["at"], event["outcome"]
        for name in ENDINGS & event.keys():
            setattr(self, name, event[name])

    @property
    def events(self) -> tuple[int, ...]:
        return (self.event,) if self.end_event is None else (self.event, self.end_event)

    @property
    def span(self) -> tuple[float, int, float, int | None, Call]:
        return self.start, self.event, self.stopped, self.end_event, self

    def weight(self, unit: str) -> float:
        """What it was estimated to weigh when it started."""
        if unit == "calls":
            return 1
        return self.weights.get(unit, len(self.keys) if unit == "keys" else 0)

    def spent(self, unit: str) -> float:
        """What it has used of a spend limit in the end (law G11)."""
        return self.settled.get(unit, 0.0 if self.free else self.weight(unit))

    @property
    def is_aligned(self) -> bool:
        """Whether it has an answer for each key, as far as that was recorded."""
        return self.answers is None or len(self.answers) == len(self.keys)

    @property
    def is_malformed(self) -> bool:
        """Whether it is known that a key has no answer that can be used."""
        return self.answers is not None and (not self.is_aligned or any(map(is_invalid, self.answers)))

    @property
    def is_taken(self) -> bool:
        """Whether the run surely took its result: it came within every limit, and before the run ended."""
        run = self.run
        if run.limits and run.setting.get("asks_per_batch"):
            # Of a batch for a table in memory (A6) it may be one call of several, and a limit ends all of them.
            return False
        in_time = all(self.stopped < self.begun + limit - run.moment for limit in run.limits)
        # A task that finishes takes the answers that come until its end.
        ended = self.stopped > run.task.end or (self.stopped == run.task.end and run.task.outcome != "finished")
        return self.outcome == "result" and not self.may_ask_again and in_time and not ended

    @property
    def may_ask_again(self) -> bool:
        """Whether its result may be one that asks for a retry."""
        run = self.run
        return bool(self.retryable) or (not run.retry_hints and run.setting.get("max_attempts", 1) > 1)

    def answer_of(self, position: int) -> Any:
        """The recorded answer for a key; None if it was not recorded, or does not fit the keys."""
        return self.answers[position] if self.answers is not None and self.is_aligned else None


class Run:
    """One lookup, or one function, in one task."""

    def __init__(self, task: Task, lookup: int, setting: Event) -> None:
        self.task = task
        self.lookup = lookup
        self.setting = setting
        self.rows: dict[int, Row] = {}
        self.rows_of: dict[Hashable, list[Row]] = {}
        self.calls: list[Call] = []
        self.calls_of: dict[Hashable, list[Call]] = {}
        self._latest_stops: dict[Hashable, list[float]] = {}
        self.emitted: list[tuple[int, float, Row | None, Any]] = []
        """Every emission: number of the event, time, the row and its `Out`, or None and the timestamp."""
        self.watermarks_in: list[tuple[int, float, float]] = []
        self.opened: list[tuple[int, float]] = []
        self.closed: list[tuple[int, float]] = []
        self.snapshots: list[Snapshot] = []
        self.of_rows = False
        self.whole_calls: bool = setting.get("whole_calls", True)
        self.retry_hints: bool = setting.get("retry_hints", True)
        self.flights: list[Flight] = []
        self.moment = MOMENT
        """Seconds by which two times of one moment may differ in this history."""

    def next_call(self, key: Hashable, call: Call) -> Call | None:
        """The next call for a key that is not a copy of this one."""
        calls = self.calls_of[key]
        position = bisect_right(calls, call.event, key=lambda one: one.event)
        while position < len(calls) and calls[position].copy_of is call:
            position += 1
        return calls[position] if position < len(calls) else None

    def calls_between(self, key: Hashable, begin: float, end: float) -> Iterator[Call]:
        """The calls for a key that ran between two times, the last one first."""
        calls = self.calls_of.get(key, [])
        if key not in self._latest_stops:
            self._latest_stops[key] = list(accumulate((call.stopped for call in calls), max))
        latest = self._latest_stops[key]
        for place in range(bisect_right(calls, end, key=lambda call: call.start) - 1, -1, -1):
            if latest[place] < begin:
                return
            if calls[place].stopped >= begin:
                yield calls[place]

    def rows_with(self, key: Hashable) -> list[Row]:
        """The rows with a key; of a run of a function, the row."""
        return [self.rows[key]] if self.of_rows else self.rows_of.get(key, [])  # type: ignore[index]

    @property
    def limits(self) -> list[float]:
        """Seconds after which a call may be cut, counted from the start of its element or of its attempt."""
        return [self.setting[name] for name in ("timeout", "attempt_timeout") if self.setting.get(name)]

    @cached_property
    def failures(self) -> tuple[int, float]:
        """How many calls must fail before its circuit breaker opens, and when they had: infinity for never."""
        breaker = self.setting["circuit_breaker"]
        ratio, minimum = breaker.get("failure_ratio", FAILURE_RATIO), breaker.get("minimum_calls", MINIMUM_CALLS)
        needed = max(1, int(ratio * minimum))
        # A call that was cut failed before it returned, so what counts is when it started.
        failures = sorted(call.start for call in self.calls if call.outcome != "result" or call.is_malformed)
        return needed, failures[needed - 1] if len(failures) >= needed else inf

    @cached_property
    def left(self) -> list[tuple[float, float]]:
        """For each row when it was read, and when it and all rows before it had left: infinity for never."""
        times = [(row.at, inf if row.left is None else row.left) for row in self.rows.values()]
        return list(zip((at for at, _ in times), accumulate((left for _, left in times), max), strict=True))

    @property
    def name(self) -> str:
        """For sentences."""
        chained = f", lookup {self.lookup}" if self.lookup else ""
        return f"task {self.task.name}{chained}"


def first_outs(runs: Iterable[Run]) -> Iterator[tuple[Run, Row, Out]]:
    """The rows that have left, each with the first that was emitted for it."""
    return ((run, row, row.outs[0]) for run in runs for row in run.rows.values() if row.outs)


def may_be_refused(run: Run, at: float) -> bool:
    """Whether a circuit breaker may have refused a row until a time."""
    return "circuit_breaker" in run.setting and run.failures[1] <= at


class Snapshot:
    """What a snapshot of a run held: rows and the attempts that each had used."""

    __slots__ = ("at", "event", "name", "rows", "run")

    def __init__(self, number: int, event: Event, run: Run) -> None:
        self.event = number
        self.at: float = event["at"]
        self.name = event["snapshot"]
        self.run = run
        self.rows: list[tuple[int, int | None]] = []
        for one in event["rows"]:
            row, attempts = [*one, None][:2] if type(one) is list and 1 <= len(one) <= 2 else (None, None)
            if type(row) is not int or not (attempts is None or type(attempts) is int):
                raise wrong(number, f"a snapshot holds {one!r}; it must be a list of a row and its attempts")
            self.rows.append((row, attempts))


class Task:
    """One attempt of a task."""

    def __init__(self, number: int, event: Event) -> None:
        self.name = event["task"]
        self.worker = event.get("worker")
        self.restored = event.get("restored")
        self.start: float = event["at"]
        self.start_event = number
        self.runs: dict[int, Run] = {}
        self.end = inf
        self.end_event: int | None = None
        self.outcome: str | None = None
        self.error: str | None = None
        self.partition = event.get("partition")
        self.attempt = event.get("attempt")


class Attempt:
    """The calls of one attempt, the first one first."""

    __slots__ = ("calls", "key")

    def __init__(self, key: Hashable, call: Call) -> None:
        self.key = key
        self.calls = [call]

    @property
    def start(self) -> float:
        return self.calls[0].start

    @property
    def stopped(self) -> float:
        """When its last call stopped."""
        return max(call.stopped for call in self.calls)

    @property
    def decisive(self) -> Call:
        """The call that decided: one that gave a result, else the last one that ended and was not cancelled. Of a call
        and its copy that both failed it is the call (law H2), unless the copy was cut at the limit of the attempt."""
        ended = sorted((call for call in self.calls if call.end_event is not None), key=lambda call: call.stopped)
        for call in ended:
            if self._has_answer(call):
                return call
        decisive = [call for call in ended if call.outcome != "cancelled"]
        if not decisive:
            return self.calls[-1]
        original = decisive[-1].copy_of if decisive[-1].outcome != "timed_out" else None
        return original if original is not None and original in decisive else decisive[-1]

    def _has_answer(self, call: Call) -> bool:
        """Whether a call gave a result in which the key has an answer that can be used, as far as it is recorded."""
        if call.outcome != "result" or call.answers is None:
            return call.outcome == "result"
        return call.is_aligned and not is_invalid(call.answer_of(call.keys.index(self.key)))

    @property
    def copies(self) -> int:
        return sum(call.copy_of is not None for call in self.calls)


class Flight:
    """The attempts for one lookup of a key, and the rows that waited for it if they are known."""

    __slots__ = ("attempts", "key", "rows", "run", "sure")

    def __init__(self, run: Run, key: Hashable, sure: bool) -> None:
        self.run = run
        self.key = key
        self.sure = sure
        self.attempts: list[Attempt] = []
        self.rows: list[Row] = []

    @property
    def start(self) -> float:
        return self.attempts[0].start

    @property
    def timeout(self) -> float:
        """Seconds; 0 for none."""
        return self.run.setting.get("timeout") or 0.0

    @property
    def deadline(self) -> float:
        return self.start + self.timeout if self.timeout else inf

    @property
    def calls(self) -> int:
        """Attempts and copies, as the status of a row counts them."""
        return len(self.attempts) + sum(attempt.copies for attempt in self.attempts)

    @property
    def events(self) -> tuple[int, ...]:
        return tuple(call.event for attempt in self.attempts for call in attempt.calls)
