"""The files of a run: one page that needs no other file, made from `page.html` and the lives as JSON, and Chrome trace
events.

Values come from outside and may hold anything, so no part of a value may become markup. The JSON contains no ``<``, the
page only sets text, and its content security policy forbids loading anything. Times are milliseconds since the start
of the run. A file appears whole or not at all: it is written beside its final place, then moved there.
"""

from __future__ import annotations

import html
import json
import os
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from functools import partial
from importlib.resources import files
from operator import itemgetter
from pathlib import Path
from typing import Any

from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.trace.stories import (
    CIRCUIT,
    MARKS,
    SPANS,
    WATERMARK,
    Attempt,
    Life,
    Story,
    mark_of,
    rows_before,
    slowest,
)

SLOWEST = 5  # Keys that are listed as the slowest.


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file and replace an older one; a symbolic link is followed. ConfigurationError if the folder does not
    exist, or `path` is a folder; OSError if the system refuses to write."""
    target = checked(path)
    part = target.with_name(f".{target.name[:100]}.{os.getpid()}-{threading.get_ident()}.part")
    # The thread is part of the name: two threads may write the same file, and each must move its own part.
    try:
        part.write_bytes(content)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def checked(path: str | os.PathLike[str]) -> Path:
    """The real path of `path`, if a file can be written there."""
    try:
        target = Path(os.path.realpath(path))
    except (TypeError, ValueError):
        raise ConfigurationError(f"path is {describe(path)}; it must be the path of a file") from None
    if target.is_dir():
        raise ConfigurationError(f"path {os.fspath(path)!r} is a folder; give the path of a file")
    if not target.parent.is_dir():
        raise ConfigurationError(f"path {os.fspath(path)!r} is in a folder that does not exist; make {target.parent}")
    return target


TITLE, DATA = "{{title}}", "{{data}}"


def page_of(story: Story, title: str) -> str:
    """The page of a run."""
    page = files("asyncio_operator.trace").joinpath("page.html").read_text(encoding="utf-8")
    # The title is inserted first, and only before the data: so a title that contains {{data}}, or data that contains
    # {{title}}, stays text.
    before, after = page.split(DATA)
    watermarks = zip(rows_before(story), story.watermarks, strict=True)
    content = {
        "end": _millis(story.end),
        "dropped": story.dropped,
        "elements": [_element(life, story) for life in story.lives],
        "watermarks": [
            [row, mark.timestamp, _millis(mark.admitted), _millis(mark.emitted)] for row, mark in watermarks
        ],
        "slowest": [[one.row, _millis(one.seconds), len(one.life.calls), one.error] for one in slowest(story, SLOWEST)],
        "circuit": [[phase.state, _millis(phase.start), _millis(phase.end)] for phase in story.circuit],
        **{
            table: {name: look._asdict() for name, look in looks.items()}
            for table, looks in (("spans", SPANS), ("marks", MARKS), ("phases", CIRCUIT))
        },
        "watermark": WATERMARK._asdict(),
    }
    data = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    return before.replace(TITLE, html.escape(title)) + data + after


def _element(life: Life, story: Story) -> dict[str, Any]:
    spans = life.spans(story.end)
    part = bisect_right(story.parts, life.element, key=itemgetter(0))
    spent = {kind: sum(span.end - span.start for span in spans if span.kind == kind) for kind in SPANS}
    calls = sum(
        time for kind, time in spent.items() if kind not in ("waiting", "backing_off", "held", "ignored", "copy")
    )
    left = life.emitted
    return {
        "element": life.element,
        "value": life.value,
        "key": life.key,
        "task": story.parts[part - 1][1] if part else None,
        "outcome": life.outcome or "running",
        "attempts": len(life.calls),
        "admitted": _millis(life.admitted),
        "waited": _millis(spent["waiting"]),
        "called": _millis(calls),
        "backed_off": _millis(spent["backing_off"]),
        "held": _millis(spent["held"]),
        "latency": None if left is None else _millis(left - life.admitted),
        "emitted": _millis(left),
        "mark": None if (mark := mark_of(life)) is None else [mark[0], _millis(mark[1])],
        "spans": [[span.kind, _millis(span.start), _millis(span.end), span.attempt, span.text] for span in spans],
    }


def _millis(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 4)


CALLS, ELEMENTS = 1, 2

Json = dict[str, Any]


def write_chrome(story: Story, path: str | os.PathLike[str]) -> None:
    """Write the events of a run as one JSON object, which Perfetto and chrome://tracing open.

    Times are microseconds since the start of the run.

    - Process 1, "calls": one X event per call. Each call goes to the first free thread, so there are as many threads as
      there were calls at the same time. A call that ignored its cancellation lasts until it gave its slot back. An
      inner X event then shows the time after the cancellation.
    - Process 2, "elements": nestable b/e events, whose id is the number of the element. They show its life, and inside
      it the times in which it waited, backed off or was held back. Instants mark emissions.
    - Instants of global scope mark watermarks and changes of the circuit breaker. Counters show the calls in flight and
      the elements in the buffer.

    Source: "Trace Event Format" of the Chromium project.
    """
    events = [*_calls(story), *_elements(story), *_instants(story), *_counters(story)]
    document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"dropped elements": story.dropped}}
    write_atomically(path, json.dumps(document, separators=(",", ":")).encode("ascii"))


def _chrome_event(phase: str, name: str, time: float, process: int, thread: int, **rest: Any) -> Json:
    return {"ph": phase, "name": name, "ts": round(time * 1e6, 3), "pid": process, "tid": thread, **rest}


def _named(kind: str, name: str, process: int, thread: int = 0) -> Json:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


# -- calls


def _calls(story: Story) -> Iterator[Json]:
    yield _named("process_name", "calls", CALLS)
    # Calls of one track do not overlap: each takes the first free track.
    tracks: list[list[tuple[Life, Attempt, float]]] = []
    every = [(life, call) for life in story.lives for call in life.calls]
    for life, call in sorted(every, key=lambda pair: pair[1].start):
        free = max(call.until(story.end), call.returned or 0.0)
        track = next((track for track in tracks if track[-1][2] <= call.start), None)
        if track is None:
            tracks.append(track := [])
        track.append((life, call, free))
    for thread, calls in enumerate(tracks, start=1):
        yield _named("thread_name", f"calls {thread}", CALLS, thread)
        yield {**_named("thread_sort_index", "", CALLS, thread), "args": {"sort_index": thread}}
        for life, call, free in calls:
            args = {"element": life.element, "value": life.value, "attempt": call.number, "outcome": call.outcome}
            args |= {"key": life.key} if life.key is not None else {}
            args |= {"text": call.text} if call.text else {}
            args |= {"copy": True} if any(call is copy for copy in life.copies) else {}
            yield _slice(life.value, call.start, free, thread, args, call.outcome)
            if call.lingered is not None:
                args = {"element": life.element}
                yield _slice(SPANS["ignored"].label, call.until(story.end), free, thread, args, "ignored")


def _slice(name: str, start: float, end: float, thread: int, args: Json, category: str) -> Json:
    # The end is rounded, not the duration, so that an inner event does not stick out.
    duration = round(round(end * 1e6, 3) - round(start * 1e6, 3), 3)
    return _chrome_event("X", name, start, CALLS, thread, dur=duration, args=args, cat=category)


# -- elements


def _elements(story: Story) -> Iterator[Json]:
    yield _named("process_name", "elements", ELEMENTS)
    for life in story.lives:
        name = f"{life.element}: {life.value}"
        end = story.end if life.emitted is None else life.emitted
        args = {"element": life.element, "value": life.value, "outcome": life.outcome, "attempts": len(life.attempts)}
        nestable = partial(_chrome_event, process=ELEMENTS, thread=0, id=str(life.element), cat="element")
        yield nestable("b", name, life.admitted, args=args)
        for span in life.spans(story.end):
            if span.kind in ("waiting", "backing_off", "held"):
                yield nestable("b", SPANS[span.kind].label, span.start, args={})
                yield nestable("e", SPANS[span.kind].label, span.end, args={})
        yield nestable("e", name, end, args={})


def _instants(story: Story) -> Iterator[Json]:
    for life in story.lives:
        if (mark := mark_of(life)) is not None:
            kind, time = mark
            args = {"element": life.element, "value": life.value}
            yield _chrome_event("i", f"{kind} {life.element}", time, ELEMENTS, 0, s="t", cat=kind, args=args)
    for watermark in story.watermarks:
        for kind, at in (("admitted", watermark.admitted), ("emitted", watermark.emitted)):
            if at is not None:
                name = f"watermark {watermark.timestamp} {kind}"
                args = {"element": watermark.element, "timestamp": watermark.timestamp}
                yield _chrome_event("i", name, at, ELEMENTS, 0, s="g", cat="watermark", args=args)
    for state, start, end in story.circuit:
        args = {"until_ms": round(end * 1e3, 6)}
        yield _chrome_event("i", f"circuit {state}", start, CALLS, 0, s="g", cat="circuit", args=args)


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
            yield _chrome_event("C", name, time, process, 0, args={name: level})
