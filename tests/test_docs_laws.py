"""docs/laws.md and the names of the tests agree: no test without its law, no law without its test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LAW = re.compile(r"^- \*\*([A-Z])(\d+)\.\*\* (\*\(not yet\)\* )?[A-Z`]", re.MULTILINE)

TESTED = re.compile(r"^ *(?:async )?def (?:test_)?((?:[A-Z]\d*_)+)", re.MULTILINE)
"""A test, or a rule of a state machine, of one law, of several, or of a whole group (``test_S_E_contract``)."""

CONTRACT = re.compile(r"^def law_([a-z]\d+)_", re.MULTILINE)
"""A law among those that `test_S_E_contract` holds every backend against."""


def laws() -> dict[str, bool]:
    """The laws of the page, and whether they hold."""
    text = (ROOT / "docs" / "laws.md").read_text(encoding="utf-8")
    found = LAW.findall(text)
    assert len(found) == len(re.findall(r"^- ", text, re.MULTILINE)), "a law is not written like the others"
    return {group + number: not planned for group, number, planned in found}


def with_tests() -> Iterator[tuple[str, str]]:
    """Laws, or groups, and a file with a test of theirs."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for names in TESTED.findall(path.read_text(encoding="utf-8")):
            for name in names.strip("_").split("_"):
                yield name, path.name
    for path in sorted((ROOT / "asyncio_operator" / "testing").rglob("*.py")):
        for name in CONTRACT.findall(path.read_text(encoding="utf-8")):
            yield name.upper(), path.name


def test_the_laws_of_a_group_are_numbered_without_a_gap() -> None:
    groups: dict[str, list[int]] = {}
    for law in laws():
        groups.setdefault(law[0], []).append(int(law[1:]))
    assert [*groups] == [*"QORBLAPTSEXCGVHJWMY"]
    for group, numbers in groups.items():
        assert numbers == [*range(1, len(numbers) + 1)], group


def test_every_law_in_the_name_of_a_test_is_in_docs_laws_md() -> None:
    known = laws()
    groups = {law[0] for law in known}
    assert [(name, file) for name, file in with_tests() if name not in known and name not in groups] == []


def test_every_law_has_a_test_unless_it_is_marked_as_not_yet() -> None:
    checked = {name for name, _ in with_tests()}
    assert [law for law, holds in laws().items() if holds and law not in checked] == []
