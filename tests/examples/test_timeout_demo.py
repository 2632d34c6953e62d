"""The demo of deadlines and retries: what holds on any machine, however slow. Times are not asserted."""

from __future__ import annotations

import re
import sys
from collections import Counter

import pytest

from examples import timeout_demo
from examples.stage import ProblemError
from examples.timeout_demo import TITLE, WAYS
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
