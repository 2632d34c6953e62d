"""`async_udf` on Spark Connect, in a process of its own: one process has one kind of session."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
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
    assert "all of it works" in connect(PROGRAM)
