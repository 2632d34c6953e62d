"""Law X4: what is wrong with an enricher is reported on the driver, with what to do."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from asyncio_operator import ConfigurationError, Enricher
from asyncio_operator.spark import enrich

pytestmark = pytest.mark.spark


class Working(Enricher):
    def schema(self) -> pa.Schema:
        return pa.schema([("x", pa.int32())])

    async def lookup(self, key: Any) -> Any:
        return {"x": 1}


class PlainLookup(Working):
    def lookup(self, key: Any) -> Any:
        return {"x": 1}


class PlainOpen(Working):
    def open(self) -> None:  # type: ignore[override]
        pass


class NoLookup(Enricher):
    def schema(self) -> pa.Schema:
        return pa.schema([("a", pa.int32())])


class NoBatch(Working):
    max_batch = 0


class RowsElsewhere(Working):
    async def lookup_rows(self, keys: Any) -> Any:
        return None


async def function(key: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("enricher", "problem"),
    [
        (Working, "the class Working; pass an object"),
        (function, '@enricher\\("column type'),
        (PlainLookup(), "PlainLookup.lookup is an ordinary function; it must be `async def lookup`"),
        (PlainOpen(), "PlainOpen.open is an ordinary function"),
        (NoLookup(), r"NoLookup has no lookup of its own; write `async def lookup\(self, key\)`, `lookup_columns`, or"),
        (NoBatch(), "NoBatch.max_batch is 0; it must be an int of at least 1"),
        (RowsElsewhere(), "RowsElsewhere has lookup_rows, .*: it needs in_memory = True and lookup_columns"),
    ],
)
def test_X4_a_wrong_enricher_is_told_on_the_driver(spark: SparkSession, enricher: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        enrich(spark.range(1), enricher, on="id")
