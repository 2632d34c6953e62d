"""Law J3: Spark reads a journal's directory, with the types that its description names, and none of its other files."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from asyncio_operator.arrow.column_answers import in_order
from asyncio_operator.journal.answers import AnswerBatch
from asyncio_operator.journal.files import list_journal
from asyncio_operator.journal.format import ABOUT, ddl
from asyncio_operator.journal.identity import open_journal, wanted_description
from asyncio_operator.journal.options import Journal
from asyncio_operator.journal.storage import open_place
from tests.journal.helpers import NOW, compact, write

pytestmark = pytest.mark.spark


def test_J3_spark_reads_the_columns_as_they_were_written(spark: SparkSession, tmp_path: Path) -> None:
    moment = datetime.datetime(2026, 5, 1, 12, 30, 0, 123456)
    rows = pa.table(
        {
            "flag": [True],
            "small": pa.array([1], pa.int8()),
            "price": pa.array([Decimal("1.50")], pa.decimal128(20, 2)),
            "day": [datetime.date(2026, 1, 1)],
            "at": pa.array([moment.replace(tzinfo=datetime.UTC)], pa.timestamp("us", "UTC")),
            "local": pa.array([moment], pa.timestamp("us")),
            "list": pa.array([[1, None]], pa.list_(pa.int32())),
            "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "struct": pa.array(
                [{"x": 1, "y y": ["t"]}], pa.struct([("x", pa.int64()), ("y y", pa.list_(pa.string()))])
            ),
        }
    )
    journal = Journal(tmp_path / "journal of ü")
    place = open_place(journal.location)
    description = open_journal(place, wanted_description("x", pa.schema([("id", pa.int32())]), rows.schema))
    write(place, description, *(AnswerBatch(pa.array([key]), in_order(rows), NOW + key) for key in range(3)))
    (tmp_path / "journal of ü" / ".answers.part").write_bytes(b"half")
    frame = spark.read.parquet(journal.location.for_spark)
    expected = StructType.fromDDL(", ".join(map(ddl, (description.keys, description.answers, ABOUT))))
    assert isinstance(expected, StructType)
    assert [(field.name, field.dataType) for field in frame.schema] == [(f.name, f.dataType) for f in expected]
    found = frame.where("id = 1").select(*rows.schema.names).collect()
    assert [row.asDict(recursive=True) for row in found] == [
        {**rows.to_pylist()[0], "at": found[0]["at"], "map": {"k": 1}},
    ]
    assert found[0]["at"].astimezone(datetime.UTC) == moment.replace(tzinfo=datetime.UTC)
    compact(place, description, clock=lambda: NOW)
    assert frame.count() == 3, "what was listed stays readable"
    assert spark.read.parquet(journal.location.for_spark).count() == 6, "a plain reader sees replaced files"
    live = [f"{journal.location.for_spark}/{entry.name}" for entry in list_journal(place).live]
    assert spark.read.schema(expected).parquet(*live).count() == 3
