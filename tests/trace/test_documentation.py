"""The code in the page on traces runs."""

from __future__ import annotations

from tests.pages import programs_of


def test_the_code_runs_and_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for block in programs_of("trace.md"):
        exec(compile(block, "trace.md", "exec"), {})
        for line in capsys.readouterr().out.splitlines():
            assert f"# {line}" in block
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both.png", "run.html", "run.json", "run.svg"]
