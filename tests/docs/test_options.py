"""The tables of options: docs/options.md has those of `enrich`, docs/howto/cache.md those of a cache, docs/sql.md those
of `async_udf`: what differs from the operator in a table, the others named."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest

from asyncio_operator import AsyncWaitOperator, Cache
from asyncio_operator.spark import async_udf, enrich
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


CACHES = (DOCS / "howto" / "cache.md").read_text(encoding="utf-8")


def test_the_table_has_every_option_of_a_cache_in_its_order() -> None:
    table = CACHES.partition("## Options")[2].partition("\n\n| your case")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [field.name for field in dataclasses.fields(Cache)]


@pytest.mark.parametrize("advice", re.findall(r"Cache\([^)\n]*\)", CACHES.partition("| your case")[2]))
def test_every_cache_that_is_advised_can_be_made(advice: str) -> None:
    assert isinstance(eval(advice.replace("...", "1"), {"Cache": Cache, "directory": "cache"}), Cache)


def test_every_option_of_a_udf_is_named_once_and_only_those_of_the_operator_without_a_meaning() -> None:
    text = (DOCS / "sql.md").read_text(encoding="utf-8").partition("### Options of a column function\n")[2]
    names, rest = re.split(r"are\s+those\s+of\s+the\s+\[operator\]", text, maxsplit=1)
    table = rest.partition("| option | default | |")[2].partition("\n\n")[0]
    shared, own = re.findall(r"`(\w+)`", names), re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    parameters = [*inspect.signature(async_udf).parameters][1:-1]
    assert sorted([*shared, *own]) == sorted(parameters)
    assert {*shared} <= inspect.signature(AsyncWaitOperator).parameters.keys()
