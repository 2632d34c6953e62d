"""docs/sql.md names the options that SQL can write, and those that it cannot."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import SparkSession

from asyncio_operator.spark import register_lookup
from asyncio_operator.spark.driver.build_task import OPTIONS
from asyncio_operator.spark.sql import NOT_IN_SQL
from asyncio_operator.testing import FakeEnricher
from tests.pages import DOCS

TEXT = (DOCS / "sql.md").read_text(encoding="utf-8")


def test_the_page_names_every_option_that_sql_cannot_write() -> None:
    [sentence] = re.findall(r"^(`retry`, .*?)\sare\sobjects", TEXT, re.MULTILINE | re.DOTALL)
    assert "pass them to `register_lookup`, with `tasks_at_once`" in TEXT
    assert (*re.findall(r"`([a-z_]+)`", sentence), "tasks_at_once") == NOT_IN_SQL
    assert set(NOT_IN_SQL) < set(OPTIONS)


def test_every_option_in_the_table_of_values_is_one() -> None:
    table = TEXT.partition("| value in Python |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(?:\w+=.*?)?(\w+) =>", table)) <= set(OPTIONS)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("f(TABLE(SELECT o.customer))", "UNRESOLVED_COLUMN"),
        ("f(TABLE(orders_of_the_page))", "NON_DETERMINISTIC_LATERAL_SUBQUERIES"),
        ("f(TABLE(orders_of_the_page), prefix => o.product)", "it must be a constant"),
    ],
)
def test_spark_refuses_in_lateral_what_the_page_says(call: str, message: str, spark: SparkSession) -> None:
    assert f"`{message}`" in TEXT
    orders = spark.createDataFrame([(1, 10, "tea")], "id int, customer int, product string")
    orders.createOrReplaceTempView("orders_of_the_page")
    register_lookup(spark, "f", FakeEnricher({10: {"name": "Ada"}}), on="customer")
    with pytest.raises(Exception, match=message):
        spark.sql(f"SELECT * FROM orders_of_the_page o, LATERAL {call}").collect()
