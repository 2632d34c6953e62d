"""`register_lookup` on Spark Connect, in a process of its own: one process has one kind of session."""

from __future__ import annotations

from collections.abc import Callable

import pytest

PROGRAM = """
import os
from pyspark.sql import SparkSession

from asyncio_operator import Cache, ConfigurationError
from asyncio_operator.spark import enrich, register_lookup
from asyncio_operator.trace import Trace
from enrichers import FunctionEnricher


async def look_up(key):
    if key == 97:
        raise ValueError("enough")
    return None if key % 10 == 3 else [{"x": key}, {"x": -key}]


source = FunctionEnricher(look_up, "x long")
spark = SparkSession.builder.remote(os.environ["REMOTE"]).getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect"), type(spark)
register_lookup(spark, "look", source, cache=Cache())
orders = spark.range(0, 50, numPartitions=2).selectExpr("if(id % 7 = 3, null, id % 20) AS `the product`", "id AS at")
orders.createOrReplaceTempView("orders")
expected = enrich(orders, source, on="the product").collect()
assert spark.sql("SELECT * FROM look(TABLE(orders), on => 'the product')").collect() == expected
clause = "PARTITION BY at % 3 ORDER BY at"
rows = spark.sql(f"SELECT * FROM look(TABLE(orders) {clause}, on => 'the product')").collect()
assert sorted(map(repr, rows)) == sorted(map(repr, expected))

for query, told in (
    ("SELECT * FROM look(TABLE(orders), on => 'the produkt')", "did you mean 'the product'?"),
    ("SELECT * FROM look(TABLE(SELECT 97 AS id), on => 'id')", "failed for key 97: ValueError: enough"),
):
    try:
        spark.sql(query).collect()
    except Exception as error:
        assert told in str(error), error
    else:
        raise AssertionError("it was not refused")
for name, options, told in (
    ("upper", {}, "name is 'upper', which is already a function of another kind"),
    ("look", {"trace": Trace()}, "trace needs a classic Spark session"),
):
    try:
        register_lookup(spark, name, source, **options)
    except ConfigurationError as error:
        assert told in str(error), error
    else:
        raise AssertionError("it was not refused")
print("all of it works")
spark.stop()
"""


@pytest.mark.spark
def test_X1_X5_on_connect_a_table_function_gives_the_rows_of_enrich(connect: Callable[..., str]) -> None:
    assert "all of it works" in connect(PROGRAM)
