"""The example with a table function of SQL: it runs, answers, refuses, and leaves nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.spark


def test_program(play: Callable[..., str]) -> None:
    printed = play("sql_lookup", "--orders", "3000")
    counts = [int(count) for count in re.findall(r"^\|customer \d*[13579]\s*\|(\d+)\s*\|\d+", printed, re.MULTILINE)]
    assert len(counts) == 3
    assert counts == sorted(counts, reverse=True)
    assert re.findall(r"^\|(..)\s*\|\d+\s*\|\d+\s*\|(?:found|missing)", printed, re.MULTILINE) == ["DE", "FR", "NL"]
    assert """ConfigurationError: how is 'outer'; it must be "left" | "inner\"""" in printed
