"""`enrich` on Spark Connect: the same rows as on a classic session, and a clear error for what cannot work there."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PROGRAM = """
import os
from pyspark.sql import SparkSession

from asyncio_operator import Cache, ConfigurationError, FixedBackoff, RateLimit, Retry
from asyncio_operator.spark import EnrichmentMetrics, enrich, map_partitions, plan
from asyncio_operator.trace import Trace
from enrichers import FunctionEnricher


async def plus_one(key):
    return {"n": key + 1}


async def look_up(key):
    if key == 97:
        raise ValueError("enough")
    return None if key % 10 == 3 else {"x": key}


source = FunctionEnricher(look_up, "x long")
spark = SparkSession.builder.remote(os.environ["REMOTE"]).getOrCreate() if is_connect else classic
orders = spark.range(0, 50, numPartitions=2).selectExpr("if(id % 7 = 3, null, id % 20) AS `the product`", "id AS at")


def show(rows):
    for row in sorted(map(repr, rows)):
        print(row)


for options in (
    {"status_column": "how"},
    {"how": "inner", "mode": "unordered", "event_time": "at", "watermark_delay": 5},
    {"cache": Cache(), "retry": Retry(2, FixedBackoff(0.001)), "rate_limit": RateLimit(100_000)},
    {"strategy": "distinct"},
):
    result = enrich(orders, source, on="the product", **options)
    print(result.schema.simpleString())
    dropped = result.withColumn("how", result.how.dropFields("latency_ms")) if "status_column" in options else result
    show(dropped.collect())

print(plan(orders, source, on="the product", latency=0.01))

chain, lookup = spark.range(10), FunctionEnricher(plus_one, "n long")
for number in range(3):
    chain = enrich(chain, lookup, on="id" if not number else f"_{number - 1}n", prefix=f"_{number}")
print([row._2n for row in chain.collect()])
if is_connect:
    plans = [chain._explain_string()]
    chain.persist()
    plans.append(enrich(chain, lookup, on="id", prefix="after_")._explain_string())
    assert plans[0].count("MapInArrow enrich: ") == 1, plans
    assert "(3 lookups)" in plans[0] and "4 lookups" not in plans[1], plans
    chain.unpersist()

stream = spark.readStream.schema("id long").json(place)
query = enrich(stream, source, on="id").writeStream.format("memory").queryName("enriched")
query = query.trigger(availableNow=True).option("checkpointLocation", place + "/../checkpoint").start()
query.awaitTermination(60)
show(spark.table("enriched").collect())

try:
    enrich(spark.range(90, 99), source, on="id").collect()
except Exception as error:
    assert "failed for key 97: ValueError: enough" in str(error), error
else:
    raise AssertionError("it has not failed")

for call in (
    lambda: enrich(orders, source, on="the produkt"),
    *(
        (
            lambda: EnrichmentMetrics(spark),
            lambda: enrich(orders, source, on="the product", trace=Trace()),
            lambda: map_partitions(orders, print),
        )
        if is_connect
        else ()
    ),
):
    try:
        call()
    except ConfigurationError as error:
        print("told:", error)
    else:
        raise AssertionError("it was not refused")
"""


def input_in(place: Path) -> str:
    place.mkdir(parents=True)
    (place / "numbers.json").write_text("\n".join(f'{{"id": {number}}}' for number in range(20)))
    return str(place)


def on(classic: SparkSession, place: str) -> str:
    """What it prints on a classic session: it alone, and not what a listener of another query has left to say."""
    printed = io.StringIO()
    names = {"__name__": "__main__", "is_connect": False, "place": place, "classic": classic}
    exec(PROGRAM, names | {"print": partial(print, file=printed)})
    return printed.getvalue()


def test_X1_X3_X5_X10_C5_on_connect_all_is_as_on_a_classic_session(
    spark: SparkSession, connect: Callable[..., str], tmp_path: Path
) -> None:
    classic = on(spark, input_in(tmp_path / "classic" / "input")).splitlines()
    place = input_in(tmp_path / "connect" / "input")
    there = connect(f"is_connect, place = True, {place!r}\n{PROGRAM}\nspark.stop()").splitlines()
    assert len(classic) > 150
    assert there[:-3] == classic
    assert "[3, 4, 5, 6, 7, 8, 9, 10, 11, 12]" in classic
    assert "on names 'the produkt', which is not a column of the DataFrame" in classic[-1]
    assert "EnrichmentMetrics needs a classic Spark session" in there[-3]
    assert "trace needs a classic Spark session" in there[-2]
    assert "rdd is a DataFrame; use enrich(" in there[-1]


# -- table functions


SQL = """
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


def test_X1_X5_on_connect_a_table_function_gives_the_rows_of_enrich(connect: Callable[..., str]) -> None:
    assert "all of it works" in connect(SQL)


# -- column functions


UDF = """
import os

from asyncio_operator import ConfigurationError
from asyncio_operator.spark import async_udf


@async_udf("id long, told string")  # before there is a session
async def echo(number, word):
    if number == 3:
        raise ValueError("enough")
    return {"id": number, "told": f"{number} {word}"}


from pyspark.sql import Row, SparkSession, functions as F

spark = SparkSession.builder.remote(os.environ["REMOTE"]).getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect"), type(spark)
df = spark.range(0, 3, 1, 2)
expected = [Row(id=n, told=f"{n} x") for n in range(3)]
assert df.select(echo("id", F.lit("x")).alias("a")).select("a.*").collect() == expected
spark.udf.register("echo", echo)
df.createOrReplaceTempView("numbers")
assert spark.sql("SELECT a.* FROM (SELECT echo(id, 'x') AS a FROM numbers) WHERE a.id >= 0").collect() == expected
try:
    spark.range(5).select(echo("id", F.lit("x"))).collect()
except Exception as error:
    assert "echo failed for arguments (3, 'x'): ValueError: enough" in str(error), error
else:
    raise AssertionError("it has not failed")
try:
    echo("id")
except ConfigurationError as error:
    assert "missing a required argument: 'word'" in str(error), error
print("all of it works")
spark.stop()
"""


def test_it_works_on_spark_connect(connect: Callable[..., str]) -> None:
    assert "all of it works" in connect(UDF)
