"""The page is one file, tells the run, and takes nothing in a value for markup."""

from __future__ import annotations

import json
import pickle
import re
from html.parser import HTMLParser

import pytest

from asyncio_operator.trace import Trace
from asyncio_operator.trace.stories import SPANS
from tests.browser import Browser, needs_chromium
from tests.trace.helpers import HOSTILE, everything, head_of_line, new_trace, simple


class Page(HTMLParser):
    """The tags of a page, the text of each kind of tag, and the data in it."""

    def __init__(self, path):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple] = []
        self.inside: dict[str, list[str]] = {}
        self.open: str | None = None
        self.feed(path.read_text(encoding="utf-8"))
        scripts = self.inside["script"]
        self.data = json.loads(scripts[0])

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.open = tag
        self.inside.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        self.open = None

    def handle_data(self, data):
        if self.open is not None:
            self.inside[self.open][-1] += data


@pytest.fixture
def write(tmp_path):
    def page(trace, title=None):
        trace.html(tmp_path / "page.html", title)
        return Page(tmp_path / "page.html")

    return page


def test_the_page_tells_every_element(write):
    page = write(everything(), "a run")
    assert page.inside["title"] == page.inside["h1"] == ["a run"]
    data = page.data
    assert [element["element"] for element in data["elements"]] == [0, 1, 3, 4, 5, 6]
    first = data["elements"][0]
    assert first["spans"] == [
        ["waiting", 0.0, 2.0, 0, ""],
        ["error", 2.0, 10.0, 1, "OSError: gone"],
        ["backing_off", 10.0, 30.0, 0, ""],
        ["waiting", 30.0, 35.0, 0, ""],
        ["result", 35.0, 50.0, 2, ""],
    ]
    told = ("value", "key", "outcome", "attempts", "admitted", "waited", "called", "backed_off", "held", "latency")
    assert [first[name] for name in told] == ["'a'", "'k'", "result", 2, 0.0, 7.0, 23.0, 20.0, 0.0, 50.0]
    marks = ["emitted", "emitted", "skipped", None, None, "failed"]
    assert [element["mark"] and element["mark"][0] for element in data["elements"]] == marks
    assert data["watermarks"] == [[2, 5_000, 5.0, 50.0]]
    assert data["circuit"] == [["open", 65.0, 75.0], ["half_open", 75.0, 80.0]]
    assert data["end"] == 100.0
    assert data["spans"].keys() == SPANS.keys()


def test_V2_the_slowest_keys_are_those_of_the_live_page(write):
    trace = new_trace()
    for number, key in enumerate(["waits for its turn", "slow", "never called"]):
        trace.admitted(1_000.0, number, key)
    trace.record("attempt_started", 1_000.0, 1, 1)
    trace.record("copy_started", 1_000.5, 1, 1)
    trace.record("copy_ended", 1_000.6, 1, 1, "error", "OSError: only the copy")
    trace.record("attempt_ended", 1_001.0, 1, 1, "error", "OSError: gone")
    trace.record("attempt_started", 1_002.0, 1, 2)
    trace.record("attempt_started", 1_050.0, 0, 1)
    for number in (0, 1):
        trace.record("attempt_ended", 1_050.5, number, 2 - (number == 0), "result")
        trace.record("completed", 1_060.0, number, "result")
    page = write(trace)
    assert page.inside["title"] == ["Trace"]
    assert page.data["slowest"] == [[1, 50_500.0, 3, "OSError: gone"], [0, 500.0, 1, ""]]


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_values_keys_and_titles_are_text(write, value):
    trace, tame = new_trace(), write(head_of_line())
    trace.admitted(1_000.0, 0, value, key=value)
    trace.record("attempt_ended", 1_000.0, 0, 1, "error", value)
    title = value if value.isprintable() else "title"
    page = write(trace, title)
    assert page.tags == tame.tags
    assert page.attributes == tame.attributes
    assert page.inside["title"] == [title]
    assert page.inside["script"][1] == tame.inside["script"][1]
    [element] = page.data["elements"]
    assert element["value"] == element["key"] == trace.events()[1].value


def test_the_page_refers_to_nothing_outside(write):
    page = write(everything())
    assert [value for name, value in page.attributes if name in ("src", "href")] == ["data:,"]
    text = "".join(text for texts in page.inside.values() for text in texts)
    assert not re.search(r"https?:|//[a-z]+\.|url\(|@import|import\(|fetch\(|XMLHttpRequest|innerHTML|eval\(", text)
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:") in (
        page.attributes
    )


def of_tasks() -> Trace:
    """A trace of two tasks, whose first call comes a second after the start."""
    whole = Trace()
    for task, start in enumerate((0.0, 0.5)):
        one = Trace()
        one.started(start)
        one.become_part(0.0, f"stage 3, partition {task}")
        for key in range(2):
            one.admitted(start + 1.0, key, f"<b>{task}</b> {key}")
            one.record("attempt_started", start + 1.0, key, 1)
            one.record("attempt_ended", start + 1.1 + task + key, key, 1, "error", "OSError: gone")
            one.record("completed", start + 1.2 + task + key, key, "result")
        one.record("ended", start + 4.0)
        whole.include(pickle.loads(pickle.dumps(one)))
    return whole


def test_each_element_of_a_job_has_its_task_and_what_is_gone_is_counted(write):
    data = write(of_tasks()).data
    tasks = [element["task"] for element in data["elements"]]
    assert tasks == 2 * ["stage 3, partition 0"] + 2 * ["stage 3, partition 1"]
    assert {element["task"] for element in write(head_of_line()).data["elements"]} == {None}
    short = new_trace(limit=10)
    for element in range(5):
        simple(short, element, element, element + 10)
    assert write(short).data["dropped"] == 3
    cleared = of_tasks()
    cleared.clear()
    assert cleared.parts == []


def test_in_a_browser_the_axis_begins_with_the_first_call_and_the_slowest_are_listed(tmp_path):
    needs_chromium()
    of_tasks().html(tmp_path / "page.html")
    with Browser() as browser:
        for width, scheme, paper in ((1400, "light", "rgb(255, 255, 255)"), (390, "dark", "rgb(20, 24, 29)")):
            tab = browser.tab(width=width, scheme=scheme)
            tab.open(f"file://{tmp_path}/page.html")
            assert tab.evaluate("[view.t0, view.r1]") == [1000, 4]
            slowest = tab.texts("#slowest li")
            assert len(slowest) == 4
            assert slowest[0].endswith("2,100 ms, 1 call, stage 3, partition 1, last error: OSError: gone")
            assert "<b>1</b> 1" in slowest[0]
            tab.click("#slowest button")
            assert tab.evaluate("view.t0") != 1000
            assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == paper
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert tab.said == []
