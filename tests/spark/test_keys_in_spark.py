"""L10 against Spark itself: what its joins call one key, both strategies ask for once, and tables in memory find."""

from __future__ import annotations

import asyncio
from functools import reduce
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from asyncio_operator.arrow.key_arrays import key_values
from asyncio_operator.spark import enrich
from enrichers import FunctionEnricher, TableEnricher
from tests.spark.helpers import BATCH_SIZE, as_arrow, setting

pytestmark = pytest.mark.spark

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
