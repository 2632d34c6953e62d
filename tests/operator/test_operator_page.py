"""docs/operator.md promises that its programs run: they do here, one after the other."""

from __future__ import annotations

from tests.pages import run_programs


def test_the_programs_of_the_page_run() -> None:
    run_programs("operator.md")
