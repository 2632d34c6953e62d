"""The pictures of the pages: drawn by the programs of the repository, used by a page, and whole in themselves."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from asyncio_operator.trace import Trace
from tests.pages import DOCS
from tools import diagrams, picture, schemes

PICTURES = sorted((DOCS / "pictures").iterdir())
SPACE = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"


@pytest.mark.parametrize("name", diagrams.DIAGRAMS)
def test_a_diagram_is_the_one_that_the_program_draws(name: str, tmp_path: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert diagrams.main(["--out", str(tmp_path)]) == 0
    drawn = (tmp_path / name).read_text(encoding="utf-8")
    assert drawn == (diagrams.PICTURES / name).read_text(encoding="utf-8"), "run: make pictures"


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_used_by_a_page_and_fetches_nothing(path: Path) -> None:
    pages = [DOCS.parent / "README.md", *DOCS.rglob("*.md")]
    assert any(f"pictures/{path.name})" in page.read_text(encoding="utf-8") for page in pages)
    if path.suffix == ".png":
        return
    for part in ElementTree.parse(path).iter():
        assert part.tag != f"{SPACE}image"
        assert part.get(LINK, part.get("href", "#")).startswith("#")


@pytest.mark.parametrize("path", [path for path in PICTURES if path.suffix == ".svg"], ids=lambda path: path.name)
def test_a_picture_follows_the_colours_of_the_page_and_has_no_small_letters(path: Path) -> None:
    """At least 11 pixels where the picture is as wide as the text of a page, which is 890 pixels."""
    text = path.read_text(encoding="utf-8")
    assert "@media (prefers-color-scheme: dark) { svg { background:" in " ".join(text.split())
    width = float(ElementTree.parse(path).getroot().attrib["viewBox"].split()[2])
    if "matplotlib" in text:
        assert schemes.style() in text, "run: python -m tools.schemes"
        assert width <= 8.4 * 72, "letters of 8.3 points are 11 pixels high"
        return
    sizes = re.findall(r"font(?:-size)?: ([\d.]+)px", text)
    assert min(map(float, sizes)) * min(1, 890 / width) >= 11


@pytest.mark.parametrize("name", diagrams.DIAGRAMS)
def test_the_words_of_a_diagram_are_within_its_frame(name: str) -> None:
    """Letters of 14 pixels are 8 wide at most, on average over a line."""
    root = ElementTree.fromstring(diagrams.DIAGRAMS[name]())
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for words in root.iter(f"{SPACE}text"):
        x, y, size = float(words.attrib["x"]), float(words.attrib["y"]), 6.5 * len(words.text or "")
        left = {"start": x, "middle": x - size / 2, "end": x - size}[words.attrib["text-anchor"]]
        assert left >= 0, words.text
        assert left + size <= width, words.text
        assert 0 < y < height, words.text


def test_the_picture_of_the_house_names_every_folder() -> None:
    words = " ".join(ElementTree.fromstring(diagrams.house()).itertext())
    package = DOCS.parent / "asyncio_operator"
    folders = [path.parent.name for path in package.glob("*/__init__.py")]
    assert [folder for folder in folders if not re.search(rf"\b{folder}\b", words)] == []


def test_the_picture_of_the_readme_names_both_sides_with_their_times(tmp_path: Path) -> None:
    def recorded(seconds: float) -> Trace:
        trace = Trace()
        trace.started(0.0)
        trace.admitted(0.0, 0, 0)
        trace.record("attempt_started", 0.0, 0, 1)
        trace.record("attempt_ended", seconds, 0, 1, "result")
        trace.record("completed", seconds, 0, "result")
        trace.record("emitted", seconds, 0)
        trace.record("ended", seconds)
        return trace

    picture.draw({"by hand": recorded(0.6), "enrich": recorded(0.15)}, tmp_path / "both.svg")
    drawn = (tmp_path / "both.svg").read_text(encoding="utf-8")
    assert "<!-- by hand: 600 ms -->" in drawn
    assert "<!-- enrich: 150 ms -->" in drawn
