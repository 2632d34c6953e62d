"""Counts on the command lines of the examples: those that make no sense are refused before anything is started."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COUNTED = [
    (path.stem, option)
    for path in sorted(EXAMPLES.glob("*.py"))
    for option in re.findall(r'add_argument\("(--orders|--rows)"', path.read_text(encoding="utf-8"))
]


def parse(name: str, *arguments: str) -> Any:
    return importlib.import_module(f"examples.{name}").parse([*arguments])


def test_every_example_with_a_count_is_tried() -> None:
    assert {("async_column", "--orders"), ("sql_lookup", "--orders"), ("enrich_flights", "--rows")} <= {*COUNTED}


@pytest.mark.parametrize(("name", "option"), COUNTED)
@pytest.mark.parametrize("count", ["0", "-1", "many", "1.5", ""])
def test_a_count_that_makes_no_sense_is_refused_with_what_is_allowed(
    name: str, option: str, count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(name, f"{option}={count}")
    assert ended.value.code == 2
    assert f"argument {option}: {count!r} is not a whole number of at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "option"), COUNTED)
def test_one_is_enough(name: str, option: str) -> None:
    assert getattr(parse(name, option, "1"), option.strip("-")) == 1
