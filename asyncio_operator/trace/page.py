"""The page of a run: one file that needs no other, made from `page.html` and the lives as JSON.

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
from importlib.resources import files
from operator import itemgetter
from pathlib import Path
from typing import Any

from asyncio_operator.errors import ConfigurationError
from asyncio_operator.trace.stories import (
    CIRCUIT,
    MARKS,
    SPANS,
    WATERMARK,
    Life,
    Look,
    Story,
    mark_of,
    rows_before,
    slowest,
)

SLOWEST = 5
"""Keys that are listed as the slowest."""


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file and replace an older one; a symbolic link is followed.

    Raises:
        ConfigurationError: the folder does not exist, or `path` is a folder.
        OSError: the system refuses to write.
    """
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
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise ConfigurationError(f"path {os.fspath(path)!r} is a folder; give the path of a file")
    if not target.parent.is_dir():
        raise ConfigurationError(f"path {os.fspath(path)!r} is in a folder that does not exist; make {target.parent}")
    return target


TITLE, DATA = "{{title}}", "{{data}}"


def write(story: Story, path: str | os.PathLike[str], title: str) -> None:
    """Write the page of a run."""
    write_atomically(path, page_of(story, title).encode())


def page_of(story: Story, title: str) -> str:
    """The page of a run."""
    page = files("asyncio_operator.trace").joinpath("page.html").read_text(encoding="utf-8")
    # The title is inserted first, and only before the data: so a title that contains {{data}}, or data that contains
    # {{title}}, stays text.
    before, after = page.split(DATA)
    return before.replace(TITLE, html.escape(title)) + _json(_data(story)) + after


def frame_of(story: Story, title: str) -> str:
    """The page in a frame of a notebook. It has no access to the notebook."""
    content = html.escape(page_of(story, title))
    return (
        f'<iframe srcdoc="{content}" sandbox="allow-scripts" title="{html.escape(title)}" '
        'style="width:100%;height:640px;border:0"></iframe>'
    )


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _data(story: Story) -> dict[str, Any]:
    watermarks = zip(rows_before(story), story.watermarks, strict=True)
    return {
        "end": _millis(story.end),
        "dropped": story.dropped,
        "elements": [_element(life, story) for life in story.lives],
        "watermarks": [
            [row, mark.timestamp, _millis(mark.admitted), _millis(mark.emitted)] for row, mark in watermarks
        ],
        "slowest": [[one.row, _millis(one.seconds), len(one.life.calls), one.error] for one in slowest(story, SLOWEST)],
        "circuit": [[phase.state, _millis(phase.start), _millis(phase.end)] for phase in story.circuit],
        "spans": _looks(SPANS),
        "marks": _looks(MARKS),
        "phases": _looks(CIRCUIT),
        "watermark": _looks({"": WATERMARK})[""],
    }


def _looks(table: dict[str, Look]) -> dict[str, dict[str, Any]]:
    return {name: look._asdict() for name, look in table.items()}


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
