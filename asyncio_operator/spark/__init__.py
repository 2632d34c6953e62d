"""The functions for DataFrames: `enrich` and the functions around it. Only this package knows pyspark."""

from importlib.util import find_spec

from asyncio_operator.hints import not_installed

for _needed in ("pyspark", "pyarrow"):
    if find_spec(_needed) is None:
        raise not_installed("asyncio_operator.spark", _needed, "spark")

from asyncio_operator.figures import EnrichmentStatistics  # noqa: E402
from asyncio_operator.spark.driver.forecast import EnrichmentPlan  # noqa: E402
from asyncio_operator.spark.driver.live_page import LivePage  # noqa: E402
from asyncio_operator.spark.enrich import StageLookup, StageLookups, enrich, enrich_with, lookups_of  # noqa: E402
from asyncio_operator.spark.journal import compact_journal, read_journal  # noqa: E402
from asyncio_operator.spark.metrics import EnrichmentMetrics  # noqa: E402
from asyncio_operator.spark.plan import plan  # noqa: E402
from asyncio_operator.spark.rdd import map_partitions  # noqa: E402
from asyncio_operator.spark.send import SendReport, send  # noqa: E402
from asyncio_operator.spark.sql import register_lookup  # noqa: E402
from asyncio_operator.spark.udf import async_udf  # noqa: E402

__all__ = [
    "EnrichmentMetrics",
    "EnrichmentPlan",
    "EnrichmentStatistics",
    "LivePage",
    "SendReport",
    "StageLookup",
    "StageLookups",
    "async_udf",
    "compact_journal",
    "enrich",
    "enrich_with",
    "lookups_of",
    "map_partitions",
    "plan",
    "read_journal",
    "register_lookup",
    "send",
]
