"""docs/options.md has every option of `enrich`, in its order, with its default."""

from __future__ import annotations

import inspect
import re

from asyncio_operator.spark import enrich
from tests.pages import DOCS

ROWS = re.findall(
    r"^\| `(\w+)` \|(?: `(.*?)`)? \| (.*?) \|", (DOCS / "options.md").read_text(encoding="utf-8"), re.MULTILINE
)


def written(default: object) -> str:
    """A default as a page writes it; nothing for an option that has none."""
    if default is inspect.Parameter.empty:
        return ""
    return f'"{default}"' if isinstance(default, str) else repr(default)


def test_every_option_of_enrich_is_there_with_its_default() -> None:
    options = [option for option in inspect.signature(enrich).parameters.values() if option.kind is option.KEYWORD_ONLY]
    assert [(name, default) for name, default, _ in ROWS] == [
        (option.name, written(option.default)) for option in options
    ]


def test_every_option_has_a_meaning() -> None:
    short = [name for name, _, meaning in ROWS if len(meaning) < 20]
    assert short == [], "docs/options.md has to say what each option does, in 20 characters or more"
