"""The demo of deadlines and retries: what holds on any machine, however slow. Times are not asserted."""

from __future__ import annotations

import re
import sys
from collections import Counter

import pytest

from examples import timeout_demo
from examples.stage import ProblemError
from examples.timeout_demo import FAILS, TITLE, WAYS
from tests.examples.programs import run_example

NAMES = [str(element) for element in range(10)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("timeouts")


@pytest.fixture(scope="module")
def runs(folder):
    return timeout_demo.demo(folder / "timeouts.svg")


@pytest.mark.parametrize("way", WAYS)
def test_no_element_comes_twice_or_from_nowhere(runs, way):
    came = Counter(name.strip("()") for name in runs[way].order)
    assert came <= Counter(NAMES)


def test_without_a_deadline_all_come_in_order(runs):
    assert runs["no deadline"].order == NAMES


def test_with_a_deadline_those_that_are_not_skipped_keep_their_order(runs):
    order = runs["deadline of 5 ms, skipped"].order
    assert order == sorted(order)


def test_with_a_fallback_every_element_comes_in_order(runs):
    order = runs["deadline of 5 ms, fallback"].order
    assert [name.strip("()") for name in order] == NAMES


def test_with_retries_every_element_comes_after_one_call_more_than_fail(runs):
    run = runs["retry with back-off"]
    assert sorted(run.order) == NAMES
    for life in run.trace.story().lives:
        outcomes = [attempt.outcome for attempt in life.attempts]
        failures = len(FAILS.get(life.element, ()))
        assert outcomes == ["error"] * failures + ["result"]
        assert len(life.backoffs) == failures


def test_the_circuit_breaker_opens(runs):
    states = [event.state for event in runs["circuit breaker"].trace.events() if event.kind == "circuit"]
    assert states[0] == "open"


def test_the_picture_shows_every_way_by_its_title(runs, folder):
    [picture] = folder.iterdir()
    svg = picture.read_text(encoding="utf-8")
    assert TITLE in svg
    for way, run in runs.items():
        assert f"{way}: {run.milliseconds:.1f} ms" in svg


def test_as_a_program_it_ends_with_status_0_and_writes_the_picture(tmp_path):
    printed = run_example("timeout_demo", "--output", str(tmp_path / "timeouts.png"))
    assert all(f"\n{way} " in printed for way in WAYS)
    assert re.search(
        "\nBy default the first timeout ends the run: .* had no result within its timeout of 0.005 s", printed
    )
    assert (tmp_path / "timeouts.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_is_told_before_anything_is_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ProblemError, match=r"asyncio-operator\[plot\]"):
        timeout_demo.demo(tmp_path / "timeouts.svg")
    assert capsys.readouterr().out == ""
