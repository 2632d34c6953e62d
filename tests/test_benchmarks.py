"""The benchmarks are found by their names; no test checks their speeds."""

from __future__ import annotations

import inspect
import re

import pytest

from benchmarks.__main__ import MORE, chosen, known, main
from examples.stage import ProblemError


def test_every_public_function_of_a_benchmark_module_is_a_benchmark() -> None:
    found = known()
    assert {"s1", "s5", "s12", "s18", "adaptive", "buffers", "retries"} <= {*found}
    for name, benchmark in found.items():
        assert not inspect.signature(benchmark).parameters, name
        assert inspect.signature(benchmark).return_annotation == "Rows", name


def test_without_a_name_the_speeds_of_the_project_are_measured_and_some_more() -> None:
    speeds = [f"s{number}" for number in range(1, 22)]
    assert chosen([]) == [*speeds, *MORE]
    assert chosen(["all"]) == [*known()]
    assert chosen(["S5", "zipf"]) == ["s5", "zipf"]
    with pytest.raises(ProblemError, match="there is no benchmark s99"):
        chosen(["S99"])


def test_the_help_names_every_benchmark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "--help"])
    with pytest.raises(SystemExit):
        main()
    listed = capsys.readouterr().out.rpartition("benchmarks: ")[2]
    assert re.findall(r"\w+", listed) == ["all", *known()]
