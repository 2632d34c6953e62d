"""The programs of a page of the documentation, run as a reader would run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"


def programs_of(page: str) -> list[str]:
    """The blocks of Python of a page; there is one at least, and none is passed over."""
    text = (DOCS / page).read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(programs) == text.count("```python") > 0
    return programs


def run_programs(page: str, **names: Any) -> dict[str, Any]:
    """What the programs of a page define, one after the other, beside the names that are given."""
    names["__name__"] = "__main__"
    for program in programs_of(page):
        exec(compile(program, page, "exec", dont_inherit=True), names)
    return names
