"""The programs of a page of the documentation, run as a reader would run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"


def section_of(page: str, heading: str) -> str:
    """The text below a heading of the second level, up to the next one."""
    text = (DOCS / page).read_text(encoding="utf-8")
    _, _, after = text.partition(f"\n## {heading}\n")
    assert after, f"{page} has no section {heading}"
    return after.partition("\n## ")[0] + "\n"


def programs_of(page: str, section: str | None = None) -> list[str]:
    """The blocks of Python of a page, or of one section; there is one at least, and none is passed over."""
    text = (DOCS / page).read_text(encoding="utf-8") if section is None else section_of(page, section)
    programs = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(programs) == text.count("```python") > 0
    return programs


def run_programs(page: str, section: str | None = None, **names: Any) -> dict[str, Any]:
    """What the programs of a page, or of one section, define, one after the other, beside the names that are given."""
    names["__name__"] = "__main__"
    for program in programs_of(page, section):
        exec(compile(program, page, "exec", dont_inherit=True), names)
    return names
