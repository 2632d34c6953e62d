"""The events of a trace, and the short texts by which it shows values.

An event is recorded as a tuple: kind, time, and the fields of `FIELDS` in this order. A value that needs no more
memory than its text is kept as it is. Of any other value only a short text is kept, so a trace keeps no big object
alive. This module knows neither the recording nor the pictures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from reprlib import Repr
from typing import Any

from asyncio_operator.errors import describe, describe_error

VALUE_LIMIT = 40
TEXT_LIMIT = 200
SMALL = 10 ** (VALUE_LIMIT - 1)
"""Integers between this and its negative have a text of at most `VALUE_LIMIT` characters."""

FIELDS: dict[str, tuple[str, ...]] = {
    "started": (),  # a run
    "admitted": ("element", "value", "key"),  # read from the input
    "watermark": ("element", "timestamp"),  # read from the input; "emitted" with the same number: it left
    "attempt_started": ("element", "attempt"),
    "attempt_ended": ("element", "attempt", "outcome", "text"),  # or its timeout has expired
    "copy_started": ("element", "attempt"),  # the call of this attempt was made a second time (`Hedge`)
    "copy_ended": ("element", "attempt", "outcome", "text"),  # or it was cancelled, because the first one has answered
    "backing_off": ("element", "until"),  # it waits for its next attempt
    "call_returned": (
        "element",
        "attempt",
    ),  # a cancelled call has returned its slot: the last one, or that of `attempt`
    "completed": ("element", "outcome"),  # it leaves when the queue allows it
    "emitted": ("element",),  # the watermark, or all outputs of the element (there may be none), were handed over
    "circuit": ("state",),  # the circuit breaker is in this state now
    "ended": (),  # the run
}
"""The kinds of events, each with its fields. Elements and watermarks share one count, in input order from 0."""


@dataclass(frozen=True, slots=True, repr=False)
class Event:
    """One thing that happened. Fields that its kind does not have are None.

    Attributes:
        kind: what happened: one of `FIELDS`.
        time: seconds since the start of the run.
        element: number of the element or watermark in input order, from 0.
        value, key: short texts of the element's value, and of its key if the element has one.
        attempt: number of the call for this element, from 1.
        outcome: of an attempt "result" | "error" | "timed_out" | "cancelled"; of an element "result" | "timeout" |
            "failed" | "skipped".
        text: more about an outcome, for example the error.
        until: when a back-off ends, in seconds since the start of the run.
        timestamp: event time of a watermark, milliseconds since the epoch.
        state: of the circuit breaker, "closed" | "open" | "half_open".
    """

    kind: str
    time: float
    element: int | None = None
    value: str | None = None
    key: str | None = None
    attempt: int | None = None
    outcome: str | None = None
    text: str | None = None
    until: float | None = None
    timestamp: int | None = None
    state: str | None = None

    def __repr__(self) -> str:
        given = ((field.name, getattr(self, field.name)) for field in fields(self))
        return f"Event({', '.join(f'{name}={value!r}' for name, value in given if value is not None)})"


class Text(str):
    """The text of a value, already shortened. A plain ``str`` in an event is still a value."""

    __slots__ = ()


_SCALARS = frozenset({float, bool, type(None), Text})
_shortened = Repr()
_shortened.maxstring = _shortened.maxother = _shortened.maxlong = VALUE_LIMIT


def keepable(value: Any) -> Any:
    """The value itself if it is small and immutable, else its text."""
    kind = type(value)
    if kind is int:
        return value if -SMALL < value < SMALL else text_of(value)
    if kind in _SCALARS or (kind is str and len(value) <= VALUE_LIMIT):
        return value
    return text_of(value)


def text_of(value: Any) -> Text:
    """A text of at most `VALUE_LIMIT` printable characters. Only the first items of a big container are read."""
    if type(value) is Text:
        return value
    try:
        text = _shortened.repr(value)
    except BaseException:  # A value's own __repr__ may raise anything; a trace must not end the run that it records.
        text = describe(value, VALUE_LIMIT)
    return Text(printable(text, VALUE_LIMIT))


def text_of_error(error: BaseException | None) -> str | None:
    """The beginning of an error's text, so that no long one stays in memory."""
    return None if error is None else describe_error(error)[: TEXT_LIMIT + 1]


def printable(text: str, limit: int) -> str:
    """The text, cut at `limit` characters; unprintable characters are escaped as in ``repr``."""
    text = text[: limit + 1]  # Escaping only makes it longer: what is behind the limit is never shown.
    if not text.isprintable():
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def decoded(recorded: Iterable[tuple[Any, ...]], start: float) -> list[Event]:
    """Events made from recorded tuples, with times since `start`."""
    events = []
    for kind, time, *rest in recorded:
        found = dict(zip(FIELDS[kind], rest, strict=False))
        if kind == "admitted":
            found["value"] = str(text_of(found["value"]))
            found["key"] = None if found["key"] is None else str(text_of(found["key"]))
        elif kind == "backing_off":
            found["until"] -= start
        elif found.get("text") is not None:
            found["text"] = printable(found["text"], TEXT_LIMIT)
        events.append(Event(kind, time - start, **found))
    return events
