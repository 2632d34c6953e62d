"""What `check_history` returns and refuses: a report, and the number of the event that makes a history impossible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asyncio_operator.testing import History, check_history, history_laws
from tests.proof.history.stories import Story


def overlapping(calls: int = 3, name: str = "t") -> Story:
    story = Story(capacity=1).task(task=name)
    for row in range(calls):
        story.row(0, 1, row, key=row, task=name).call(0, 1, [row], task=name)
    return story


def test_Y2_a_report_is_a_sequence_of_violations_by_time() -> None:
    report = overlapping().report()
    assert [violation.law for violation in report] == ["O1", "O1"]
    assert len(report) == 2
    assert bool(report)
    assert report[0].at == 0
    assert report[:1] == [report[0]]
    with pytest.raises(AssertionError, match=r"O1 at 0\.000000: 2 calls of task t run, and capacity is 1"):
        report.raise_if_broken()
    assert not overlapping(1).report()
    overlapping(1).report().raise_if_broken()


def test_Y2_the_table_shows_all_laws_and_escapes_what_comes_from_outside() -> None:
    report = overlapping(name="<b>").report()
    text = str(report)
    assert text.startswith("1 law broken, ")
    assert "O1   broken 2 times" in text
    [silent] = [line for line in text.splitlines() if "nothing happened" in line]
    assert "these speak of: O6, O7" in silent
    assert repr(report).startswith("<Report: 1 law broken")
    page = report._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;" in page


def test_Y2_a_history_is_read_from_a_file_from_events_and_as_it_is(tmp_path: Path) -> None:
    history = History(overlapping().events())
    history.dump(tmp_path / "run.jsonl")
    for one in (history, tmp_path / "run.jsonl", str(tmp_path / "run.jsonl"), iter(overlapping().events())):
        assert len(check_history(one)) == 2


def test_Y2_every_law_has_its_sentence() -> None:
    laws = history_laws()
    assert {law[0] for law in laws} == {*"ORBLGHJXQ"}
    for sentence in laws.values():
        assert sentence[0].isupper() or sentence[0] == "`"
        assert sentence.endswith(".")


SETTING = {"event": "setting", "capacity": 1}
STARTED = {"event": "task_started", "at": 0, "task": "t"}
READ = {"event": "row_in", "at": 0, "task": "t", "row": 0, "key": "a"}
CALLED = {"event": "call_started", "at": 0, "task": "t", "call": "c", "keys": ["a"]}
ENDED = {"event": "call_ended", "at": 1, "task": "t", "call": "c", "outcome": "result"}
OVER = {"event": "task_ended", "at": 1, "task": "t", "outcome": "finished"}

IMPOSSIBLE: list[tuple[list[dict[str, Any]], str]] = [
    ([SETTING, SETTING], "event 1: lookup 0 has settings already"),
    ([STARTED, READ], "event 1: lookup 0 has no setting"),
    ([SETTING, READ], "event 1: task 't' has not started"),
    ([SETTING, STARTED, STARTED], "event 2: task 't' has started already"),
    ([SETTING, STARTED, SETTING], "event 2: lookup 0 has settings already"),
    ([SETTING, STARTED, {**SETTING, "lookup": 1}], "event 2: a setting comes after the start of a task"),
    ([SETTING, STARTED, READ, READ], "event 3: row 0 was read already, in event 2"),
    ([SETTING, STARTED, {**READ, "key": {"decimal": "x"}}], "event 2: 'decimal': 'x' is not a key"),
    ([SETTING, STARTED, {**READ, "event": "row_out", "status": "found"} | {"key": None}], "event 2: row 0 was emitted"),
    ([SETTING, STARTED, CALLED, CALLED], "event 3: call 'c' has started already, in event 2"),
    ([SETTING, STARTED, {**CALLED, "keys": []}], "event 2: the call has no keys"),
    ([SETTING, STARTED, {**CALLED, "rows": [0]}], "event 2: a call has keys, or rows"),
    ([SETTING, STARTED, {**CALLED, "keys": None, "rows": [0]}], "event 2: the call is for row 0"),
    ([SETTING, STARTED, {**CALLED, "copy_of": "d"}], "event 2: the call is a copy of 'd'"),
    ([SETTING, STARTED, ENDED], "event 2: call 'c' has ended, and no event says that it started"),
    ([SETTING, STARTED, CALLED, ENDED, ENDED], "event 4: call 'c' has ended already, in event 3"),
    ([SETTING, STARTED, OVER, OVER], "event 3: task 't' has ended already, in event 2"),
    ([SETTING, {**STARTED, "restored": "s"}], "event 1: the task starts with snapshot 's', which was not taken"),
    ([{"event": "history", "version": 2}], "event 0: history must be the first event, of version 1"),
    ([{"event": "history", "dropped": 5}], "event 0: 5 events were dropped"),
]


@pytest.mark.parametrize(("events", "message"), IMPOSSIBLE)
def test_Y2_an_impossible_history_is_an_error_that_names_the_event(events: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        check_history(events)
