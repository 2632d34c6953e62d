"""The format of histories: what is an event, and what is refused with its number."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from asyncio_operator_proof.history import event_format
from asyncio_operator_proof.history.checker import check_history
from asyncio_operator_proof.history.event_format import KINDS, TABLES, History
from tests.proof.history.stories import Story


def a_history() -> History:
    history = History()
    history.add("setting", lookup=0, mode="ordered", cache={"max_rows": 3}, timeout=None)
    history.add("task_started", at=0, task="t")
    history.add("row_in", at=0.1 + 0.2, task="t", row=0, key=["a", None])
    history.add("task_ended", at=1.5, task="t", outcome="finished")
    return history


def test_a_history_is_written_and_read_byte_for_byte(tmp_path: Path) -> None:
    history = a_history()
    history.dump(tmp_path / "run.jsonl")
    again = History.load(tmp_path / "run.jsonl")
    assert again.events == history.events
    assert again.to_bytes() == history.to_bytes() == (tmp_path / "run.jsonl").read_bytes()
    assert history.to_bytes().splitlines()[2] == b'{"at":0.3,"event":"row_in","key":["a",null],"row":0,"task":"t"}'


def test_settings_are_the_events_of_what_was_asked_for() -> None:
    assert a_history().settings == [{"event": "setting", "lookup": 0, "mode": "ordered", "cache": {"max_rows": 3}}]
    assert repr(a_history()) == "<History of 4 events>"


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_names_every_field_of_an_event(kind: str) -> None:
    items = re.split(r"\n\n|\n(?=- )", event_format.__doc__ or "")
    [item] = [item for item in items if item.startswith("- ``") and f"``{kind}``" in item.partition(":")[0]]
    named = set(re.findall(r"\w+", item))
    assert [field for field in KINDS[kind].split() if field.partition(":")[0] not in named] == []


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"event": "row", "at": 0}, "event 1: the kind is 'row'"),
    ({"at": 0}, "event 1: the kind is None"),
    ({"event": ["row_in"], "at": 0}, "event 1: the kind is"),
    ({"event": "row_in", "at": 0, "task": "t"}, "event 1: row_in has no row"),
    ({"event": "row_in", "at": 0, "task": "t", "row": 0, "kye": 1}, "event 1: row_in has an unknown field 'kye'"),
    ({"event": "row_in", "at": float("nan"), "task": "t", "row": 0}, "event 1: at of row_in is nan"),
    ({"event": "row_in", "at": True, "task": "t", "row": 0}, "event 1: at of row_in is True"),
    ({"event": "row_in", "at": 0, "task": "t", "row": -1}, "event 1: row of row_in is -1"),
    ({"event": "task_started", "at": -1, "task": "t"}, "event 1: task_started is at -1, before"),
    ({"event": "task_ended", "at": 0, "task": "t", "outcome": "gone"}, "event 1: outcome of task_ended is 'gone'"),
    ({"event": "setting", "cache": {"ttl": 3}}, "event 1: cache has an unknown field 'ttl'"),
    ({"event": "setting", "batch": {"max_size": 1.5}}, "event 1: max_size of batch is 1.5"),
    ({"event": "setting", "limits": [{"rate": 0}]}, "event 1: a limit is"),
    ({"event": "setting", "limits": [3]}, "event 1: a limit is 3"),
    ({"event": "setting", "spend": {"usd": -1}}, "event 1: spend of setting is"),
    ({"event": "setting", "limits": [{"rate": None}]}, "event 1: a limit is {}"),
    ({"event": "setting", "limits": [None]}, "event 1: a limit is None"),
    ({"event": "setting", "hedge": {"after": [1]}}, "event 1: after of hedge is [1]"),
    ({"event": "setting", "timeout": 10**400}, "event 1: timeout of setting is 1000"),
    ({"event": "setting", "circuit_breaker": {"minimum_calls": 10**400}}, "event 1: minimum_calls of circuit_breaker"),
    ({"event": "row_in", "at": 10**400, "task": "t", "row": 0}, "event 1: at of row_in is 1000"),
    ({"event": "setting", "timeout": -1}, "event 1: timeout of setting is -1"),
    ({"event": "setting", "delay": -0.5}, "event 1: delay of setting is -0.5"),
    ({"event": "setting", "backoff": {"initial": -1}}, "event 1: initial of backoff is -1"),
    ({"event": "setting", "limits": [{"rate": 1, "burst": -1}]}, "event 1: burst of limit is -1"),
    ({"event": "setting", "hedge": {"after": "px"}}, "event 1: after of hedge is 'px'"),
    ({"event": "setting", "cache": {"store": "x"}}, "event 1: store of cache is 'x'; it must be one of heap, rocksdb"),
    (
        {"event": "call_started", "at": 0, "task": "s", "call": 0, "attempt": ["x"]},
        "event 1: attempt of call_started is",
    ),
    (
        {"event": "call_started", "at": 0, "task": "s", "call": 0, "attempt": [[1]]},
        "event 1: attempt of call_started is",
    ),
    (
        {"event": "call_started", "at": 0, "task": "s", "call": 0, "attempt": True},
        "event 1: attempt of call_started is",
    ),
    ({"event": "history", "slack": -1}, "event 1: slack of history is -1"),
    ({"event": "history", "drift": -5.0}, "event 1: drift of history is -5.0"),
]


@pytest.mark.parametrize("event", ["row_in", ["row_in"], 7, None])
def test_what_is_no_table_is_refused_with_its_number(event: Any) -> None:
    with pytest.raises(ValueError, match=r"event 1: it is .*, and must be a table of fields"):
        History([{"event": "setting"}, event])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "is not JSON: Expecting value at its character"),
        (b'{"event":', "is not JSON"),
        (b"\xff", "is not UTF-8"),
        (b"[]", "is not a JSON object"),
        (b"[" * 200_000 + b"]" * 200_000, "cannot be read"),
        (b'{"event":"history","slack":' + b"1" * 5_000 + b"}", "cannot be read"),
    ],
    ids=lambda value: str(value[:12]),
)
def test_a_line_that_is_no_event_is_refused_with_its_number(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "run.jsonl").write_bytes(a_history().to_bytes() + line + b"\n")
    with pytest.raises(ValueError, match=f"event 4: the line {message}"):
        History.load(tmp_path / "run.jsonl")


def test_options_that_are_null_inside_of_an_option_are_absent() -> None:
    nulls = {name: dict.fromkeys(fields.split(":")[0] for fields in text.split()) for name, text in TABLES.items()}
    limits = [{**nulls.pop("limit"), "rate": 1.0}]
    [setting] = History([{"event": "setting", "limits": limits, **nulls}]).settings
    assert setting == {"event": "setting", "limits": [{"rate": 1.0}], **{name: {} for name in nulls}}
    story = Story(max_attempts=2, limits=limits, **nulls).task().row(0, 9, key="a")
    story.call(0, 3, ["a"], "error", call="c").call(2, 3, ["a"], "error", copy_of="c")
    assert story.call(8, 9, ["a"]).report().held


@pytest.mark.parametrize("attempts", ["x", 1.0, [1]])
def test_a_snapshot_with_attempts_that_are_no_number_is_refused(attempts: Any) -> None:
    story = Story().task().row(0, None, 0).add("snapshot", 1, task="t", snapshot="s", rows=[[0, attempts]])
    with pytest.raises(ValueError, match="event 3: a snapshot holds"):
        story.report()


@pytest.mark.parametrize(("event", "message"), WRONG)
def test_what_is_no_event_is_refused_with_its_number(event: dict[str, Any], message: str) -> None:
    history = History([{"event": "task_started", "at": 0, "task": "s"}])
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        history.add(event.pop("event", None), **event)
    assert len(history) == 1


def deep() -> list[Any]:
    """A list in a list in a list, and so on."""
    outer: list[Any] = []
    for _ in range(100_000):
        outer = [outer]
    return outer


@pytest.mark.parametrize("key", [math.nan, math.inf, [1, -math.inf], deep()])
def test_a_key_that_is_none_is_refused_with_its_number(key: Any) -> None:
    story = Story().task().row(0, 1, 0, key=key)
    with pytest.raises(ValueError, match=r"event 2: .* is not a key"):
        story.report()


@pytest.mark.parametrize("answer", [math.nan, b"x", deep()])
def test_what_JSON_cannot_write_is_refused_with_its_number(answer: Any) -> None:
    history = a_history()
    history.add("call_ended", at=2, task="t", call=0, outcome="result", answers=[answer])
    with pytest.raises(ValueError, match="event 4: JSON cannot write it"):
        history.to_bytes()


def test_answers_that_are_nested_too_deeply_are_refused() -> None:
    story = Story().task().row(0, 1, 0, key="a", source="call", answer=deep()).call(0, 1, ["a"], answers=[deep()])
    with pytest.raises(ValueError, match="nested too deeply"):
        story.report()


@pytest.mark.parametrize("history", [{"event": "history"}, 7, None, b"run.jsonl"])
def test_what_is_no_history_is_refused(history: Any) -> None:
    with pytest.raises(TypeError, match="a history is a History, the path of its file, or its events as dicts"):
        check_history(history)
