"""The life of each element, made from events: when it waited, was called, backed off, was held back, and left.

A life is a list of *spans* that cover it from admission to emission. Spans follow one another without overlap. Only
"ignored" and "copy" spans overlap others: they show a call that still runs after it was cancelled, and a call that was
made while another one ran. Times are seconds since the start of the run.

One table says how each kind of span looks, in the picture and on the page. The colours can be distinguished in grey and
with every common kind of colour blindness. A tall bar is a call, which holds a slot. A flat bar is an element that
waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from asyncio_operator.trace.events import Event

CUT = ("timed_out", "cancelled")  # Outcomes of calls that may run on.

AT_ONCE = 0.001
"""Seconds. A call that obeys its cancellation returns within this time, which is one or two turns of the event loop."""


class Span(NamedTuple):
    """A part of a life; `kind` is one of `SPANS`."""

    kind: str
    start: float
    end: float
    attempt: int = 0
    text: str = ""


@dataclass(slots=True)
class Attempt:
    """One call.

    `end` is None while it runs. `returned` is when it gave its slot back, if it ignored its cancellation.
    """

    number: int
    start: float
    end: float | None = None
    outcome: str = "running"
    text: str = ""
    returned: float | None = None

    def until(self, now: float) -> float:
        """When it ended, or `now` if it runs."""
        return now if self.end is None else self.end

    @property
    def lingered(self) -> float | None:
        """Until when it held its slot after it was cancelled; None if it ended at once, as most calls do."""
        cut = self.end is not None and self.returned is not None and self.returned - self.end > AT_ONCE
        return self.returned if cut else None


@dataclass(slots=True)
class Life:
    """What the trace knows about one element. `copies` are the calls that were made while another one ran for it."""

    element: int
    value: str
    key: str | None
    admitted: float
    attempts: list[Attempt] = field(default_factory=list)
    copies: list[Attempt] = field(default_factory=list)
    backoffs: list[tuple[float, float]] = field(default_factory=list)
    completed: float | None = None
    outcome: str | None = None
    emitted: float | None = None

    def spans(self, now: float) -> list[Span]:
        """The spans in order of time, up to `now` if the life has not ended."""
        stop = now if self.completed is None else self.completed
        known = [Span(one.outcome, one.start, one.until(now), one.number, one.text) for one in self.attempts]
        known += [Span("copy", one.start, one.until(now), one.number, one.text) for one in self.copies]
        for start, until in self.backoffs:
            following = (call.start for call in self.attempts if call.start > start)
            known.append(Span("backing_off", start, min(until, *following, max(stop, start))))
        found: list[Span] = []
        cursor = self.admitted
        for span in sorted(known, key=lambda span: span.start):
            if span.start > cursor:
                found.append(Span("waiting", cursor, span.start))
            found.append(span)
            cursor = max(cursor, span.end)
        # If the run ended during a call, nothing follows the call.
        is_cut = self.completed is None and bool(self.attempts) and self.attempts[-1].outcome == "cancelled"
        if stop > cursor and not is_cut:
            found.append(Span("waiting", cursor, stop))
        if self.completed is not None and self.outcome != "failed":
            left = now if self.emitted is None else self.emitted
            if left > self.completed:
                found.append(Span("held", self.completed, left))
        return found + [
            Span("ignored", call.end, call.lingered, call.number)
            for call in self.calls
            if call.end is not None and call.lingered is not None
        ]

    @property
    def calls(self) -> list[Attempt]:
        """All calls, those of attempts first."""
        return [*self.attempts, *self.copies]


@dataclass(slots=True)
class Mark:
    """A watermark: its position in the input, its event time, when it was read and when it left."""

    element: int
    timestamp: int
    admitted: float
    emitted: float | None = None


class Phase(NamedTuple):
    """A time in which the circuit breaker was open or half open."""

    state: str
    start: float
    end: float


@dataclass(slots=True)
class Story:
    """A run: lives and watermarks in input order, phases of the circuit breaker, and the number of dropped elements.

    `parts` are runs of which it is made: the number of the first element of each, and its name.
    """

    end: float = 0.0
    dropped: int = 0
    lives: list[Life] = field(default_factory=list)
    watermarks: list[Mark] = field(default_factory=list)
    circuit: list[Phase] = field(default_factory=list)
    parts: list[tuple[int, str]] = field(default_factory=list)


def story_of(events: Iterable[Event], dropped: int = 0, parts: Sequence[tuple[int, str]] = ()) -> Story:
    """The run that these events describe. `parts`: see `Story`."""
    story, _ = read(events)
    story.dropped, story.parts = dropped, [*parts]
    return story


def read(events: Iterable[Event]) -> tuple[Story, dict[int, Attempt]]:
    """The run that events describe; and the call of which an event tells, as the whole run tells of it, by the place
    of the event."""
    lives: dict[int, Life] = {}
    watermarks: dict[int, Mark] = {}
    changes: list[tuple[float, str]] = []
    reported: dict[int, Attempt] = {}
    end = 0.0
    for place, event in enumerate(events):
        end = max(end, event.time)
        number = -1 if event.element is None else event.element
        # If the admission of an element was dropped, its later events go into a life that is thrown away.
        life = lives.get(number) or Life(-1, "", None, 0.0)
        calls = life.copies if event.kind.startswith("copy") else life.attempts
        call: Attempt | None = None
        match event.kind:
            case "admitted":
                lives[number] = Life(number, event.value or "", event.key, event.time)
            case "watermark":
                watermarks[number] = Mark(number, event.timestamp or 0, event.time)
            case "attempt_started" | "copy_started":
                call = Attempt(event.attempt or 0, event.time)
                calls.append(call)
            case "attempt_ended" | "copy_ended":
                call = next((one for one in reversed(calls) if one.number == event.attempt and one.end is None), None)
                if call is not None:
                    call.end, call.outcome, call.text = event.time, event.outcome or "", event.text or ""
            case "call_returned":
                # The call that was cut last. Of both calls of an attempt, the copy counts as the first that returns.
                cut = [
                    call
                    for call in reversed(life.calls)
                    if call.outcome in CUT and call.returned is None and event.attempt in (None, call.number)
                ]
                call = max(cut, key=lambda call: call.end or 0.0, default=None)
                if call is not None:
                    call.returned = event.time
            case "backing_off":
                life.backoffs.append((event.time, event.until or 0.0))
            case "completed":
                life.completed, life.outcome = event.time, event.outcome
            case "emitted":
                watermarks.get(number, life).emitted = event.time
            case "circuit":
                changes.append((event.time, event.state or ""))
        if call is not None:
            reported[place] = call
    ends = [*(time for time, _ in changes[1:]), end]
    circuit = [
        Phase(state, time, until) for (time, state), until in zip(changes, ends, strict=False) if state != "closed"
    ]
    in_order = [lives[number] for number in sorted(lives)], [watermarks[number] for number in sorted(watermarks)]
    return Story(end, 0, *in_order, circuit), reported


class SlowKey(NamedTuple):
    """An element that was called for: its number in the story, its time in seconds, and the error of its last attempt
    that had one."""

    row: int
    life: Life
    seconds: float
    error: str


def slowest(story: Story, most: int) -> list[SlowKey]:
    """The elements that took longest, from the start of their first call to the end of their last one, waits in between
    included. A wait before the first call does not count: it says nothing of a key."""
    found = []
    for row, life in enumerate(story.lives):
        if life.attempts:
            taken = max(call.until(story.end) for call in life.calls) - life.attempts[0].start
            error = next((one.text for one in reversed(life.attempts) if one.text), "")
            found.append(SlowKey(row, life, taken, error))
    return sorted(found, key=lambda one: -one.seconds)[:most]


class Look(NamedTuple):
    """Colour, words for the legend, top and bottom of the bar as parts of its row, and whether it is hatched."""

    colour: str
    label: str
    top: float = 0.1
    bottom: float = 0.9
    hatched: bool = False


SPANS = {
    "waiting": Look("#c9ced6", "waits for its turn", 0.38, 0.62),
    "held": Look("#a9d3f5", "complete, not yet emitted", 0.3, 0.7),
    "backing_off": Look("#dfb438", "backs off", 0.25, 0.75, hatched=True),
    "result": Look("#1f77b4", "call gave a result"),
    "error": Look("#c8324a", "call failed"),
    "timed_out": Look("#f08a24", "call timed out"),
    "cancelled": Look("#8d7f9c", "call cancelled"),
    "running": Look("#6fae78", "call still running"),
    "copy": Look("#17838f", "second call for it (hedge)", 0.7, 0.95),
    "ignored": Look("#7a3b00", "cut, still holds its slot", 0.7, 0.95, hatched=True),
}
"""In the order in which they are drawn: later ones cover earlier ones."""

MARKS = {
    "emitted": Look("#101418", "emitted"),
    "skipped": Look("#8a1c7c", "skipped"),
    "failed": Look("#c8324a", "failed"),
}

WATERMARK = Look("#6a3d9a", "watermark")
CIRCUIT = {"open": Look("#f6cfd3", "circuit open"), "half_open": Look("#fbe8c9", "circuit half open")}


def mark_of(life: Life) -> tuple[str, float] | None:
    """How and when a life ended: a key of `MARKS` and a time; None if it has not ended."""
    if life.outcome == "failed" and life.completed is not None:
        return "failed", life.completed
    if life.emitted is None:
        return None
    return ("skipped" if life.outcome == "skipped" else "emitted"), life.emitted


def rows_before(story: Story) -> list[int]:
    """For each watermark, the number of elements before it."""
    places, row = [], 0
    for mark in story.watermarks:
        while row < len(story.lives) and story.lives[row].element < mark.element:
            row += 1
        places.append(row)
    return places
