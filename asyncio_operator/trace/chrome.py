"""Chrome trace events, which Perfetto and chrome://tracing open. Times are microseconds since the start of the run.

- Process 1, "calls": one X event per call. Each call goes to the first free thread, so there are as many threads as
  there were calls at the same time. A call that ignored its cancellation lasts until it gave its slot back. An inner
  X event then shows the time after the cancellation.
- Process 2, "elements": nestable b/e events, whose id is the number of the element. They show its life, and inside it
  the times in which it waited, backed off or was held back. Instants mark emissions.
- Instants of global scope mark watermarks and changes of the circuit breaker. Counters show the calls in flight and
  the elements in the buffer.

Source: "Trace Event Format" of the Chromium project.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

from asyncio_operator.trace.page import write_atomically
from asyncio_operator.trace.stories import SPANS, Attempt, Life, Story, mark_of

CALLS, ELEMENTS = 1, 2

Json = dict[str, Any]


def write(story: Story, path: str | os.PathLike[str]) -> None:
    """Write the events of a run as one JSON object."""
    events = [*_calls(story), *_elements(story), *_instants(story), *_counters(story)]
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"dropped elements": story.dropped},
    }
    write_atomically(path, json.dumps(document, separators=(",", ":")).encode("ascii"))


def _event(phase: str, name: str, time: float, process: int, thread: int, **rest: Any) -> Json:
    return {"ph": phase, "name": name, "ts": _micros(time), "pid": process, "tid": thread, **rest}


def _micros(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _named(kind: str, name: str, process: int, thread: int = 0) -> Json:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


# -- calls


def _calls(story: Story) -> Iterator[Json]:
    yield _named("process_name", "calls", CALLS)
    for thread, calls in enumerate(_tracks(story), start=1):
        yield _named("thread_name", f"calls {thread}", CALLS, thread)
        yield {**_named("thread_sort_index", "", CALLS, thread), "args": {"sort_index": thread}}
        for life, call in calls:
            yield from _call(story, thread, life, call)


def _call(story: Story, thread: int, life: Life, call: Attempt) -> Iterator[Json]:
    cut = story.end if call.end is None else call.end
    args = {"element": life.element, "value": life.value, "attempt": call.number, "outcome": call.outcome}
    args |= {"key": life.key} if life.key is not None else {}
    args |= {"text": call.text} if call.text else {}
    args |= {"copy": True} if any(call is copy for copy in life.copies) else {}
    yield _slice(life.value, call.start, _slot_free(story, call), thread, args, call.outcome)
    if call.lingered is not None:
        args = {"element": life.element}
        yield _slice(SPANS["ignored"].label, cut, _slot_free(story, call), thread, args, "ignored")


def _slot_free(story: Story, call: Attempt) -> float:
    return max(story.end if call.end is None else call.end, call.returned or 0.0)


def _slice(name: str, start: float, end: float, thread: int, args: Json, category: str) -> Json:
    # The end is rounded, not the duration, so that an inner event does not stick out.
    duration = round(_micros(end) - _micros(start), 3)
    return _event("X", name, start, CALLS, thread, dur=duration, args=args, cat=category)


def _tracks(story: Story) -> list[list[tuple[Life, Attempt]]]:
    """The calls, dealt to tracks so that calls of one track do not overlap; each call takes the first free track."""
    tracks: list[list[tuple[Life, Attempt]]] = []
    calls = [(life, call) for life in story.lives for call in life.calls]
    for life, call in sorted(calls, key=lambda pair: pair[1].start):
        free = next((track for track in tracks if _slot_free(story, track[-1][1]) <= call.start), None)
        if free is None:
            tracks.append(free := [])
        free.append((life, call))
    return tracks


# -- elements


def _elements(story: Story) -> Iterator[Json]:
    yield _named("process_name", "elements", ELEMENTS)
    for life in story.lives:
        name = f"{life.element}: {life.value}"
        spans = [span for span in life.spans(story.end) if span.kind in ("waiting", "backing_off", "held")]
        end = max([life.admitted, *(time for time in (life.completed, life.emitted) if time is not None)])
        if life.emitted is None:
            end = story.end
        args = {"element": life.element, "value": life.value, "outcome": life.outcome, "attempts": len(life.attempts)}
        yield _nestable("b", name, life, life.admitted, args)
        for span in spans:
            yield _nestable("b", SPANS[span.kind].label, life, span.start, {})
            yield _nestable("e", SPANS[span.kind].label, life, span.end, {})
        yield _nestable("e", name, life, end, {})


def _nestable(phase: str, name: str, life: Life, time: float, args: Json) -> Json:
    return _event(phase, name, time, ELEMENTS, 0, id=str(life.element), cat="element", args=args)


def _instants(story: Story) -> Iterator[Json]:
    for life in story.lives:
        if (mark := mark_of(life)) is not None:
            kind, time = mark
            args = {"element": life.element, "value": life.value}
            yield _event("i", f"{kind} {life.element}", time, ELEMENTS, 0, s="t", cat=kind, args=args)
    for watermark in story.watermarks:
        for kind, at in (("admitted", watermark.admitted), ("emitted", watermark.emitted)):
            if at is not None:
                name = f"watermark {watermark.timestamp} {kind}"
                args = {"element": watermark.element, "timestamp": watermark.timestamp}
                yield _event("i", name, at, ELEMENTS, 0, s="g", cat="watermark", args=args)
    for state, start, end in story.circuit:
        args = {"until_ms": round(end * 1e3, 6)}
        yield _event("i", f"circuit {state}", start, CALLS, 0, s="g", cat="circuit", args=args)


# -- counters


def _counters(story: Story) -> Iterator[Json]:
    in_flight: Counter[float] = Counter()
    buffered: Counter[float] = Counter()
    for life in story.lives:
        buffered[life.admitted] += 1
        if life.emitted is not None:
            buffered[life.emitted] -= 1
        for call in life.calls:
            in_flight[call.start] += 1
            if call.end is not None:
                in_flight[max(call.end, call.returned or 0.0)] -= 1
    for name, process, changes in (("in flight", CALLS, in_flight), ("buffered", ELEMENTS, buffered)):
        level = 0
        for time, change in sorted(changes.items()):
            level += change
            yield _event("C", name, time, process, 0, args={name: level})
