"""The format of a history: what could be seen of a run from outside, event by event. This page is the format.

A history is a sequence of events in the order in which they were seen. An event is a flat JSON object; a file has one
per line, in UTF-8, keys sorted. Its field ``event`` is its kind, ``at`` is when: seconds on one clock for all tasks,
rounded to 1e-6, never less than in the event before. Two times that differ by at most 1e-6 count as one moment. Absent
fields are null. No number but a hint of a service is beyond 1e100 or -1e100. An unknown kind or field, a wrong type, or
an impossible order is a `ValueError` that names the event.

Keys are JSON values: null, bool, number, text, or a list of these for several columns. A null, also inside a list, is
never looked up. What JSON cannot write is tagged: ``{"float": "nan" | "inf" | "-inf"}``, ``{"decimal": "1.50"}``,
``{"instant": "2026-01-31T12:00:00+01:00"}``, ``{"bytes": "00ff"}``. Law L10 says which keys are the same. Numbers are
of one type per column, so 1 and 1.0 are one key; true is another. An answer is the list of its rows, [] for a miss, or
any JSON value that is equal for equal answers; null means that it was not recorded. The answer {"invalid": text} is
one that is an error of its key.

Once, before everything else, if at all:

- ``history``: version (1); slack (seconds by which an event may be seen late or early, 0 on virtual time); drift (by
  how much the clock of a task may be too fast or too slow, as a part of 1); clocks (seconds by which the times that
  tasks read from their clocks may differ, 0); consumer ("ready" if the output was always read at once), handover
  (seconds by which a row may leave later than it could, 0); source (free text); dropped (events that were not
  recorded).

What the user asked for, before the first task:

- ``setting``: one for each lookup (or function of an operator): lookup (number in its chain, from 0), name, and the
  options. An absent option is one that was not used. mode ("ordered" | "unordered" | "key_ordered"); how ("left" |
  "inner" | "required"); on_error ("fail" | "null" | "drop" | "skip" | "return": a value in place of the result);
  capacity (calls; of an adaptive one the maximum), adaptive (true: it changes); buffer (rows in and not out), chunk
  (rows that one read of the input may bring beyond it, 0); timeout, attempt_timeout, max_attempts, delay (of a fixed
  back-off) or backoff {initial (0.1), multiplier (2), maximum (10), jitter (true)}; batch {max_size, linger}; limits:
  a list of {unit ("calls"), rate, per (1 s), burst (0)}; budget: the name under which several lookups and tasks share
  the limits (without it they hold for each task), in_flight, spend {unit: most}, on_spent ("fail" | "null");
  circuit_breaker {failure_ratio, window, minimum_calls, open_for}; hedge {after, extra, floor, cap}; idempotent
  (true); cache {expire_after_write, expire_after_access, missing_ttl, cache_missing, refresh_after, stale_if_error,
  max_rows, store: "heap" | "rocksdb" | "redis"}; remember (seconds), remember_rows (100,000); journal {name,
  flush_every, expire_after, keep_missing,
  write: the longest time that a write may take, 1 s}; single: true if a key has one row at most; grace (seconds that
  the end waits for calls that ignore their cancellation, 1); returns_within (seconds until a call that is cancelled
  has returned, 0 for one that ends at once; absent: not known); whole_calls (true; false: calls are recorded for each
  of their keys alone, so laws that count calls cannot be decided); retry_hints (true; false: whether an error or a
  result asks for a retry, and after what wait, was not recorded: `retryable` and `retry_after` are absent, and may
  have been set); asks_per_batch (true if each batch of rows asks for its keys without regard to others, as of a table
  in memory, A6: a key may be asked for as often as rows have it).

Tasks:

- ``task_started``: at, task, worker (whose caches it shares; default: one worker for all), partition (the name of its
  input: all attempts of it have the same rows), attempt, restored (the name of a snapshot that its input starts with).
- ``task_ended``: at, task, outcome ("finished" | "failed" | "killed" | "closed"), error. A task has one end. "killed":
  nothing of it runs after this moment, calls included. "closed": its output was closed early.
- ``opened``, ``closed``: at, task, lookup. The function's own ``open`` began, ``close`` began.
- ``snapshot``: at, task, lookup, snapshot (its name), rows [[row, attempts], ...] in the order of replay.

Rows. Each lookup of a chain has rows in and out of its own; without ``lookup`` it is 0. Where the moment at which a
row reached a later lookup cannot be seen, its ``row_in`` has an earlier moment: that at which it entered the task.

- ``row_in``: at, task, lookup, row (its number in the partition, the same in every attempt), key. The row was read.
- ``row_out``: at, task, lookup, row, part (0; of several rows for one key: 0, 1, ...), status ("found" | "missing" |
  "timed_out" | "failed" | "over_budget" | "skipped" | "unknown"), source ("call" | "cache" | "shared" | "stale" |
  "journal" | "none"), attempts, error (name of its type), answer (all rows of it, in each part). The order of events
  is the order of emission. A row that how="inner" or on_error="drop" removed has no ``row_out``, or one with status
  "skipped". One that is missing or failed, and has no status column to say which, is "unknown".
- ``watermark_in``, ``watermark_out``: at, task, lookup, timestamp.

Calls, as the service sees them. A half of a batch and a copy of a slow call are calls.

- ``call_started``: at, task, lookup, call (unique), keys, or rows where the function gets the value of a row and not a
  key; attempt (from 1, if it is known: the number of the attempt for each of the keys, or one number for all; halves
  have the attempt of their batch); copy_of (the call that it repeats); refresh (true | false, absent: not known);
  weights {unit: estimate} beside calls and keys.
- ``call_ended``: at, task, lookup, call, outcome ("result" | "error" | "timed_out" | "cancelled"), answers (in the
  order of keys), error, retryable (false: a call must not be repeated for it; of a result: true if it asks for a
  retry), retry_after, overload, lost (the connection broke), settled {unit: weight}, free (true:
  it was answered with an error, so units of a spend limit that are not settled cost nothing). It is the moment at which
  the call has returned, also if it ignored its cancellation. A call without end ran until its task was killed, or was
  left behind.

The world:

- ``said``: at, task, lookup, call (that was answered so), budget, unit, wait (nothing before this many seconds), or
  limit, remaining, reset (seconds), refills (true: units come back all the time; false: at the reset; absent: not
  known): a hint of the service.
- ``fault``: at, what ("kill", "coordinator_down", "coordinator_up", "message_lost" between a worker and its
  coordinator, or anything else), budget, task.
"""

from __future__ import annotations

import json
import math
import os
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

Event = dict[str, Any]

VERSION = 1

DIGITS = 6
"""Decimal places of a time."""

PERCENTILE = re.compile(r"p\d+(\.\d+)?")

Check = Callable[[Any], bool]


MOST = 1e100
"""The largest number, except in hints: sums and products of numbers are numbers too."""


def _is_attempt(value: Any) -> bool:
    return TYPES["count"](value) or (type(value) is list and all(one is None or TYPES["count"](one) for one in value))


def _is_number(value: Any) -> bool:
    return (type(value) is int or type(value) is float) and -MOST <= value <= MOST


TYPES: dict[str, Check] = {
    "number": _is_number,
    "amount": lambda value: _is_number(value) and value >= 0,
    "hint": lambda value: _is_number(value) or (type(value) is float and math.isfinite(value)),
    "text": lambda value: type(value) is str,
    "time": lambda value: TYPES["amount"](value) or (type(value) is str and bool(PERCENTILE.fullmatch(value))),
    "name": lambda value: type(value) is str or type(value) is int,
    "count": lambda value: type(value) is int and 0 <= value <= MOST,
    "flag": lambda value: type(value) is bool,
    "list": lambda value: type(value) is list,
    "table": lambda value: type(value) is dict,
    "weights": lambda value: type(value) is dict and all(map(TYPES["amount"], value.values())),
    "attempts": _is_attempt,
    "any": lambda value: True,
}
"""The types of fields. A name is text or a whole number, a count a whole number of at least 0, an amount a number of at
least 0, weights a table of amounts, a time an amount or a percentile, such as p98. A hint is a number that may be
wrong: as large as a float can be. Attempts are a count, or a list of counts and nulls."""

KINDS = {
    "history": (
        "version:count slack:amount drift:amount clocks:amount consumer:text handover:amount source:text dropped:count"
    ),
    "setting": (
        "lookup:count name:text mode:text how:text on_error:text capacity:count adaptive:flag buffer:count chunk:count "
        "timeout:amount attempt_timeout:amount max_attempts:count delay:amount backoff:table batch:table limits:list "
        "budget:name in_flight:count spend:weights on_spent:text circuit_breaker:table hedge:table idempotent:flag "
        "cache:table remember:amount remember_rows:count journal:table single:flag grace:amount returns_within:amount "
        "whole_calls:flag retry_hints:flag asks_per_batch:flag"
    ),
    "task_started": "at:number! task:name! worker:name partition:name attempt:count restored:name",
    "task_ended": "at:number! task:name! outcome:text! error:text",
    "opened": "at:number! task:name! lookup:count",
    "closed": "at:number! task:name! lookup:count",
    "snapshot": "at:number! task:name! snapshot:name! rows:list! lookup:count",
    "row_in": "at:number! task:name! row:count! lookup:count key:any",
    "row_out": (
        "at:number! task:name! row:count! status:text! lookup:count part:count source:text attempts:count error:text "
        "answer:any"
    ),
    "watermark_in": "at:number! task:name! timestamp:number! lookup:count",
    "watermark_out": "at:number! task:name! timestamp:number! lookup:count",
    "call_started": (
        "at:number! task:name! call:name! lookup:count keys:list rows:list attempt:attempts copy_of:name refresh:flag "
        "weights:weights"
    ),
    "call_ended": (
        "at:number! task:name! call:name! outcome:text! lookup:count answers:list error:text retryable:flag "
        "retry_after:hint overload:flag lost:flag settled:weights free:flag"
    ),
    "said": (
        "at:number! task:name lookup:count call:name budget:name unit:text wait:hint limit:hint "
        "remaining:hint reset:hint refills:flag"
    ),
    "fault": "at:number! what:text! budget:name task:name",
}
"""The fields of each kind of event with their types; an event must have those with "!"."""

TABLES = {
    "backoff": "initial:amount multiplier:amount maximum:amount jitter:flag",
    "batch": "max_size:count linger:amount",
    "circuit_breaker": "failure_ratio:amount window:amount minimum_calls:count open_for:amount",
    "hedge": "after:time extra:amount floor:amount cap:amount",
    "cache": (
        "expire_after_write:amount expire_after_access:amount missing_ttl:amount cache_missing:flag "
        "refresh_after:amount stale_if_error:flag max_rows:count store:text"
    ),
    "journal": "name:name flush_every:amount expire_after:amount keep_missing:flag write:amount",
    "limit": "unit:text rate:amount per:amount burst:amount",
}
"""The options inside of an option, with their types."""

WORDS: dict[str, dict[str, tuple[str, ...]]] = {
    "history": {"consumer": ("ready",)},
    "setting": {
        "mode": ("ordered", "unordered", "key_ordered"),
        "how": ("left", "inner", "required"),
        "on_error": ("fail", "null", "drop", "skip", "return"),
        "on_spent": ("fail", "null"),
    },
    "task_ended": {"outcome": ("finished", "failed", "killed", "closed")},
    "row_out": {
        "status": ("found", "missing", "timed_out", "failed", "over_budget", "skipped", "unknown"),
        "source": ("call", "cache", "shared", "stale", "journal", "none"),
    },
    "call_ended": {"outcome": ("result", "error", "timed_out", "cancelled")},
    "cache": {"store": ("heap", "rocksdb", "redis")},
}
"""The words that a field, or an option inside of an option, may hold."""


_Known = tuple[dict[str, Check], tuple[str, ...], dict[str, str]]


def _compiled(texts: Mapping[str, str]) -> dict[str, _Known]:
    """Of each kind: the check of each field, the fields that it must have, and the name of each field's type."""
    found = {}
    for kind, text in texts.items():
        types = dict(field.rstrip("!").split(":") for field in text.split())
        required = tuple(field.partition(":")[0] for field in text.split() if field.endswith("!"))
        found[kind] = ({name: TYPES[wanted] for name, wanted in types.items()}, required, types)
    return found


_KINDS, _TABLES = _compiled(KINDS), _compiled(TABLES)


class History:
    """A run as its events, which are checked as they are added.

    Args:
        events: dicts as the format describes them. Fields that are None count as absent.

    Raises:
        ValueError: an event is not one of the format, or comes before an earlier one; the message has its number.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]] = ()) -> None:
        self._events: list[Event] = []
        self._latest = -math.inf
        for number, event in enumerate(events):
            if not isinstance(event, Mapping):
                raise wrong(number, f"it is {shown(event)}, and must be a table of fields")
            self._append(dict(event))

    def add(self, event: str, **fields: Any) -> None:
        """Add an event of this kind. Its time is rounded; fields that are None are left out.

        Raises:
            ValueError: as for the class. The history is unchanged.
        """
        if type(fields.get("at")) is float:
            fields["at"] = round(fields["at"], DIGITS)
        self._append({"event": event, **fields})

    def _append(self, event: Event) -> None:
        number = len(self._events)
        clean = _without_nulls(event)
        if clean.get("event") == "setting":
            for name in TABLES.keys() & clean.keys():
                clean[name] = _without_nulls(clean[name])
            if type(clean.get("limits")) is list:
                clean["limits"] = [_without_nulls(limit) for limit in clean["limits"]]
        _check(clean, number)
        at = clean.get("at")
        if at is not None:
            if at < self._latest:
                raise wrong(number, f"{clean['event']} is at {at}, before the event before it, at {self._latest}")
            self._latest = at
        self._events.append(clean)

    @property
    def events(self) -> list[Event]:
        """The events. Do not change them."""
        return self._events

    @property
    def settings(self) -> list[Event]:
        """The events of kind ``setting``."""
        return [event for event in self._events if event["event"] == "setting"]

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __repr__(self) -> str:
        return f"<History of {len(self._events):,} events>"

    def to_bytes(self) -> bytes:
        """The file of the history: the same bytes for the same events.

        Raises:
            ValueError: JSON cannot write an event; the message has its number.
        """
        return b"".join(_line(number, event) for number, event in enumerate(self._events))

    def dump(self, path: str | os.PathLike[str]) -> None:
        """Write the file of the history.

        Raises:
            ValueError: as for `to_bytes`.
            OSError: the system refuses to write.
        """
        Path(path).write_bytes(self.to_bytes())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Read the file of a history.

        Raises:
            ValueError: a line is not an event of the format.
            OSError: the file cannot be read.
        """
        with open(path, "rb") as lines:
            return cls(_parsed(number, line) for number, line in enumerate(lines))


def _without_nulls(table: Any) -> Any:
    """A table without its absent fields; anything else as it is."""
    return {name: value for name, value in table.items() if value is not None} if type(table) is dict else table


def wrong(number: int, what: str) -> ValueError:
    """The error of a history that is not one."""
    return ValueError(f"event {number}: {what}")


def shown(value: Any) -> str:
    """A value in a message, however large or deep it is."""
    return f"{reprlib.repr(value):.100}"


def _line(number: int, event: Event) -> bytes:
    try:
        return json.dumps(event, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("utf-8") + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise wrong(number, f"JSON cannot write it: {error}") from None


def _parsed(number: int, line: bytes) -> Event:
    try:
        event = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise wrong(number, f"the line is not UTF-8: {error}") from None
    except json.JSONDecodeError as error:
        raise wrong(number, f"the line is not JSON: {error.msg} at its character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:
        raise wrong(number, f"the line cannot be read: {error}") from None
    if type(event) is not dict:
        raise wrong(number, "the line is not a JSON object")
    return event


def _check(event: Event, number: int) -> None:
    kind = event.get("event")
    if type(kind) is not str or kind not in _KINDS:
        raise wrong(number, f"the kind is {shown(kind)}; it must be one of {', '.join(KINDS)}")
    _check_fields(event, kind, _KINDS[kind], number)
    if kind == "setting":
        _check_options(event, number)


def _check_fields(table: Event, kind: str, known: _Known, number: int) -> None:
    checks, required, types = known
    for name in required:
        if name not in table:
            raise wrong(number, f"{kind} has no {name}")
    for name, value in table.items():
        check = checks.get(name)
        if check is None:
            if name == "event":
                continue
            raise wrong(number, f"{kind} has an unknown field {name!r}")
        if not check(value):
            raise wrong(number, f"{name} of {kind} is {shown(value)}; its type must be {types[name]}")
    words = WORDS.get(kind)
    if words is not None:
        for name, allowed in words.items():
            if name in table and table[name] not in allowed:
                raise wrong(number, f"{name} of {kind} is {shown(table[name])}; it must be one of {', '.join(allowed)}")


def _check_options(event: Event, number: int) -> None:
    found = [(name, event[name]) for name in TABLES if name in event]
    found += [("limit", limit) for limit in event.get("limits", ())]
    for name, table in found:
        if type(table) is not dict:
            raise wrong(number, f"a {name} is {shown(table)}; its type must be table")
        _check_fields(table, name, _TABLES[name], number)
        if name == "limit" and not (table.get("rate", 0) > 0 and table.get("per", 1) > 0):
            raise wrong(number, f"a limit is {shown(table)}; it needs a rate and a time of more than 0")
