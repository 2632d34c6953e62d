"""The site builds as `make docs` builds it, and all that its pages link to, or fetch, is in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.browser import Browser, needs_chromium
from tests.pages import DOCS
from tools import docs

ROOT = DOCS.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return docs.build(tmp_path_factory.mktemp("site"))


def places(menu: object) -> Iterator[str]:
    """The pages of a menu."""
    match menu:
        case str():
            yield menu
        case dict():
            for part in menu.values():
                yield from places(part)
        case list():
            for part in menu:
                yield from places(part)


@pytest.mark.faults
def test_every_address_in_the_site_leads_somewhere(site: Path) -> None:
    assert list(docs.faults(site)) == []
    assert len(list(site.rglob("*.html"))) > 50


@pytest.mark.faults
def test_the_search_finds_pages_of_a_site_that_is_opened_from_a_disk(site: Path) -> None:
    needs_chromium()
    with Browser() as browser:
        tab = browser.tab(width=1200, scheme="light")
        tab.open((site / "howto" / "pay-once.html").as_uri())
        tab.evaluate("document.querySelector('.md-search__button').click()")
        tab.evaluate(
            "field = () => [...document.querySelectorAll('*')]"
            ".map(one => one.shadowRoot?.querySelector('[role=combobox]')).find(Boolean)"
        )
        tab.wait_for("field()")
        tab.evaluate("field().value = 'watermark'; field().dispatchEvent(new Event('input', {bubbles: true})); null")
        tab.wait_for("/[1-9][0-9]* results/.test(field().getRootNode().textContent)")


def test_every_page_is_in_the_menu() -> None:
    menu = set(places(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert sorted(pages - menu) == []
    assert sorted(menu - pages - {*docs.PAGES.values()} - {docs.page_of(folder) for folder in docs.FOLDERS}) == []


@pytest.mark.faults
def test_the_reference_has_docstrings_with_their_arguments(site: Path) -> None:
    page = (site / "reference" / "spark.html").read_text(encoding="utf-8")
    assert "Parameters:" in page
    assert "Raises:" in page
    assert "seconds (or a timedelta) from the start of a key" in page


def test_a_page_links_to_programs_and_to_other_pages_as_they_are_in_the_site() -> None:
    linked: set[str] = set()
    text = docs.staged("docs/enrichers.md", linked)
    assert "](source/examples/own_enricher.py.md)" in text
    assert "](concepts.md#when-two-keys-are-the-same)" in text
    assert {"examples/own_enricher.py", "docs/postgres.md"} <= linked
    assert "](http.md)" in docs.staged("README.md", linked)
    assert "](../readme.md" not in docs.staged("docs/options.md", linked)


@pytest.mark.faults
def test_folded_notes_of_the_class_tab_are_tabs_of_one_group(site: Path) -> None:
    page = (site / "start.html").read_text(encoding="utf-8")
    assert page.count('class="tabbed-set') == 1
    assert re.findall(r"<label[^>]*>([^<]+)", page.partition('class="tabbed-labels"')[2].partition("</div>")[0]) == [
        "In SQL",
        "As a column function",
    ]
    assert '<details class="tab"' not in page


def test_what_is_wrong_in_a_site_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">x</a><a href="b.html#nowhere">x</a><a href="/c.html">x</a><a href="https://x.example">x</a>'
        '<script src="https://x.example/a.js"></script><img src="data:image/gif;base64,AA==">'
    )
    (tmp_path / "b.html").write_text('<h1 id="there">x</h1>')
    assert list(docs.faults(tmp_path)) == [
        "a.html fetches https://x.example/a.js",
        "a.html links to b.html#nowhere: there is no such heading",
        "a.html links to /c.html, which is not there",
    ]


def test_a_link_to_a_page_that_is_not_there_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# x\n\n[y](nowhere.md)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: x\nplugins: []\n")
    program = "import sys; from pathlib import Path; from tools import docs; docs.PAGES.clear(); docs.FOLDERS = (); "
    program += "docs.ROOT = Path(sys.argv[1]); docs.build(Path(sys.argv[1], 'work'))"
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "page does not exist" in run.stdout + run.stderr
