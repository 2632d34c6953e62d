"""The benchmark of peers, as far as it goes without their packages: the protocol, the check, the table, the proxy."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import growth
from benchmarks.peers import environments, report
from benchmarks.peers.measure import Figure, measured, wrong
from benchmarks.peers.process import ROOT, Program
from benchmarks.peers.roster import GUESTS, PEERS, PIPE, SPARK, TRIALS, WORKS, Peer, Work, base_of
from benchmarks.peers.task import Answer, Task

HERE = Path(sys.executable)
OPERATOR = next(peer for peer in PEERS if peer.program == "operator" and not peer.side)
PAGE = ROOT / "benchmarks" / "figures.md"


@pytest.fixture
def operator(tmp_path):
    program = Program(HERE, "operator", tmp_path / "operator.log")
    yield program
    program.close()


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_a_program_does_one_task_after_the_other(operator, ordered):
    for work in ("at_once", "fixed"):
        answer = operator.ask(Task("", work, 300, ordered=ordered), timeout=30)
        assert (answer.rows, answer.found, answer.error, answer.cannot) == (300, 300, "", "")
        assert answer.seconds > 0


def test_a_task_that_fails_is_an_answer_and_the_program_goes_on(operator):
    assert operator.ask(Task("", "no such work", 1), timeout=30).error == "KeyError: 'no such work'"
    assert operator.ask(Task("", "at_once", 1), timeout=30).rows == 1


def test_the_runner_measures_and_tells_who_is_missing(tmp_path, monkeypatch):
    def unavailable(name: str) -> Path:
        raise environments.UnavailableError(f"no {name} for this Python")

    monkeypatch.setattr(environments, "python_of", unavailable)
    work = Work("fixed", "10 ms", "fixed", {PIPE: 200})
    other = Peer("Other", PIPE, "other", environment="other")
    figures = measured([OPERATOR, other], [work], 1, tmp_path)
    assert figures[OPERATOR.name, "fixed"].rate > 0
    assert figures["Other", "fixed"] == Figure(reason="not installed: no other for this Python")


def test_the_failing_service_is_asked_by_the_operator_until_every_row_has_its_answer(tmp_path):
    work = Work("http", "HTTP API", "http", {PIPE: 10})
    figure = measured([OPERATOR], [work], 1, tmp_path)[OPERATOR.name, "http"]
    assert figure.reason == ""
    assert figure.requests is not None
    assert figure.requests >= 1


def test_rows_that_are_lost_or_invented_are_told(tmp_path):
    (tmp_path / "keys.json").write_text(json.dumps(["a", "x", None, "b"]))
    (tmp_path / "planes.json").write_text(json.dumps(["a", "b"]))
    task = Task("", "fixed", 4)
    assert wrong(task, Answer(1.0, 4, 4)) == ""
    assert wrong(task, Answer(1.0)) == ""
    assert wrong(task, Answer(1.0, 3, 3)) == "gave 3 rows for 4"
    assert wrong(task, Answer(1.0, 4, 3)) == "found 3 of 4 rows"
    flights = replace(task, work="postgres", keys=str(tmp_path / "keys.json"))
    assert wrong(flights, Answer(1.0, 4, 2)) == ""
    assert wrong(flights, Answer(1.0, 4, 4)) == "found 4 of 2 rows"


def test_rates_and_ratios_are_read_back_from_the_page_they_were_written_to(tmp_path):
    figures = {
        ("enrich", "fixed"): Figure(18_411.0, 10),
        ("gather per Arrow batch", "fixed"): Figure(16_379.0, 10),
        ("AsyncWaitOperator", "at_once"): Figure(1_000.0, 10),
        ("Flink, Java", "at_once"): Figure(4_000.0, 10),
        ("PyFlink", "at_once"): Figure(2.0, 10),
        ("Daft", "at_once"): Figure(reason="has no way"),
    }
    page = tmp_path / "page.md"
    page.write_text(f"# x\n{report.BEGIN}\n{report.END}\n")
    report.paste(list(report.markdown(figures, PEERS, WORKS, 3)), page)
    rates, ratios = report.read(page)
    assert rates == {place: Figure(figure.rate) for place, figure in figures.items() if figure.rate}
    assert ratios == {
        ("gather per Arrow batch", "fixed"): 1.12,
        ("Flink, Java", "at_once"): 0.25,
        ("PyFlink", "at_once"): 500.0,
    }


def test_every_peer_is_whole():
    names = [peer.name.lower() for peer in (*PEERS, *GUESTS)]
    assert len({*names}) == len(names)
    for peer in (*PEERS, *GUESTS):
        assert peer.reason or (ROOT / "benchmarks" / "peers" / "programs" / f"{peer.program}.py").exists()
        assert {*peer.rows} <= {work.name for work in (*WORKS, *TRIALS)}
        assert base_of(peer).environment == ""
        assert not peer.environment or report.version(peer) or peer.group == SPARK


@pytest.mark.parametrize("name", sorted({peer.environment for peer in (*PEERS, *GUESTS)} - {""}))
def test_requirements_pin_every_package(name):
    lines = (environments.REQUIREMENTS / f"{name}.txt").read_text().splitlines()
    packages = [line for line in lines if not line.startswith("#")]
    assert packages
    assert all(re.fullmatch(r"[\w.\-]+==[\w.]+", line) for line in packages)


def test_the_page_names_every_peer_and_work():
    text = PAGE.read_text()
    for begin, end in ((report.BEGIN, report.END), (growth.BEGIN, growth.END)):
        assert text.count(begin) == text.count(end) == 1
    table = text.partition(report.BEGIN)[2].partition(report.END)[0]
    for peer in PEERS:
        assert peer.name in table
    for work in WORKS:
        assert work.title in table
