"""`TableEnricher` in tasks of `enrich`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql.types import LongType, StructField, StructType

from asyncio_operator.spark.driver.build_task import EnrichOptions, enrich_task
from enrichers import FunctionEnricher, TableEnricher


async def look_up(key: int) -> None:
    return None


@pytest.mark.parametrize("status", [None, "status"])
def test_L12_rows_in_memory_are_not_remembered_because_they_may_be_loaded_again(
    tmp_path: Path, status: str | None
) -> None:
    parquet.write_table(pa.table({"id": [1], "v": [2]}), tmp_path / "table.parquet")
    schema = StructType([StructField("id", LongType())])
    options = EnrichOptions(on="id", status_column=status)
    for enricher, seconds in (
        (TableEnricher(tmp_path / "table.parquet", "id"), 0.0),
        (FunctionEnricher(look_up, "v long"), 60.0),
    ):
        task, _ = enrich_task(schema, enricher, options)
        assert task.options.remember == seconds
