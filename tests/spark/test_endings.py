"""Law X7: however a job ends, nothing of it is left behind 5 s later, and the worker works.

Lookups hold a connection to a server of the test while they run, and ask it to be left hanging; so what is left of them
can be counted from outside, whatever became of their process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator.spark import async_udf, enrich
from tests.spark.helpers import (
    FROM_4_1,
    Hanging,
    assert_nothing_is_left,
    hanging_from,
    hangs_from,
    through_sql,
)

pytestmark = pytest.mark.spark

# Each takes seconds, and both end in the same way.
MODES = ["ordered", pytest.param("unordered", marks=pytest.mark.faults)]


# Of many rows, the input is still being sent when Spark has enough.
@pytest.mark.parametrize("rows", [60, 200_000])
@pytest.mark.parametrize("mode", MODES)
def test_X7_a_job_that_has_enough_rows_ends_although_the_others_hang_without_a_timeout(
    spark: SparkSession, server: Hanging, mode: Any, rows: int
) -> None:
    df = spark.range(0, rows, numPartitions=1)
    out = enrich(df, hanging_from(server.port, first=3), on="id", timeout=None, mode=mode)
    assert (out.limit(3).collect() if mode == "ordered" else out.take(3)) == [(0, 0), (1, 1), (2, 2)]
    assert_nothing_is_left(spark, server)


def by_enrich(df: DataFrame, port: int, mode: Any = "ordered") -> DataFrame:
    return enrich(df, hanging_from(port, first=3, fails=40), on="id", timeout=None, mode=mode)


def by_sql(df: DataFrame, port: int) -> DataFrame:
    return through_sql(df, hanging_from(port, first=3, fails=40), on="id", timeout=None)


def by_udf(df: DataFrame, port: int) -> DataFrame:
    return df.select(async_udf("long", timeout=None)(hangs_from(port, first=3, fails=40))("id"))


@pytest.mark.parametrize(
    ("face", "told"),
    [
        (by_enrich, "failed for key 40: ValueError: enough"),
        (partial(by_enrich, mode="unordered"), "failed for key 40: ValueError: enough"),
        pytest.param(by_sql, "failed for key 40: ValueError: enough", marks=FROM_4_1),
        (by_udf, r"ask failed for arguments \(40,\): ValueError: enough"),
    ],
    ids=["ordered", "unordered", "sql", "async_udf"],
)
def test_X7_a_failing_task_leaves_nothing(
    spark: SparkSession, server: Hanging, face: Callable[[DataFrame, int], DataFrame], told: str
) -> None:
    with pytest.raises(Exception, match=told):
        face(spark.range(0, 60, numPartitions=1), server.port).collect()
    assert_nothing_is_left(spark, server)


@pytest.mark.parametrize("mode", MODES)
def test_X7_a_task_that_fails_behind_enrich_leaves_nothing(spark: SparkSession, server: Hanging, mode: Any) -> None:
    df = spark.range(0, 200_000, numPartitions=1)
    out = enrich(df, hanging_from(server.port, first=3), on="id", timeout=None, mode=mode)
    with pytest.raises(Exception, match="behind"):
        out.selectExpr("if(x = 1, raise_error('behind'), x)").collect()
    assert_nothing_is_left(spark, server)
