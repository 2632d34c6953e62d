"""The page of Flink's tests names tests of ours that exist, and counts them right."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from asyncio_operator.testing.state_contract import LAWS
from tests.pages import DOCS

TESTS = DOCS.parent / "tests"
PAGE = (DOCS / "flink-tests.md").read_text(encoding="utf-8")

ROW = re.compile(r"^- (`[\w.`, ]+`): (.+)$", re.MULTILINE)
NAMED = re.compile(r"`(?:([\w/]+\.py)::)?(test_\w+)(?:\[(\w+)\])?`")


def rows() -> Iterator[tuple[list[str], str]]:
    """Flink's tests of a row, and what is said of them here."""
    for names, here in ROW.findall(PAGE):
        yield re.findall(r"`([\w.]+)`", names), here


def test_every_row_is_read_and_names_a_test_or_a_reason() -> None:
    found = list(rows())
    assert len(found) == PAGE.count("\n- ")
    assert all("\n- " in part for part in PAGE.split("\n### ")[1:])
    assert [names for names, here in found if not NAMED.search(here) and not here.startswith("n/a: ")] == []


def test_every_test_that_it_names_exists() -> None:
    """Once in all files, unless the page names the file."""
    defined: Counter[str] = Counter()
    for path in TESTS.rglob("*.py"):
        names = re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
        defined.update([*names, *(f"{path.relative_to(TESTS).as_posix()}::{name}" for name in names)])
    laws = {law.__name__ for law in LAWS} | {""}
    named = [(f"{file}::{name}" if file else name, law) for file, name, law in NAMED.findall(PAGE)]
    assert [name for name, law in named if defined[name] != 1 or law not in laws] == []
    assert len(NAMED.findall(PAGE)) > 200


def test_the_counts_are_those_of_the_rows() -> None:
    apart = [len(names) for names, here in rows() if here.startswith("n/a: ")]
    every = sum(len(names) for names, _ in rows())
    says = f"Of {every} tests of Flink, {every - sum(apart)} are checked here, {sum(apart)} are not applicable"
    assert says in PAGE
