"""`strategy="distinct"` gives the rows of "inline", in any order, with one lookup for each key of the whole job."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from asyncio_operator import ConfigurationError, Journal
from asyncio_operator.spark import enrich
from asyncio_operator.testing import FakeRequest, FakeService
from enrichers import FunctionEnricher, HttpEnricher
from tests.spark.helpers import FROM_4_0, in_partitions

pytestmark = pytest.mark.spark


def enricher() -> FunctionEnricher:
    async def look_up(key: int) -> Any:
        match key % 4:
            case 0:
                return {"x": key}
            case 1:
                return [{"x": key}, {"x": -key}]
            case 2:
                return None
        raise ValueError(key)

    return FunctionEnricher(look_up, "x long")


def test_X6_rows_whose_key_has_failed_are_dropped_by_the_join(spark: SparkSession) -> None:
    found = enrich(spark.range(4), enricher(), on="id", strategy="distinct", on_error="drop")
    assert Counter(map(tuple, found.collect())) == Counter([(0, 0), (1, 1), (1, -1), (2, None)])


@pytest.mark.parametrize("strategy", ["inline", "distinct"])
def test_L1_a_null_in_an_optional_part_is_sent_and_joined(spark: SparkSession, strategy: Any, tmp_path: Path) -> None:
    def answer(request: FakeRequest) -> Any:
        asked.append(request.body)
        return {"ticket": request.body.decode()}

    asked: list[bytes] = []
    rows = [(1, "x"), (2, None), (2, None), (None, "y"), (3, "null")]
    df = in_partitions(spark, rows, "id int, note string", 1)
    with FakeService(handler=answer) as service:
        body = {"id": "{id}", "note": "{note}"}
        post = HttpEnricher(
            service.url, key=["id", "note"], optional="note", method="POST", json_body=body, schema="ticket string"
        )
        found = enrich(df, post, on=["id", "note"], strategy=strategy, status_column="how")
        sent = ['{"id":1,"note":"x"}', '{"id":2,"note":null}', '{"id":3,"note":"null"}']
        tickets = Counter((row.id, row.note, row.ticket, row.how.status) for row in found.collect())
        assert tickets == {
            (1, "x", sent[0], "found"): 1,
            (2, None, sent[1], "found"): 2,
            (None, "y", None, "missing"): 1,
            (3, "null", sent[2], "found"): 1,
        }
        assert sorted(asked) == [text.encode() for text in sent]
        with pytest.raises(ConfigurationError, match="a journal holds keys without nulls: leave out journal="):
            enrich(df, post, on=["id", "note"], strategy=strategy, journal=Journal(str(tmp_path)))


@pytest.mark.parametrize("join_hint", ["broadcast", "merge", "shuffle_hash"])
def test_X1_composite_keys_nulls_and_odd_names_whatever_the_join(spark: SparkSession, join_hint: str) -> None:
    async def look_up(key: tuple[str, float]) -> Any:
        return {"a.b": f"{key[0]} {key[1]}"}

    fields = [
        StructField("a b", StringType(), metadata={"of": "letters"}),
        StructField("`x.y`", LongType(), nullable=False),
        StructField("n", LongType()),
        StructField("n", LongType()),
    ]
    rows = [("a", 1, 1, 2), ("A", 1, 3, 4), (None, 1, 5, 6), ("a", 2, 7, 8), ("a", 1, 9, 10)]
    df = spark.createDataFrame(rows, StructType(fields))
    source = FunctionEnricher(look_up, pa.schema([("a.b", pa.string())]))
    for empty in (False, True):
        some = df.where("false") if empty else df
        ways: list[dict[str, Any]] = [{}, {"strategy": "distinct", "join_hint": join_hint}]
        results = [enrich(some, source, on=["a b", "`x.y`"], **options) for options in ways]
        assert results[0].schema == results[1].schema
        inline, distinct = (sorted(map(tuple, result.collect()), key=repr) for result in results)
        assert distinct == inline
        assert len(distinct) == (0 if empty else 5)


@FROM_4_0
def test_S1_text_is_compared_by_its_characters_whatever_its_collation(spark: SparkSession) -> None:
    async def look_up(key: str) -> Any:
        return {"x": key}

    df = spark.sql("SELECT collate(v, 'UTF8_LCASE') AS id FROM VALUES ('a'), ('A'), ('b') AS t(v)")
    rows = enrich(df, FunctionEnricher(look_up, "x string"), on="id", strategy="distinct").collect()
    assert sorted((row.id, row.x) for row in rows) == [("A", "A"), ("a", "a"), ("b", "b")]


@FROM_4_0  # Before, PySpark could not even read the schema.
def test_X3_columns_that_python_cannot_be_given_pass_by_because_they_do_not_travel(spark: SparkSession) -> None:
    df = spark.sql(
        "SELECT id, make_interval(1, 2, 3) AS every, array() AS nothing, null AS void, "
        "named_struct('a', 1, 'A', 2, 'a', 3) AS twice FROM range(6)"
    )
    with pytest.raises(ConfigurationError, match="column 'every' is interval, which Spark cannot pass to Python"):
        enrich(df, enricher(), on="id", on_error="null")
    rows = enrich(df, enricher(), on="id", on_error="null", strategy="distinct")
    assert rows.schema.fields[:-1] == df.schema.fields
    assert sorted(row.id for row in rows.selectExpr("id", "string(every)", "nothing").collect()) == [
        0,
        1,
        1,
        2,
        3,
        4,
        5,
        5,
    ]
    with pytest.raises(ConfigurationError, match="key column 'every' is interval; a key must be"):
        enrich(df, enricher(), on="every", strategy="distinct")
