"""What the page of the proof says of laws and planted bugs is so."""

from __future__ import annotations

import re

from asyncio_operator.testing import history_laws
from tests.mutants.bugs import read_bugs
from tests.pages import DOCS

PAGE = (DOCS / "proof.md").read_text(encoding="utf-8")

LAWS = re.findall(r"^- \*\*([A-Z]\d+)\.", (DOCS / "laws.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_Y2_every_law_is_decided_by_the_checker_or_the_page_says_why_not() -> None:
    table = PAGE.partition("| laws | why no history shows them |")[2].partition("\n\n")[0]
    named = [law for row in re.findall(r"^\| ([A-Z]\d[^|]*) \|", table, re.MULTILINE) for law in row.split(", ")]
    of_operators_to_journals = [law for law in LAWS if law[0] in "ORBLGHJ"]
    assert sorted(named) == sorted(set(of_operators_to_journals) - history_laws().keys())


def test_Y2_the_page_counts_the_laws_that_the_checker_decides() -> None:
    assert f"The checker decides {len(history_laws())} laws" in PAGE


def test_Y4_the_page_counts_the_planted_bugs() -> None:
    assert f"| {len(read_bugs())} bugs" in PAGE
