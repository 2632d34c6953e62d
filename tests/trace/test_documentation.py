"""The code in the page on traces runs."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "trace.md"


def test_the_code_runs_and_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(block, "trace.md", "exec"), {})
        for line in capsys.readouterr().out.splitlines():
            assert f"# {line}" in block
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both.png", "run.html", "run.json", "run.svg"]
