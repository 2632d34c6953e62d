"""X16 in a real Spark: the rows that its own join with a window function gives, by every face that takes `as_of`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from asyncio_operator.spark import EnrichmentMetrics, enrich, plan
from enrichers import FunctionEnricher, TableEnricher
from tests.spark.helpers import FROM_4_1, in_partitions, setting, through_sql

pytestmark = pytest.mark.spark

ZONE = "spark.sql.session.timeZone"


SPRING = "2024-03-01"


def orders_of(spark: SparkSession, count: int, keys: int, first: str = SPRING) -> DataFrame:
    """Orders at random times of 40 days, in steps of a quarter of an hour, so that many times are equal; some are
    null, and some keys are in no table."""
    return spark.range(0, count, 1, 4).selectExpr(
        "id AS n",
        f"IF(pmod(xxhash64(id, 1), 50) = 0, NULL, pmod(xxhash64(id, 2), {keys + keys // 10})) AS id",
        f"IF(pmod(xxhash64(id, 3), 50) = 0, NULL, {_moment(first, 4, 900)}) AS at",
    )


def tiers_of(spark: SparkSession, keys: int, versions: int, first: str = SPRING) -> DataFrame:
    """The versions of keys, in any order, in steps of half an hour; some are null."""
    return spark.range(0, keys * versions, 1, 1).selectExpr(
        f"id % {keys} AS id",
        f"IF(pmod(xxhash64(id, 5), 20) = 0, NULL, {_moment(first, 6, 1800)}) AS since",
        "concat('tier ', id) AS tier",
        "id AS place",
    )


def _moment(first: str, salt: int, step: int) -> str:
    steps = f"pmod(xxhash64(id, {salt}), {40 * 86_400 // step})"
    return f"timestamp_seconds(unix_date(DATE'{first}') * 86400L + {step} * {steps})"


def joined(orders: DataFrame, tiers: DataFrame) -> DataFrame:
    """What Spark's join gives: the versions that are not after the order, and of them the latest."""
    tiers = tiers.withColumnRenamed("id", "key")
    candidates = orders.join(tiers, (orders.id == tiers.key) & (tiers.since <= orders["at"]), "left")
    latest = Window.partitionBy("n").orderBy(F.col("since").desc_nulls_last(), F.col("place").desc())
    return candidates.withColumn("nr", F.row_number().over(latest)).where("nr = 1")


def told(rows: DataFrame) -> Any:
    """The number of rows, of those with a tier, and the exclusive or of all hashes."""
    return rows.selectExpr("count(*)", "count(tier)", "bit_xor(xxhash64(n, at, since, tier))").first()


def test_X16_20_000_rows_are_those_of_sparks_join_with_a_window(spark: SparkSession, tmp_path: Path) -> None:
    with setting(spark, ZONE, "UTC"):
        path = str(tmp_path / "tiers")
        tiers_of(spark, 1_000, 6).write.parquet(path)  # as INT96, which pyarrow reads as timestamp_ntz
        orders, metrics = orders_of(spark, 20_000, 1_000), EnrichmentMetrics(spark)
        table = TableEnricher(path, key="id", columns=["since", "tier"])
        assert table.schema().field("since").type.tz is None
        ours = enrich(orders, table, on="id", as_of=("at", "since"), metrics=metrics)
        ours_told = told(ours.withColumn("since", F.col("since").cast("timestamp")))
        assert ours_told == told(joined(orders, spark.read.parquet(path)))
        assert 12_000 < ours_told[1] < 18_000
        figures = metrics.statistics()
        assert (figures.rows, figures.found) == tuple(ours_told)[:2]


SKIPS_MIDNIGHT, SHOWS_TWICE = ("America/Sao_Paulo", "2018-10-10"), ("America/New_York", "2024-10-10")
"""Zones, and a day in the forty from which their clocks do that."""


@pytest.mark.parametrize(
    ("place", "own", "theirs"),
    [
        (SHOWS_TWICE, "timestamp", "timestamp_ntz"),
        (SHOWS_TWICE, "timestamp_ntz", "timestamp"),
        (SKIPS_MIDNIGHT, "timestamp", "timestamp_ntz"),
        (SKIPS_MIDNIGHT, "timestamp", "date"),
        (SKIPS_MIDNIGHT, "date", "timestamp"),
        (SKIPS_MIDNIGHT, "timestamp_ntz", "date"),
    ],
)
def test_X16_times_of_two_types_are_compared_as_sparks_join_compares_them(
    spark: SparkSession, tmp_path: Path, place: tuple[str, str], own: str, theirs: str
) -> None:
    zone, first = place
    with setting(spark, ZONE, zone), setting(spark, "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"):
        # What a clock in UTC shows, so that the zone's clock skips some of it, and shows some twice.
        orders = in_utc(orders_of(spark, 1_000, 20, first), "at", own)
        tiers = in_utc(tiers_of(spark, 20, 20, first), "since", theirs)
        tiers.write.parquet(str(tmp_path / "tiers"))
        table = TableEnricher(tmp_path / "tiers", key="id", columns=["since", "tier"])
        ours = enrich(orders, table, on="id", as_of=("at", "since"))
        assert ours.schema["since"].dataType.simpleString() == theirs
        assert told(ours) == told(joined(orders, spark.read.parquet(str(tmp_path / "tiers"))))


def in_utc(rows: DataFrame, name: str, kind: str) -> DataFrame:
    """The rows with a column of times in another type, as a clock in UTC shows them."""
    with setting(rows.sparkSession, ZONE, "UTC"):
        return rows.withColumn(name, F.col(name).cast(kind))


ORDERS = [(1, "ann", 10), (2, "ann", 20), (3, "bob", 10), (4, None, 10), (5, "ann", None), (6, "ann", 5)]
TIERS = {"ann": [("silver", 6), ("gold", 20)], "bob": [("gold", 11)]}
HELD = [(1, "silver"), (2, "gold"), (3, None), (4, None), (5, None), (6, None)]


def customers() -> FunctionEnricher:
    async def look_up(name: str) -> Any:
        return [{"tier": tier, "since": since} for tier, since in TIERS[name]]

    return FunctionEnricher(look_up, "tier string, since int")


def discounts() -> FunctionEnricher:
    async def look_up(tier: str) -> Any:
        return [{"discount": number, "valid": number} for number in (0, 10, 20) if tier == "gold" or number < 20]

    return FunctionEnricher(look_up, "discount int, valid int")


def test_C1_X16_a_chain_compares_with_columns_of_earlier_lookups(spark: SparkSession) -> None:
    orders = in_partitions(spark, ORDERS, "n int, name string, at int", 2)
    first = enrich(orders, customers(), on="name", as_of=("at", "since"))
    chain = enrich(first, discounts(), on="tier", as_of=("since", "valid"), columns="discount")
    assert [(row.n, row.tier, row.discount) for row in chain.collect()] == [
        (1, "silver", 0),
        (2, "gold", 20),
        *((number, None, None) for number in (3, 4, 5, 6)),
    ]
    assert plan(orders, customers(), on="name").lookups == 3


@FROM_4_1
def test_X16_a_table_function_takes_it_too(spark: SparkSession) -> None:
    orders = in_partitions(spark, ORDERS, "n int, name string, at int", 2)
    by_name = through_sql(orders, customers(), ", as_of => array('at', 'since')", on="name", columns=["tier"])
    assert [(row.n, row.tier) for row in by_name.collect()] == HELD
    registered = through_sql(orders, customers(), on="name", as_of=("at", "since"), how="inner")
    assert [(row.n, row.tier, row.since) for row in registered.collect()] == [(1, "silver", 6), (2, "gold", 20)]


def test_J1_X16_a_journal_keeps_all_versions_of_a_key(spark: SparkSession, tmp_path: Path) -> None:
    orders = in_partitions(spark, ORDERS, "n int, name string, at int", 1)
    for calls, columns in ((2, "tier"), (0, ["tier"]), (0, None)):
        metrics = EnrichmentMetrics(spark)
        options: dict[str, Any] = {"columns": columns, "journal": str(tmp_path / "journal"), "metrics": metrics}
        found = enrich(orders, customers(), on="name", as_of=("at", "since"), **options)
        assert [(row.n, row.tier) for row in found.collect()] == HELD
        assert metrics.statistics().calls == calls
