"""docs/operator.md promises that its programs run: they do here, one after the other, and keep what the page says."""

from __future__ import annotations

from tests.pages import run_programs


def test_the_programs_of_the_page_run() -> None:
    assert "until_found" in run_programs("operator.md")
