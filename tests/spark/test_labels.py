"""What Spark and a notebook say about lookups: which ones made a DataFrame, and which job is whose."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from asyncio_operator import ConfigurationError
from asyncio_operator.spark import StageLookups, enrich, lookups_of, plan
from asyncio_operator.spark.driver.sessions import DESCRIPTION, described
from enrichers import enricher
from tests.spark.helpers import wait_until

pytestmark = pytest.mark.spark


@enricher("price double")
async def price(product: str) -> dict[str, float]:
    return {"price": 1.0}


def test_the_lookups_of_a_stage_are_a_table_until_another_operation_ends_it(spark: SparkSession) -> None:
    orders = spark.createDataFrame([(1, "tea")], "id int, `<b>product` string")
    once = enrich(orders, price, on="<b>product", status_column="status", capacity=7)
    twice = enrich(once, price, on="<b>product", prefix="new_", how="inner", mode="unordered")
    first, second = lookups_of(twice).lookups
    assert (first.key, first.adds, first.how, first.mode) == (("<b>product",), ("price", "status"), "left", "ordered")
    assert (second.adds, second.how, second.mode, second.capacity) == (("new_price",), "inner", "unordered", "100")
    assert (first.capacity, first.keys_in_a_call) == ("7", 1)
    assert lookups_of(once).lookups == (first,)
    page = lookups_of(twice)._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;product" in page
    assert "new_price" in str(lookups_of(twice))
    assert lookups_of(twice.filter("id > 0")) == lookups_of(orders) == StageLookups(())
    assert str(StageLookups(())) == "no lookups"
    with pytest.raises(ConfigurationError, match="df is of type str"):
        lookups_of("orders")  # type: ignore[arg-type]


def descriptions(spark: SparkSession) -> set[str]:
    """What Spark's own UI says about the jobs."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    texts = [jobs.apply(i).description() for i in range(jobs.size())]
    return {text.get() for text in texts if text.isDefined()}


def test_jobs_of_the_library_have_a_description_unless_the_user_has_set_one(spark: SparkSession) -> None:
    context = spark.sparkContext
    orders = spark.createDataFrame([("tea",)], "product string").coalesce(1)
    plan(orders, price, on="product")
    wait_until(lambda: "plan: sample of keys" in descriptions(spark), 20, "the job is known to the UI")
    assert context.getLocalProperty(DESCRIPTION) is None
    context.setJobDescription("of the user")
    try:
        with described(spark, "mine"):
            assert context.getLocalProperty(DESCRIPTION) == "of the user"
    finally:
        context._jsc.setLocalProperty(DESCRIPTION, None)
