"""`strategy="distinct"` and keys (L10) on a real Spark: the same question and rows as inline, and as Spark joins."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StringType, StructField, StructType

from asyncio_operator import ConfigurationError, Journal
from asyncio_operator.arrow.key_arrays import key_values
from asyncio_operator.spark import enrich
from asyncio_operator.testing import FakeRequest, FakeService
from enrichers import FunctionEnricher, HttpEnricher, TableEnricher
from tests.spark.helpers import BATCH_SIZE, FROM_4_0, as_arrow, in_partitions, setting

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
    asked: list[bytes] = []

    def answer(request: FakeRequest) -> Any:
        asked.append(request.body)
        return {"ticket": request.body.decode()}

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


# -- L10 against Spark itself


SPELLINGS = """
    SELECT * FROM VALUES
      (0, 0.0D,                   1.10BD, timestamp'2024-10-27T00:30:00Z'),
      (1, -0.0D,                  1.1BD,  timestamp'2024-10-27T02:30:00+02:00'),
      (2, double('NaN'),          0.00BD, timestamp'2024-10-27T01:30:00Z'),
      (3, double('Infinity') * 0, -0.0BD, timestamp'2024-10-27T02:30:00+01:00'),
      (4, 1.5D,                   100BD,  timestamp'2024-10-26T20:30:00 America/New_York')
    AS t (i, double, decimal, timestamp)
"""
"""Keys that are written in several ways."""

TYPES = ("double", "decimal", "timestamp")


async def question(key: Any) -> Any:
    return {"asked": repr(key)}


asked = FunctionEnricher(question, "asked string")


def pairs_of(groups: dict[int, Any]) -> set[tuple[int, int]]:
    """The rows that have the same, two by two."""
    return {(i, j) for i, one in groups.items() for j, other in groups.items() if one == other}


def test_L10_both_strategies_ask_the_same_question_for_what_Spark_joins(spark: SparkSession) -> None:
    with setting(spark, "spark.sql.session.timeZone", "Europe/Berlin"), setting(spark, BATCH_SIZE, 2):
        rows = spark.sql(SPELLINGS).coalesce(1)
        other = rows.toDF("j", *(f"{name}_" for name in TYPES))
        joins = [
            rows.join(other, rows[name] == other[f"{name}_"]).select(F.lit(name).alias("type"), "i", "j")
            for name in TYPES
        ]
        joined: dict[str, set[tuple[int, int]]] = {name: set() for name in TYPES}
        for row in reduce(DataFrame.union, joins).collect():
            joined[row["type"]].add((row.i, row.j))
        questions: dict[str, dict[str, dict[int, Any]]] = {}
        for strategy in ("inline", "distinct"):
            found = [enrich(rows.select(F.lit(n).alias("type"), "i", n), asked, on=n, strategy=strategy) for n in TYPES]
            collected = reduce(DataFrame.union, [part.select("type", "i", "asked") for part in found]).collect()
            questions[strategy] = {n: {row.i: row.asked for row in collected if row["type"] == n} for n in TYPES}
    assert questions["inline"] == questions["distinct"]
    for name in TYPES:
        assert pairs_of(questions["inline"][name]) == joined[name], name
    assert {*questions["inline"]["double"].values()} == {"0.0", "nan", "1.5"}


NUMBERS = """
    SELECT i, CAST(n AS {type}) AS k FROM VALUES (0, 0.0D), (1, -0.0D), (2, 1.1D), (3, 1.5D), (4, 100.0D), (5, -7.0D)
    AS t (i, n) WHERE i NOT IN ({without})
"""

PAIRS = [
    ("decimal(5,2)", "double"),
    ("double", "decimal(5,2)"),
    ("decimal(5,2)", "decimal(20,10)"),
    ("float", "double"),
    ("double", "float"),
    ("float", "decimal(5,2)"),
    ("int", "double"),
    ("double", "bigint"),
    ("tinyint", "decimal(5,2)"),
    ("decimal(5,2)", "smallint"),
]


def test_L10_a_table_in_memory_finds_what_Spark_joins_whatever_the_types_of_numbers(spark: SparkSession) -> None:
    def numbers(data_type: str) -> DataFrame:
        return spark.sql(NUMBERS.format(type=data_type, without="2, 3" if "int" in data_type else "9"))

    joins = []
    for left, right in PAIRS:
        ours, theirs = numbers(left).alias("l"), numbers(right).alias("r")
        both = F.lit(f"{left} {right}").alias("types"), F.col("l.i").alias("i"), F.col("r.i").alias("j")
        joins.append(ours.join(theirs, F.col("l.k") == F.col("r.k")).select(*both))
    joined: dict[str, set[tuple[int, int]]] = {f"{left} {right}": set() for left, right in PAIRS}
    for row in reduce(DataFrame.union, joins).collect():
        joined[row.types].add((row.i, row.j))
    tables = {name: as_arrow(numbers(name)) for name in {name for pair in PAIRS for name in pair}}
    for left, right in PAIRS:
        assert found_in(tables[left], tables[right]) == joined[f"{left} {right}"], (left, right)
        assert joined[f"{left} {right}"]


def found_in(rows: pa.Table, table: pa.Table) -> set[tuple[int, int]]:
    """The numbers of the rows of both whose keys match."""
    index = TableEnricher(table, "k")

    async def found() -> Any:
        await index.open()
        return await index.lookup_many(key_values(rows["k"]))

    return {
        (i, row["i"])
        for i, answer in zip(rows["i"].to_pylist(), asyncio.run(found()), strict=True)
        for row in (answer if isinstance(answer, list) else [answer] if answer else [])
    }
