"""`async_udf` on a real Spark: laws X1, X2, X5, X7, and how often Spark calls."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from pyspark import Accumulator
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DoubleType, LongType, StringType, StructType

from asyncio_operator.spark import async_udf
from tests.spark.helpers import GONE, Hanging, hangs_from, setting, wait_until

pytestmark = pytest.mark.spark


@async_udf("id long, told string")
async def echo(number: int | None, word: str | None) -> Any:
    """Defined before there is a session."""
    await asyncio.sleep(random.random() / 200)
    return None if number == 13 else {"id": number, "told": f"{number} {word}"}


def test_arguments_and_results_of_every_type_come_back_as_they_went(spark: SparkSession) -> None:
    df = spark.sql(
        "SELECT true AS a, 1Y AS b, 2S AS c, 3 AS d, 4L AS e, 1.5F AS f, 2.5D AS g, 1.25BD AS h, 'x' AS i, X'00' AS j, "
        "DATE '2020-01-01' AS k, TIMESTAMP '2020-01-01 12:00:00' AS l, TIMESTAMP_NTZ '2020-01-01 12:00:00' AS m, "
        "array(1, null) AS n, map('k', 1L) AS o, named_struct('p', 1, 'q', array(named_struct('r', 'x'))) AS s "
        f"UNION ALL SELECT {', '.join(['null'] * 16)}"
    ).coalesce(1)

    @async_udf(df.schema)
    async def same(*values: Any) -> dict[str, Any]:
        return dict(zip("abcdefghijklmnos", values, strict=True))

    @async_udf("array<string>")
    async def types(*values: Any) -> list[str]:
        return [type(value).__name__ for value in values]

    for zone in ("UTC", "America/New_York"):
        with setting(spark, "spark.sql.session.timeZone", zone):
            assert df.select(same(*df.columns).alias("out")).select("out.*").collect() == df.collect()
    [first, second] = df.select(types(*df.columns).alias("out")).collect()
    assert " ".join(first.out) == (
        "bool int int int int float float Decimal str bytes date datetime datetime list dict dict"
    )
    assert set(second.out) == {"NoneType"}


def test_the_column_has_the_declared_type_and_is_nullable(spark: SparkSession) -> None:
    async def one(n: int) -> float:
        return 1.0

    df = spark.range(1).select(async_udf("double")(one)("id").alias("scalar"), echo("id", F.lit("x")).alias("struct"))
    answer = StructType().add("id", LongType()).add("told", StringType())
    assert df.schema == StructType().add("scalar", DoubleType()).add("struct", answer)
    assert spark.range(1).select(async_udf(df.schema)(one)("id")).columns == ["one(id)"]


@pytest.fixture
def counted(spark: SparkSession) -> tuple[Any, Accumulator[int]]:
    """A function that counts its calls."""
    calls = spark.sparkContext.accumulator(0)

    async def negative(n: int) -> dict[str, int]:
        calls.add(1)
        return {"x": -n, "y": n}

    return negative, calls


def called(calls: Accumulator[int], df: DataFrame, rows: int) -> int:
    before = calls.value
    assert len(df.collect()) == rows
    return calls.value - before


def test_spark_calls_once_for_a_row_whatever_is_done_with_the_column(
    spark: SparkSession, counted: tuple[Any, Accumulator[int]]
) -> None:
    function, calls = counted
    negative = async_udf("x long, y long")(function)
    df = spark.range(0, 100, 1, 2).withColumn("answer", negative("id"))
    assert called(calls, df, 100) == 100
    assert called(calls, df.filter("answer.x < -10"), 89) == 100
    assert called(calls, df.select("answer.*").filter("x < -10 AND y > 20"), 79) == 100
    assert called(calls, df.groupBy("answer.x").agg(F.sum("answer.y")), 100) == 100
    assert called(calls, df.select("id"), 100) == 0
    assert called(calls, spark.range(0, 100, 1, 2).filter(negative("id")["y"] > 10), 89) == 100


def test_a_deterministic_one_may_be_called_more_and_less_often_as_the_page_says(
    spark: SparkSession, counted: tuple[Any, Accumulator[int]]
) -> None:
    function, calls = counted
    negative = async_udf("x long, y long", deterministic=True)(function)
    rows = spark.range(0, 100, 1, 2)
    df = rows.withColumn("answer", negative("id"))
    assert called(calls, df.filter("answer.x < -10"), 89) == 189
    assert called(calls, df.filter("id < 10"), 10) == 10
    assert called(calls, rows.agg(F.sum(negative("id")["x"])), 1) == 100


def test_it_is_called_in_vain_and_refused_as_the_page_says(
    spark: SparkSession, counted: tuple[Any, Accumulator[int]]
) -> None:
    function, calls = counted
    negative = async_udf("x long, y long")(function)
    df = spark.range(0, 100, 1, 2)
    assert called(calls, df.select(F.when(F.col("id") < 10, negative("id"))), 100) == 100
    assert called(calls, df.withColumn("answer", negative("id")).filter("id < 10"), 10) == 100
    with pytest.raises(AnalysisException, match=r"(?i)non-?deterministic"):
        df.agg(F.sum(negative("id")["x"])).collect()


def test_it_can_be_nested_and_stand_beside_others(spark: SparkSession) -> None:
    @async_udf("long")
    async def double(n: int) -> int:
        return 2 * n

    @async_udf("long")
    async def triple(n: int) -> int:
        return 3 * n

    out = spark.range(50).select(double(triple("id")), double("id"), triple(F.col("id") + 1)).collect()
    assert [tuple(row) for row in out] == [(6 * n, 2 * n, 3 * n + 3) for n in range(50)]


def test_in_sql(spark: SparkSession) -> None:
    spark.udf.register("echo", echo)
    spark.range(20).createOrReplaceTempView("numbers")
    out = spark.sql("SELECT id, echo(id, 'x').told AS told FROM numbers WHERE echo(id + 1, null).id < 5").collect()
    assert out == [Row(id=n, told=f"{n} x") for n in range(4)]
    with pytest.raises(Exception, match="echo is called with 1 column: missing a required argument: 'word'"):
        spark.sql("SELECT echo(id) FROM numbers").collect()


def test_in_a_stream(spark: SparkSession, tmp_path: Any) -> None:
    spark.range(0, 20, 1, 2).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    answered = stream.withColumn("answer", echo("id", F.lit("x")))
    query = answered.writeStream.format("memory").queryName("answered").trigger(availableNow=True).start()
    query.awaitTermination()
    out = spark.table("answered").collect()
    assert sorted((row.id, row.answer and row.answer.told) for row in out) == [
        (n, None if n == 13 else f"{n} x") for n in range(20)
    ]


@pytest.mark.parametrize("rows", [60, 200_000])
def test_X7_enough_rows_leave_nothing_behind(spark: SparkSession, server: Hanging, rows: int) -> None:
    """The rows before the one that hangs come out, and Spark's leaving is seen although nothing informs the worker."""
    ask = async_udf("long", timeout=None)(hangs_from(server.port, first=3))
    df = spark.range(0, rows, 1, 1).select("id", ask("id").alias("x")).filter("x >= 0")
    assert [row.x for row in df.take(3)] == [0, 1, 2]
    assert server.ever > 0
    wait_until(lambda: server.open == 0, GONE, "no running call")
