"""Spark Connect: the same rows as on a classic session, and a clear error for what cannot work there.

All tests of it are here, for one process of tests starts it.
"""

from __future__ import annotations

import io
import operator
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from asyncio_operator import Journal
from asyncio_operator.spark import read_journal
from asyncio_operator.testing import FakeAnswer
from tests.spark.journals import Calls
from tests.spark.test_send import Orders, orders

__all__ = ["orders"]

pytestmark = pytest.mark.spark

PROGRAM = """
import os

import pyspark
from pyspark.sql import SparkSession, functions as F

from asyncio_operator import Cache, ConfigurationError, FixedBackoff, RateLimit, Retry
from asyncio_operator.spark import EnrichmentMetrics, async_udf, enrich, map_partitions, plan, register_lookup
from asyncio_operator.trace import Trace
from enrichers import FunctionEnricher


has_functions = pyspark.__version__ >= "4.1"


async def echo(number, word):
    if number == 97:
        raise ValueError("enough")
    return {"id": number, "told": f"{number} {word}"}


if has_functions:
    echo = async_udf("id long, told string")(echo)  # before there is a session


async def plus_one(key):
    return {"n": key + 1}


async def look_up(key):
    if key == 97:
        raise ValueError("enough")
    return None if key % 10 == 3 else {"x": key} if key % 4 else [{"x": key}, {"x": -key}]


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

if has_functions:
    register_lookup(spark, "look", source, cache=Cache())
    spark.udf.register("echo", echo)
    orders.createOrReplaceTempView("orders")
    for clause in ("", "PARTITION BY at % 3 ORDER BY at"):
        rows = spark.sql(f"SELECT * FROM look(TABLE(orders) {clause}, on => 'the product')").collect()
        assert sorted(map(repr, rows)) == sorted(map(repr, enrich(orders, source, on="the product").collect()))
    show(orders.select(echo("at", F.lit("x")).alias("a")).select("a.*").collect())
    show(spark.sql("SELECT a.* FROM (SELECT echo(at, 'x') AS a FROM orders) WHERE a.id >= 30").collect())

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

late = spark.range(90, 99)
jobs = [(lambda: enrich(late, source, on="id"), "failed for key 97: ValueError: enough")]
of_functions = [
    (lambda: spark.sql("SELECT * FROM look(TABLE(SELECT 97 AS id), on => 'id')"), "failed for key 97: ValueError"),
    (lambda: late.select(echo("id", F.lit("x"))), "echo failed for arguments (97, 'x'): ValueError: enough"),
    (lambda: spark.sql("SELECT * FROM look(TABLE(orders), on => 'the produkt')"), "did you mean 'the product'?"),
]
for job, told in jobs + of_functions * has_functions:
    try:
        job().collect()
    except Exception as error:
        assert told in str(error), error
    else:
        raise AssertionError("it has not failed")

calls = [lambda: enrich(orders, source, on="the produkt")]
if has_functions:
    calls += [lambda: echo("id"), lambda: register_lookup(spark, "upper", source)]
if is_connect:
    calls += [
        lambda: EnrichmentMetrics(spark),
        lambda: enrich(orders, source, on="the product", trace=Trace()),
        lambda: map_partitions(orders, print),
    ]
    calls += [lambda: register_lookup(spark, "look", source, trace=Trace())] * has_functions
for call in calls:
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
    told = [line for line in there if line.startswith("told: ")]
    functions = ["missing a required argument: 'word'", "name is 'upper', which is already a function of another kind"]
    of_connect = [
        "EnrichmentMetrics needs a classic Spark session",
        "trace needs a classic Spark session",
        "rdd is a DataFrame; use enrich(",
    ]
    if pyspark.__version__ < "4.1":
        functions.clear()
    else:
        of_connect.append("trace needs a classic Spark session")
    expected = ["on names 'the produkt', which is not a column of the DataFrame", *functions, *of_connect]
    assert all(map(operator.contains, told, expected)), told
    assert len(told) == len(expected)
    assert len(classic) > 100
    assert there[: -len(of_connect)] == classic
    assert "[3, 4, 5, 6, 7, 8, 9, 10, 11, 12]" in classic


WITH_A_JOURNAL = """
import os, sys
from pyspark.sql import SparkSession

from asyncio_operator import ConfigurationError, Journal
from asyncio_operator.spark import compact_journal, enrich, read_journal
from enrichers import FunctionEnricher

path, counts = sys.argv[1:]


async def look_up(key):
    with open(counts, "a") as file:
        file.write(f"{key}\\n")
    return None if key == 3 else {"x": key, "t": None}


source = FunctionEnricher(look_up, "x long, t string")
spark = SparkSession.builder.remote(os.environ["REMOTE"]).getOrCreate()
journal = Journal(path)
for _ in range(2):
    result = enrich(spark.range(0, 5, numPartitions=2), source, on="id", journal=journal, status_column="how")
    print([(row.id, row.x, row.how.source) for row in result.collect()])
print(compact_journal(spark, path).rows_written, read_journal(spark, path).count())
try:
    enrich(spark.range(5), source, on="id", journal=Journal(path, identity="other"))
except ConfigurationError as error:
    print("it holds answers of" in str(error))
"""


def test_J9_on_connect_the_path_is_the_servers(
    connect: Callable[..., str], spark: SparkSession, calls: Calls, journal: Journal, tmp_path: Path
) -> None:
    printed = connect(WITH_A_JOURNAL, str(journal.path), str(tmp_path / "calls")).splitlines()
    assert printed[0] == str([(key, None if key == 3 else key, "call") for key in range(5)])
    assert printed[1] == str([(key, None if key == 3 else key, "journal") for key in range(5)])
    assert printed[2:] == ["5 5", "True"]
    assert calls.new() == ["0", "1", "2", "3", "4"]
    # The driver of a classic session sees the same journal.
    assert read_journal(spark, journal).count() == 5


SENDS = """
import os, sys
from pyspark.sql import SparkSession
from asyncio_operator.spark import send
from enrichers import HttpEnricher

spark = SparkSession.builder.remote(os.environ["REMOTE"]).getOrCreate()
url, journal = sys.argv[1:]
enricher = HttpEnricher(url, key="id", method="POST", schema="x string", json_body={"id": "{id}"})
df = spark.range(0, 10, numPartitions=2).selectExpr("id % 6 AS id")
for _ in range(2):
    report = send(df, enricher, on="id", journal=journal, on_error="keep")
    print(report.sent, report.refused, report.failed, report.skipped, report.failures.count())
"""


def test_W1_W2_the_same_on_spark_connect(orders: Orders, connect: Callable[..., str], tmp_path: Path) -> None:
    orders.answers = {4: FakeAnswer("", 400)}
    told = connect(SENDS, orders.service.url + "/orders", str(tmp_path / "journal"))
    assert told.split("\n")[:2] == ["9 1 0 0 1", "0 0 0 10 0"]
    assert Counter(orders.ids()) == {0: 2, 1: 2, 2: 2, 3: 2, 4: 1, 5: 1}
