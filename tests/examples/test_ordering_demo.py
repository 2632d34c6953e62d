"""The demo of orders: every element comes once, and the picture shows every way. Times are not asserted."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import NamedTuple

import pytest

from examples import ordering_demo
from examples.ordering_demo import ELEMENTS, TITLE, WAYS
from examples.pictures import Run
from tests.examples.programs import start_example

NAMES = [element.name for element in ELEMENTS]


class Shown(NamedTuple):
    """What a demo showed: its runs, what it printed, and the folder with its pictures."""

    runs: dict[str, Run]
    printed: str
    folder: Path


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ordering")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runs = ordering_demo.demo(folder / "orders")
    return Shown(runs, printed.getvalue(), folder)


@pytest.mark.parametrize("way", WAYS)
def test_every_element_comes_once(shown, way):
    assert sorted(name for name in shown.runs[way].order if name != "|") == sorted(NAMES)


def test_the_table_has_the_time_and_the_order_of_each_way(shown):
    for way, run in shown.runs.items():
        [line] = [line for line in shown.printed.splitlines() if line.startswith(f"{way} ")]
        assert line.split(way)[1].split() == [f"{run.milliseconds:.1f}", *run.order]


def test_the_picture_shows_every_way_by_its_title(shown):
    assert sorted(path.name for path in shown.folder.iterdir()) == ["orders.png", "orders.svg"]
    assert (shown.folder / "orders.png").read_bytes().startswith(b"\x89PNG")
    svg = (shown.folder / "orders.svg").read_text(encoding="utf-8")
    assert TITLE in svg
    for way, run in shown.runs.items():
        assert f"{way}: {run.milliseconds:.1f} ms" in svg


def test_as_a_program_it_writes_into_the_current_directory_and_says_what_it_replaces(tmp_path):
    (tmp_path / "ordering_demo.svg").write_text("old")
    run = start_example("ordering_demo", directory=tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines()[-2:] == ["Picture: ordering_demo.png", "Picture: ordering_demo.svg (replaced)"]
    assert TITLE in (tmp_path / "ordering_demo.svg").read_text(encoding="utf-8")


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
