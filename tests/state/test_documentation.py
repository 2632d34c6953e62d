"""The code in the pages on state and timers runs."""

from __future__ import annotations

import pytest

from tests.pages import programs_of


@pytest.mark.parametrize("page", ["state.md", "timers.md"])
def test_the_code_runs_and_prints_what_it_says(page, capsys):
    for block in programs_of(page):
        exec(compile(block, page, "exec"), {})
        printed = capsys.readouterr().out.splitlines()
        for line in printed:
            assert f"# {line}" in block
