"""Law X17: what differs between the versions of PySpark."""

from __future__ import annotations

import pyspark
import pytest
from pyspark.sql import SparkSession

from asyncio_operator import ConfigurationError
from asyncio_operator.spark import async_udf, enrich, lookups_of, register_lookup, sql, udf
from asyncio_operator.spark.driver.columns import require_dataframe
from asyncio_operator.spark.worker.versions import is_dataframe
from enrichers import FunctionEnricher


async def _stars(product: str) -> dict[str, int]:
    return {"stars": 5}


STARS = FunctionEnricher(_stars, "stars int")


@pytest.fixture
def before_4_1(monkeypatch: pytest.MonkeyPatch) -> str:
    """As PySpark without functions over Arrow batches; its version."""
    monkeypatch.setattr(udf, "arrow_udf", None)
    monkeypatch.setattr(sql, "ARROW_TABLE_FUNCTION", None)
    return pyspark.__version__.replace(".", r"\.")


def test_X17_async_udf_says_which_version_it_needs_and_what_works_without_it(before_4_1: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"async_udf needs PySpark 4\.1 .* this is {before_4_1}; enrich works"
    ):
        async_udf("double")


def test_X17_register_lookup_says_which_version_it_needs_and_what_works_without_it(
    spark: SparkSession, before_4_1: str
) -> None:
    wanted = rf"register_lookup needs PySpark 4\.1 .* this is {before_4_1}; .*createOrReplaceTempView"
    with pytest.raises(ConfigurationError, match=wanted):
        register_lookup(spark, "look", STARS, on="product")


def test_X17_a_dataframe_is_known_as_one_also_where_those_of_connect_are_no_subclass(spark: SparkSession) -> None:
    of_connect = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()
    of_pandas = type("DataFrame", (), {"__module__": "pandas.core.frame"})()
    assert [is_dataframe(one) for one in (spark.range(1), of_connect, of_pandas, None)] == [True, True, False, False]
    require_dataframe(of_connect, STARS)
    assert str(lookups_of(of_connect)) == "no lookups"
    assert str(lookups_of(enrich(spark.range(1).selectExpr("'book' AS product"), STARS, on="product"))) != "no lookups"
