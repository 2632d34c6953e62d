"""The table of a cache in docs/howto/cache.md has its options in their order, and every advised cache can be made."""

from __future__ import annotations

import dataclasses
import re

import pytest

from asyncio_operator import Cache
from tests.pages import DOCS

TEXT = (DOCS / "howto" / "cache.md").read_text(encoding="utf-8")


def test_the_table_has_every_option_of_a_cache_in_its_order() -> None:
    table = TEXT.partition("## Options")[2].partition("\n\n| your case")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [field.name for field in dataclasses.fields(Cache)]


@pytest.mark.parametrize("advice", re.findall(r"Cache\([^)\n]*\)", TEXT.partition("| your case")[2]))
def test_every_cache_that_is_advised_can_be_made(advice: str) -> None:
    assert isinstance(eval(advice.replace("...", "1"), {"Cache": Cache, "directory": "cache"}), Cache)
