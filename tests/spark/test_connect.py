"""`enrich` on Spark Connect: the same rows as on a classic session, and a clear error for what cannot work there."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

PROGRAM = """
import os
from pyspark.sql import SparkSession

from asyncio_operator import Cache, ConfigurationError, FixedBackoff, RateLimit, Retry
from asyncio_operator.spark import EnrichmentMetrics, enrich
from asyncio_operator.trace import Trace
from enrichers import FunctionEnricher


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


@pytest.mark.spark
def test_X1_X3_X5_X10_on_connect_all_is_as_on_a_classic_session(
    spark: SparkSession, connect: Callable[..., str], tmp_path: Path
) -> None:
    classic = on(spark, input_in(tmp_path / "classic" / "input")).splitlines()
    place = input_in(tmp_path / "connect" / "input")
    there = connect(f"is_connect, place = True, {place!r}\n{PROGRAM}\nspark.stop()").splitlines()
    assert len(classic) > 150
    assert there[:-2] == classic
    assert "on names 'the produkt', which is not a column of the DataFrame" in classic[-1]
    assert "EnrichmentMetrics needs a classic Spark session" in there[-2]
    assert "trace needs a classic Spark session" in there[-1]
