"""A long history is checked in time that grows with its length, whatever its keys."""

from __future__ import annotations

import time
from math import inf
from typing import Any

import pytest

from asyncio_operator.testing import History, check_history

LONG = 4_000
"""Rows. A million events take some 20 seconds of one core."""


def long(rows: int, keys: int, fails: bool) -> History:
    """Rows of tasks that share a budget, a journal and a cache, with answers that expire, or calls that all fail."""
    setting: dict[str, Any] = {"mode": "unordered", "capacity": 1000, "buffer": 100_000, "timeout": 30.0}
    setting |= {"max_attempts": 3, "delay": 0.0, "on_error": "null"}
    setting |= {"budget": "b", "limits": [{"rate": 1e6}, {"unit": "tokens", "rate": 1e9}], "in_flight": 2000}
    setting |= {"cache": {"expire_after_write": 0.05, "max_rows": 10}, "journal": {"name": "j", "expire_after": 0.01}}
    history = History([{"event": "setting", **setting}])
    for task in range(4):
        history.add("task_started", at=0, task=task, worker=task)
    known: dict[Any, float] = {}
    for row in range(rows):
        at, task, key = row * 0.01, row % 4, row // 4 % keys
        history.add("row_in", at=at, task=task, row=row, key=key)
        source = "cache"
        if fails or at - known.get((task, key), -1.0) >= 0.05:
            source = "call"
            known[task, key] = at
            history.add("call_started", at=at, task=task, call=row, keys=[key], weights={"tokens": 10.0})
            ended = {"outcome": "error", "retryable": False} if fails else {"outcome": "result", "answers": [[key]]}
            history.add("call_ended", at=at, task=task, call=row, settled={"tokens": 11.0}, **ended)
        answer = {"status": "failed"} if fails else {"status": "found", "answer": [key]}
        history.add("row_out", at=at, task=task, row=row, source=source, **answer)
    for task in range(4):
        history.add("task_ended", at=rows * 0.01, task=task, outcome="finished")
    return history


@pytest.mark.parametrize(("keys", "fails"), [(5_000, False), (1, False), (3, True)])
def test_Y2_a_long_history_takes_no_longer_for_each_event(keys: int, fails: bool) -> None:
    history = long(LONG, keys, fails)
    begin = time.process_time()
    check_history(history).raise_if_broken()
    # Ten times what it takes: a step that looks at all pairs takes a hundred times as long.
    assert time.process_time() - begin < 10.0


def a_task(rows: int, *events: tuple[str, float, dict[str, Any]], lasts: float = 0.1, **setting: Any) -> History:
    """A task whose rows come one a second, each with a call. ``events`` happen each second too, that long after."""
    history = History([{"event": "setting", "mode": "unordered", "capacity": 10**6, "on_error": "null", **setting}])
    history.add("task_started", at=0, task="t")
    failed = {"status": "failed", "source": "call", "error": "E"}
    for row in range(rows):
        key = 0 if setting.get("name") == "one key" else row
        history.add("row_in", at=row, task="t", row=row, key=key)
        history.add("call_started", at=row, task="t", call=row, keys=[key], attempt=1, weights={"usd": 1})
        if lasts < 1.0:
            ended = {"outcome": "error", "error": "E", "retryable": False, "settled": {"usd": 2}}
            history.add("call_ended", at=row + lasts, task="t", call=row, **ended)
        else:
            failed = {"status": "failed", "source": "none"}
        history.add("row_out", at=row + 0.2, task="t", row=row, **failed)
        for kind, after, fields in events:
            history.add(kind, at=row + after, **fields)
    history.add("task_ended", at=rows + 10, task="t", outcome="finished")
    return history


HINT = ("said", 0.3, {"task": "t", "budget": "b", "wait": 0.01})
LOST = ("fault", 0.3, {"what": "message_lost", "budget": "b"})
DOWN, UP = [("fault", at, {"what": f"coordinator_{what}", "budget": "b"}) for at, what in ((0.4, "down"), (0.5, "up"))]

LONG_TASKS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "calls without end": ([], {"lasts": inf}),
    "a key of which every row fails": ([], {"name": "one key"}),
    "hints and lost messages": ([HINT, LOST], {"budget": "b", "limits": [{"rate": 10}]}),
    "costs and lost messages": ([LOST], {"budget": "b", "spend": {"usd": 1e6}}),
    "outages": ([DOWN, UP], {"budget": "b", "limits": [{"rate": 10}]}),
}


@pytest.mark.parametrize("name", LONG_TASKS)
def test_Y2_a_task_with_many_of_these_takes_no_longer_for_each_event(name: str) -> None:
    events, more = LONG_TASKS[name]
    history = a_task(LONG, *events, **more)
    begin = time.process_time()
    check_history(history).raise_if_broken()
    assert time.process_time() - begin < 3.0


@pytest.mark.faults
def test_Y2_a_million_events_are_checked_within_a_minute() -> None:
    history = long(250_000, 5_000, fails=False)
    assert len(history) > 1_000_000
    begin = time.process_time()
    check_history(history).raise_if_broken()
    assert time.process_time() - begin < 60.0
