"""The examples without Spark: the demos with pictures, timers, and a run that goes on in another process."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from examples import ordering_demo, timeout_demo
from examples.pictures import Run
from examples.stage import ProblemError
from tests.examples.programs import run_example, start_example


class Shown(NamedTuple):
    """What a demo showed: its runs, what it printed, and the folder with its pictures."""

    demo: Any
    runs: dict[str, Run]
    printed: str
    folder: Path


@pytest.fixture(scope="module", params=[ordering_demo, timeout_demo], ids=lambda demo: demo.NAME)
def shown(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param.NAME)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runs = request.param.demo(folder / "ways")
    return Shown(request.param, runs, printed.getvalue(), folder)


def test_no_element_comes_twice_or_from_nowhere(shown):
    for way in shown.demo.WAYS:
        came = Counter(name.strip("()") for name in shown.runs[way].order if name != "|")
        if shown.demo is ordering_demo:
            assert came == Counter(element.name for element in ordering_demo.ELEMENTS), way
        else:
            assert came <= Counter(map(str, range(10))), way


def test_the_table_has_the_time_and_the_order_of_each_way(shown):
    for way, run in shown.runs.items():
        [line] = [line for line in shown.printed.splitlines() if line.startswith(f"{way} ")]
        assert line.split(way)[1].split() == [f"{run.milliseconds:.1f}", *run.order]
    said = "By default the first timeout ends the run: .* had no result within its timeout of 0.005 s"
    assert shown.demo is ordering_demo or re.search(said, shown.printed)


def test_the_picture_shows_every_way_by_its_title(shown):
    assert sorted(path.name for path in shown.folder.iterdir()) == ["ways.png", "ways.svg"]
    assert (shown.folder / "ways.png").read_bytes().startswith(b"\x89PNG")
    svg = (shown.folder / "ways.svg").read_text(encoding="utf-8")
    assert shown.demo.TITLE in svg
    for way, run in shown.runs.items():
        assert f"{way}: {run.milliseconds:.1f} ms" in svg


def test_as_a_program_it_writes_into_the_current_directory_and_says_what_it_replaces(tmp_path):
    (tmp_path / "ordering_demo.svg").write_text("old")
    run = start_example("ordering_demo", directory=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines()[-2:] == ["Picture: ordering_demo.png", "Picture: ordering_demo.svg (replaced)"]
    assert ordering_demo.TITLE in (tmp_path / "ordering_demo.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["--output", "orders.gif"], 1, "suffix '.gif'; a picture can be .png, .svg, .pdf"),
        (["--output", "missing/orders.png"], 1, "a folder that does not exist"),
        (["--output", "."], 1, "is a folder; give --output the name of a picture in it"),
        (["--outptu", "orders.png"], 2, "unrecognized arguments: --outptu"),
    ],
)
def test_a_wrong_argument_is_told_in_a_sentence(tmp_path, arguments, status, sentence):
    run = start_example("ordering_demo", *arguments, directory=tmp_path)
    assert run.returncode == status
    assert sentence in run.stderr.splitlines()[-1]
    assert run.stdout == "", "it is told before anything is run"
    assert "Traceback" not in run.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_it_is_told_before_anything_is_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ProblemError, match=r"asyncio-operator\[plot\]"):
        timeout_demo.demo(tmp_path / "timeouts.svg")
    assert capsys.readouterr().out == ""


def test_O10_T9_runs_of_killed_processes_give_what_one_run_gives() -> None:
    printed = run_example("snapshot_and_restore")
    found = re.search(r"^147 outputs of (\d+) processes, (\d+) of them killed$", printed, re.MULTILINE)
    assert found is not None, printed
    assert int(found[2]) > 0
    assert "the same outputs, each once: True" in printed
    assert printed.count("hall: 2 readings, lab: 2 readings, roof: 2 readings") == 9


def test_T9_E1_reminders_leave_before_their_watermarks_and_old_orders_are_forgotten() -> None:
    lines = [line.strip() for line in run_example("timers_and_ttl").splitlines()]
    texts = [line.partition("  ")[2] for line in lines[:-1]]
    assert texts[texts.index("order 2: where is the ink?") + 1] == "--"
    assert [text for text in texts if "where" in text] == ["order 2: where is the ink?", "order 3: where is the tea?"]
    assert "order 1: delivered" in texts
    assert "order 3: delivered, and forgotten before" in texts
    assert texts[-2:] == ["order 5: delivered", "--"]
    assert lines[-1] == "10 events, 2 requests: tea, ink"
