"""The benchmarks of peers without their packages: protocol, checks, what is counted, tables and pages."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from asyncio_operator import Batching
from asyncio_operator.lookup import Lookup
from benchmarks import growth
from benchmarks.peers import environments, nexmark, page, report, trials
from benchmarks.peers.alone import measured_alone
from benchmarks.peers.measure import Figure, measured, wrong
from benchmarks.peers.process import ROOT, Program
from benchmarks.peers.processes import cpu_seconds, kill_worker
from benchmarks.peers.report import paste
from benchmarks.peers.results import Result, Turn, WorkResult, compared, read
from benchmarks.peers.roster import GUESTS, PEERS, PIPE, SPARK, TRIALS, WORKS, Peer, Work, base_of
from benchmarks.peers.task import Answer, Task
from enrichers import ModelEnricher

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


# -- peers that are measured alone


def get(url: str, body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(url, body, timeout=10) as answer:
        content: bytes = answer.read()
        return content


def test_rows_are_right_lost_doubled_or_wrong_by_their_answers():
    expected = Counter({"row 1": 2, "row 2": 1, "row 3": 1})
    assert compared(expected, expected) == {"right": 4, "lost": 0, "doubled": 0, "wrong": 0}
    got = Counter({"row 1": 1, "row 2": 3, "": 1, "row 9": 1})
    assert compared(expected, got) == {"right": 2, "lost": 2, "doubled": 2, "wrong": 1}


def test_the_operator_alone_has_every_row_and_every_call_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(trials, "SILENT", 0.0)
    works = [replace(work, rows={PIPE: 20}) for work in TRIALS if work.name in ("q13", "faults")]
    result = measured_alone(OPERATOR, works, 1, 0.5, tmp_path)
    path = tmp_path / "result.json"
    result.write(path)
    assert read(path) == result
    for work in result.works.values():
        [turn] = work.turns
        assert (turn.right, turn.lost, turn.doubled, turn.wrong, turn.error) == (20, 0, 0, 0, "")
        assert turn.cpu_seconds is not None
        assert turn.calls is not None
        assert turn.money == turn.calls * 0.5
        assert not turn.killed
    keys = len({bid.key for bid in nexmark.bids(20)})
    assert result.works["q13"].turns[0].repeated == 20 - keys


def test_a_peer_that_cannot_be_installed_says_why(tmp_path):
    [peer] = [peer for peer in GUESTS if peer.name == "SynapseML"]
    result = measured_alone(peer, TRIALS, 1, 0.5, tmp_path)
    assert {work.reason for work in result.works.values()} == {f"not installed: {peer.reason}"}


def test_a_storm_refuses_everything_and_says_when_to_come_back(monkeypatch):
    monkeypatch.setattr(trials, "CALM", 0.0)
    with trials.TrialService("storm", 4) as service:
        with pytest.raises(urllib.error.HTTPError) as refused:
            get(f"{service.url}/rows/1")
        refused.value.close()
        assert (refused.value.code, refused.value.headers["Retry-After"]) == (429, "1")
        assert trials.counts_of(service.requests) == trials.Counts(1, 1, 0, 0)


async def test_the_service_answers_as_a_chat_for_one_key_and_for_several():
    with trials.TrialService("texts", 4) as service:
        address = f"{service.url}/v1"
        model = ModelEnricher("m", prompt="{key}", system="S", schema="name string", base_url=address, batch=3)
        async with Lookup(model, batching=Batching(3)) as lookup:
            rows = await asyncio.gather(*map(lookup.get, ["a", "b", "c", "[d]"]))
        assert rows == [{"name": f"row {key}"} for key in ("a", "b", "c", "[d]")]
        assert trials.counts_of(service.requests) == trials.Counts(2, 0, 4, 0)
        # The last one is alone: its system text, the text, the schema of a row and the answer.
        alone = [request for request in service.requests if trials.keys_of(request) == ["[d]"]]
        schema = json.dumps(alone[0].json()["response_format"]["json_schema"]["schema"])
        assert trials.tokens_of(alone) == len(f'S[d]{schema}{{"name": "row [d]"}}') // trials.CHARACTERS


def test_a_worker_is_killed_and_its_program_is_not():
    connect = "s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))"
    worker = f"import socket, sys; {connect}; print(flush=True); s.recv(1)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}, sys.argv[1]]); input()"
    with trials.TrialService("q13", 4) as service:
        port = service.url.split(":")[2].split("/")[0]
        command = [sys.executable, "-c", program, port]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
            assert running.stdin is not None
            assert running.stdout is not None
            running.stdout.readline()
            assert kill_worker(running.pid, int(port))
            assert running.poll() is None
            assert not kill_worker(running.pid, 1)
            assert cpu_seconds(running.pid) > 0
            running.stdin.close()
    assert cpu_seconds(running.pid) == 0
    assert not kill_worker(0, int(port))


def results() -> list[Result]:
    machine = {"cores": 2, "system": "Linux x86_64", "memory_gb": 24, "busy": 0.01}
    versions = {"python": "3.11.7"}
    good = Turn(2.0, 0.5, 100, 0, 0, 0, 120, 10, 10, 0.11, 250)
    bad = replace(good, seconds=4.0, right=97, lost=3, doubled=1, wrong=2)
    works = {"storm": WorkResult(100, [good, bad, good]), "fixed": WorkResult(100, reason="asks <models> only")}
    failed = WorkResult(100, [Turn(right=0, lost=100, error="the job has failed")])
    one = Result("One", "1.0", PIPE, machine, versions, "2026-01-31", 0.001, works)
    return [one, replace(one, peer="Two", works={"storm": failed})]


def test_the_table_has_the_median_speed_and_the_worst_counts(tmp_path):
    lines = list(page.markdown(results()))
    assert "| One 1.0 | 50 | 5.00 | 1.20 | 10 | 10 | 97 | 3 | 1 | 2 | 1.10 | 2.5 |" in lines
    assert "| Two 1.0 | failed |  |  |  |  | 0 | 100 |  |  |  |  |" in lines
    assert "Two: the job has failed." in lines
    assert "One: asks <models> only." in lines
    busy = [replace(one, machine=one.machine | {"busy": 0.5}) for one in results()[:1]]
    note = "One: 50% of the machine was busy when the run began."
    assert note in page.markdown(busy)
    assert note not in lines
    sheet = tmp_path / "page.md"
    sheet.write_text(f"{page.BEGIN}\nold\n{page.END}\nafter\n")
    paste(lines, sheet)
    assert sheet.read_text().endswith(f"{page.END}\nafter\n")


def test_the_page_needs_nothing_but_itself():
    text = "\n".join(page.page(results()))
    assert "asks &lt;models&gt; only" in text
    assert '<td class="bad">3' in text
    assert text.count("<svg") == text.count("</svg>") == 1
    assert "http" not in text.lower().replace("http api", "")


def test_every_work_and_peer_is_on_the_page_of_the_peers():
    text = (ROOT / "benchmarks" / "peers" / "README.md").read_text()
    for work in (*TRIALS, *WORKS):
        assert f"`{work.name}`" in text
    for peer in GUESTS:
        assert peer.name in text
