"""The list of planted bugs fits the source: law Y4 needs each of them to be planted."""

from __future__ import annotations

import ast
import re

import pytest

from tests.mutants.bugs import ROOT, Bug, read_bugs
from tests.mutants.search import FOLDERS

BUGS = read_bugs()
LAWS = set(re.findall(r"^- \*\*(\w+)\.\*\*", (ROOT / "docs" / "laws.md").read_text(), re.MULTILINE))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_Y4_a_planted_bug_replaces_one_text_and_is_a_program(bug: Bug):
    text = (ROOT / bug.path).read_text()
    ast.parse(bug.planted(text))
    assert bug.old != bug.new
    assert bug.law in LAWS
    assert bug.says.endswith(".")
    assert all((ROOT / "tests" / folder).is_dir() for folder in FOLDERS[bug.file.split("/")[0]])


def test_Y4_there_are_at_least_fifty_bugs_with_names_of_their_own():
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 50
