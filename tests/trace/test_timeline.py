"""The picture holds what it should, and nothing that did not happen."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.trace import Trace, timelines
from asyncio_operator.trace.stories import CIRCUIT, MARKS, SPANS
from tests.trace.helpers import HOSTILE, at, call, everything, head_of_line, new_trace, simple

SVG = "{http://www.w3.org/2000/svg}"


class Picture:
    """An SVG: the ids of its groups, and its texts, which matplotlib leaves as comments beside their outlines."""

    def __init__(self, path):
        parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
        root = ElementTree.parse(path, parser).getroot()
        self.groups = {group.get("id"): group for group in root.iter(f"{SVG}g") if group.get("id")}
        self.ids = [node.get("id") for node in root.iter() if isinstance(node.tag, str) and node.get("id")]
        self.texts = [(node.text or "").strip() for node in root.iter() if not isinstance(node.tag, str)]

    def count(self, name):
        """How many shapes there are in a group."""
        group = self.groups[name]
        return len(list(group.iter(f"{SVG}use"))) or len(list(group.iter(f"{SVG}path")))


@pytest.fixture
def draw(tmp_path):
    def picture(trace, title=None):
        trace.timeline(tmp_path / "picture.svg", title)
        return Picture(tmp_path / "picture.svg")

    return picture


def test_every_kind_of_span_and_mark_is_drawn_and_explained(draw):
    picture = draw(everything(), "a run")
    for kind in (*SPANS, *MARKS):
        assert f"trace1-{kind}" in picture.groups
    for look in [*SPANS.values(), *MARKS.values(), *CIRCUIT.values()]:
        assert look.label in picture.texts
    assert {"trace1-circuit-0", "trace1-circuit-1"} <= picture.groups.keys() | set(picture.ids)
    assert "trace1-watermark-2" in picture.ids
    assert {"a run", "watermark", "watermark 5000", "milliseconds since the start of the run"} <= set(picture.texts)


def test_there_is_one_shape_for_each_span_and_mark(draw):
    picture = draw(head_of_line())
    assert picture.count("trace1-result") == 3
    assert picture.count("trace1-held") == 2
    assert picture.count("trace1-emitted") == 3


def test_a_row_is_labelled_with_its_value_and_with_its_number_where_values_repeat(draw):
    trace = new_trace()
    simple(trace, 0, 0, 10, value=0)
    simple(trace, 1, 0, 10, value="N123US")
    assert {"0", "'N123US'"} <= set(draw(trace).texts)
    simple(trace, 2, 0, 10, value="N123US")
    assert {"0", "'N123US'  #1", "'N123US'  #2"} <= set(draw(trace).texts)


def test_hostile_values_and_titles_are_text(tmp_path):
    trace = new_trace()
    for number, value in enumerate(HOSTILE):
        simple(trace, number, 0, 10, value=value)
    titles = [value for value in HOSTILE if value.isprintable() and len(value) < 100]
    timelines([(title, trace) for title in titles], tmp_path / "a.svg", " ".join(titles))
    picture = Picture(tmp_path / "a.svg")
    assert "milliseconds since the start of the run" in picture.texts
    assert {f"trace{number}-result" for number in range(1, len(titles) + 1)} <= picture.groups.keys()


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".SVG", b"<?xml"), (".pdf", b"%PDF")])
def test_the_suffix_says_how(tmp_path, suffix, magic):
    path = tmp_path / f"picture{suffix}"
    head_of_line().timeline(str(path))
    assert path.read_bytes().startswith(magic)


def test_the_colours_of_the_outcomes_are_in_the_picture(tmp_path):
    from matplotlib.colors import to_rgb
    from matplotlib.image import imread

    everything().timeline(tmp_path / "picture.png")
    pixels = {tuple(pixel) for pixel in (imread(tmp_path / "picture.png")[:, :, :3] * 255).round().reshape(-1, 3)}
    for look in SPANS.values():
        assert tuple(round(part * 255) for part in to_rgb(look.colour)) in pixels, look


def test_of_many_elements_only_the_first_are_drawn_and_the_picture_says_so(draw):
    trace = new_trace()
    for element in range(2_500):
        simple(trace, element, element, element + 10)
    picture = draw(trace)
    assert picture.count("trace1-result") == 2_000
    assert "the first 2,000 of 2,500 elements are drawn" in picture.texts
    assert "2,500" not in picture.texts


def test_a_run_without_all_its_elements_or_without_time_can_be_drawn(draw):
    short = new_trace(limit=10)
    for element in range(5):
        simple(short, element, element, element + 10)
    assert "3 earlier elements are no longer in the trace" in draw(short).texts
    trace = new_trace()
    trace.record("ended", at(0))
    assert "no elements in this run" in draw(trace).texts
    simple(trace, 0, 0, 0)
    assert draw(trace).count("trace1-result") == 1


# -- several runs


def test_runs_stand_side_by_side_on_one_axis_of_time(tmp_path):
    late = new_trace()
    simple(late, 0, 0, 10)
    call(late, 0, 900, 990, attempt=2)
    panels = [(f"run {number}", head_of_line()) for number in range(5)]
    timelines(dict([*panels, ("late", late)]), tmp_path / "all.svg", title="six runs")
    picture = Picture(tmp_path / "all.svg")
    assert {"six runs", "run 0", "run 4", "late"} <= set(picture.texts)
    assert [f"trace{number}-result" in picture.groups for number in range(1, 8)] == [True] * 6 + [False]
    assert picture.texts.count("call gave a result") == 1
    assert picture.texts.count("800") == 3
    assert picture.texts.count("milliseconds since the start of the run") == 3
    assert len(picture.ids) == len(set(picture.ids))


def test_it_draws_into_axes_of_a_figure_of_the_user(tmp_path):
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    left, right = figure.subplots(1, 2)
    head_of_line().draw(left, "left")
    everything().draw(right, legend=False)
    figure.savefig(tmp_path / "a.svg")
    picture = Picture(tmp_path / "a.svg")
    assert {"left", "call gave a result"} <= set(picture.texts)
    assert "call failed" not in picture.texts
    assert {"trace1-held", "trace2-error"} <= picture.groups.keys()


@pytest.mark.parametrize("panel", [head_of_line(), "a", ("a", 1), (head_of_line(), "a")])
def test_without_panels_there_is_nothing_to_draw(tmp_path, panel):
    with pytest.raises(ConfigurationError, match="panels is empty"):
        timelines([], tmp_path / "a.svg")
    with pytest.raises(ConfigurationError, match=r"panels has .* in it; it must be pairs of a title and a Trace"):
        timelines([panel], tmp_path / "a.svg")
    with pytest.raises(ConfigurationError, match=r"panels has None in it"):
        timelines(None, tmp_path / "a.svg")  # type: ignore[arg-type]
    with pytest.raises(StateError, match="empty"):
        timelines([("a", head_of_line()), ("b", Trace())], tmp_path / "a.svg")


# -- what can be wrong


@pytest.mark.parametrize("name", ["picture.jpg", "picture", "picture.svg.txt"])
def test_another_suffix_is_refused_and_nothing_is_written(tmp_path, name):
    with pytest.raises(ConfigurationError, match=r"a picture can be \.png, \.svg, \.pdf"):
        head_of_line().timeline(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


WITHOUT_MATPLOTLIB = """
import sys
sys.modules["matplotlib"] = None
from asyncio_operator.errors import ConfigurationError
from tests.trace.helpers import head_of_line
try:
    head_of_line().timeline(sys.argv[1] + "/a.svg")
except ConfigurationError as error:
    print(error)
head_of_line().html(sys.argv[1] + "/a.html")
head_of_line().chrome(sys.argv[1] + "/a.json")
"""

UNTOUCHED = """
import sys
import matplotlib
before = matplotlib.rcParams.copy()
from tests.trace.helpers import everything
for suffix in ("png", "svg"):
    everything().timeline(f"{sys.argv[1]}/a.{suffix}")
print("matplotlib.pyplot" in sys.modules, dict.__eq__(matplotlib.rcParams, before))
"""


def run_python(program, *arguments):
    run = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_without_matplotlib_the_picture_names_the_extra_and_the_rest_works(tmp_path):
    message = run_python(WITHOUT_MATPLOTLIB, str(tmp_path))
    assert message.endswith("run: pip install 'asyncio-operator[plot]'")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.json"]


def test_pyplot_and_the_settings_of_matplotlib_are_left_alone(tmp_path):
    assert run_python(UNTOUCHED, str(tmp_path)) == "False True"
