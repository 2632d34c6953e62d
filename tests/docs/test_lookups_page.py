"""docs/lookups.md promises that its programs run: they do here, one after the other. Its tables name what there is."""

from __future__ import annotations

import dataclasses
import re

import pytest
from pyspark.sql import SparkSession

from asyncio_operator import Cache
from asyncio_operator.testing import FakeEnricher
from tests.pages import DOCS, run_programs

TEXT = (DOCS / "lookups.md").read_text(encoding="utf-8")


@pytest.mark.spark
def test_the_programs_of_the_page_run(spark: SparkSession) -> None:
    orders = spark.createDataFrame([(1, "tea"), (2, "ink")], "id int, product string").coalesce(1)
    names = run_programs("lookups.md", orders=orders, prices=FakeEnricher({"tea": {"price": 3}}))
    assert [(row.id, row.price, row.lookup.status) for row in names["enriched"].collect()] == [
        (1, 3, "found"),
        (2, None, "missing"),
    ]


def test_the_table_has_every_option_of_a_cache_in_its_order() -> None:
    table = TEXT.partition("## Caches")[2].partition("\n\n| your case")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [field.name for field in dataclasses.fields(Cache)]


@pytest.mark.parametrize("advice", re.findall(r"Cache\([^)\n]*\)", TEXT.partition("| your case")[2]))
def test_every_cache_that_is_advised_can_be_made(advice: str) -> None:
    assert isinstance(eval(advice.replace("...", "1"), {"Cache": Cache, "directory": "cache"}), Cache)
