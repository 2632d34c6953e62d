"""The code in the pages on state and timers runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("page", ["state.md", "timers.md"])
def test_the_code_runs_and_prints_what_it_says(page, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {})
        printed = capsys.readouterr().out.splitlines()
        for line in printed:
            assert f"# {line}" in block
