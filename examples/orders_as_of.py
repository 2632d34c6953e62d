"""Orders with the tier that their customer had on the day of the order, in a chain with the discount of that day.

    python -m examples.orders_as_of
    python -m examples.orders_as_of --orders 100000

Tiers are a history in Parquet files, which Spark has written: a row says since when a customer has a tier. Discounts
come from a service, which returns all discounts of a tier. Spark's own join with a window function finds the same
tiers. `discounted` and `joined` do the work. The rest starts the service and Spark, and prints.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from examples.stage import Stage, job, local_spark, positive, require_java, run, step, workspace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = 20_000

DISCOUNTS = {
    "silver": [{"percent": 1, "valid": "2024-01-01"}, {"percent": 2, "valid": "2024-07-01"}],
    "gold": [{"percent": 5, "valid": "2024-01-01"}, {"percent": 4, "valid": "2024-07-01"}],
}
"""What the service knows, by tier: the percentage that holds from a day on."""


def discounted(orders: DataFrame, tiers: Path, url: str) -> DataFrame:
    """The orders with the tier of their customer, and the discount of the tier, on the day of the order."""
    from asyncio_operator.spark import enrich
    from enrichers import HttpEnricher, TableEnricher

    history = TableEnricher(tiers, key="customer", columns=["tier", "since"])
    discounts = HttpEnricher(url + "/rows/{key}", schema="percent int, valid date")
    with_tier = enrich(orders, history, on="customer", as_of=("day", "since"))
    return enrich(with_tier, discounts, on="tier", as_of=("day", "valid"), columns="percent")


def joined(orders: DataFrame, tiers: DataFrame) -> DataFrame:
    """The orders with the same tiers, found by Spark's join."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    history = tiers.withColumnRenamed("customer", "of")
    versions = orders.join(history, (orders.customer == history.of) & (history.since <= orders.day), "left")
    latest = Window.partitionBy("id").orderBy(F.col("since").desc_nulls_last())
    return versions.withColumn("number", F.row_number().over(latest)).where("number = 1")


def orders_of(spark: SparkSession, count: int) -> DataFrame:
    """`count` orders of 2024, the same in every run."""
    return spark.range(count).selectExpr(
        "id", "concat('customer ', id % 500) AS customer", "date_add(DATE'2024-01-01', CAST(id % 366 AS INT)) AS day"
    )


def tiers_of(spark: SparkSession) -> DataFrame:
    """A tier of every customer since a day in January, and another one since a day in spring or summer."""
    return spark.range(1_000).selectExpr(
        "concat('customer ', id % 500) AS customer",
        "IF(id < 500, 'silver', 'gold') AS tier",
        "date_add(DATE'2024-01-01', CAST(IF(id < 500, id % 31, 60 + id % 200) AS INT)) AS since",
    )


def demo(stage: Stage, options: argparse.Namespace) -> None:
    """Runs the whole demo."""
    require_java()
    from asyncio_operator.testing import FakeService

    directory = stage.enter(workspace("orders-as-of"))
    with step("Starting the service and Spark"):
        service = stage.enter(FakeService(DISCOUNTS, latency=0.02))
        spark = stage.enter(local_spark(directory, spark__app__name="orders-as-of"))
    orders, tiers = orders_of(spark, options.orders), directory / "tiers"
    with step("Writing the tiers"), job(spark):
        tiers_of(spark).write.parquet(str(tiers))
    found = discounted(orders, tiers, service.url).persist()  # it is used twice
    with step(f"{options.orders:,} orders"), job(spark):
        ours = {(row.tier, row.percent): row["count"] for row in found.groupBy("tier", "percent").count().collect()}
    with step("The same tiers by a join"), job(spark):
        theirs = {
            row.tier: row["count"]
            for row in joined(orders, spark.read.parquet(str(tiers))).groupBy("tier").count().collect()
        }
    print()
    found.where("customer = 'customer 7'").orderBy("day").show(5)
    found.unpersist()
    for (tier, percent), count in sorted(ours.items(), key=str):
        print(f"{tier}, {percent} %: {count:,} orders" if tier else f"no tier yet: {count:,} orders")
    same = {tier: sum(count for (own, _), count in ours.items() if own == tier) for tier, _ in ours} == theirs
    print(
        f"The join found {'the same' if same else 'OTHER'} tiers. The service got {len(service.requests):,} requests."
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="orders_as_of", description="Orders with the tier and discount of their day.")
    parser.add_argument("--orders", type=positive, default=ORDERS, help=f"how many (default: {ORDERS:,})")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    chosen = parse()
    sys.exit(run(lambda stage: demo(stage, chosen)))
