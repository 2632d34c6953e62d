"""A column from an HTTP service: the offer for every order, computed by an `async def` of three columns.

    python -m examples.async_column
    python -m examples.async_column --orders 20000

The service returns the price of a product in a country. It takes some milliseconds, and sometimes answers 503. An offer
depends on product, country and number of pieces, so it is not a lookup by key. It is a column function, for DataFrames
and SQL. `Offer` is the function, `offer` sets its options. The rest starts the service and Spark, and prints.
"""

from __future__ import annotations

import argparse
import random
import sys
from typing import TYPE_CHECKING, Any

from asyncio_operator import AsyncFunction, ExponentialBackoff, Retry
from examples.stage import Stage, job, local_spark, positive, require_java, run, step, workspace

if TYPE_CHECKING:
    import aiohttp
    from pyspark.sql import DataFrame, SparkSession

    from asyncio_operator.spark.udf import ColumnFunction
    from asyncio_operator.testing import FakeService

PRICES = {("tea", "NL"): 2.5, ("tea", "FR"): 2.25, ("ink", "NL"): 4.0, ("ink", "FR"): 4.75, ("paper", "FR"): 8.0}
"""The price of a piece. Paper is not sold in NL."""

ORDERS = 2_000


class Offer(AsyncFunction[tuple[str, str, int], dict[str, Any] | None]):
    """The offer for a product, a country and a number of pieces, with the prices of a service."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def open(self) -> None:
        """Makes the client, once in every task, on the loop of the calls: a client belongs to the loop that made it."""
        import aiohttp

        self.session: aiohttp.ClientSession = aiohttp.ClientSession()

    async def invoke(self, value: tuple[str, str, int]) -> dict[str, Any] | None:
        """The result for one row. None is null."""
        product, country, pieces = value
        async with self.session.get(f"{self.url}/rows/{product}/{country}") as answer:
            if answer.status == 404:
                return None
            answer.raise_for_status()
            price = (await answer.json())["price"]
        rebate = 0.1 if pieces >= 10 else 0.0
        return {"price": price, "rebate": rebate, "total": pieces * price * (1 - rebate)}

    async def close(self) -> None:
        """Closes the client when the task ends."""
        await self.session.close()


def offer(url: str) -> ColumnFunction:
    """The column function."""
    import aiohttp

    from asyncio_operator.spark import async_udf

    return async_udf(
        "price double, rebate double, total double",
        capacity=20,  # for each of Spark's two tasks
        timeout=10.0,  # for a row, over all attempts and the waits between them
        retry=Retry(max_attempts=8, backoff=ExponentialBackoff(initial=0.01), on=(aiohttp.ClientError,)),
    )(Offer(url))


def service() -> FakeService:
    """The service. Inside the `with` block it runs on a thread of this process."""
    from asyncio_operator.testing import FakeService

    rows = {key: {"price": price} for key, price in PRICES.items()}
    return FakeService(rows, latency=lambda random: random.uniform(0.002, 0.008), errors={503: 0.05})


def orders_of(spark: SparkSession, count: int) -> DataFrame:
    """`count` orders, the same in every run."""
    draw = random.Random(0)
    rows = [
        (number, draw.choice(("tea", "ink", "paper")), draw.choice(("NL", "FR")), draw.randint(1, 20))
        for number in range(count)
    ]
    return spark.createDataFrame(rows, "id int, product string, country string, pieces int")


def demo(stage: Stage, options: argparse.Namespace) -> None:
    """Runs the whole demo."""
    require_java()
    directory = stage.enter(workspace("async-column"))
    with step("Starting the service and Spark"):
        prices = stage.enter(service())
        spark = stage.enter(local_spark(directory, spark__app__name="async-column"))
    orders = orders_of(spark, options.orders)
    offered = orders.withColumn("offer", offer(prices.url)("product", "country", "pieces")).cache()
    with step(f"Asking for {options.orders:,} offers; tasks done:"), job(spark):
        offered.count()
    print()
    offered.select("id", "product", "country", "pieces", "offer.*").show(8)
    spark.udf.register("offer", offer(prices.url))
    orders.createOrReplaceTempView("orders")
    print("In SQL, the three largest of the first hundred:")
    print()
    spark.sql(
        """
        SELECT id, round(offered.total, 2) AS total
        FROM (SELECT id, offer(product, country, pieces) AS offered FROM orders WHERE id < 100)
        ORDER BY total DESC, id LIMIT 3
        """
    ).show()
    print(f"The service got {len(prices.requests):,} requests, at most {prices.most_at_once} at once.")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="async_column", description="Offers from an HTTP service, as a column.")
    parser.add_argument("--orders", type=positive, default=ORDERS, help=f"how many (default: {ORDERS:,})")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    chosen = parse()
    sys.exit(run(lambda stage: demo(stage, chosen)))
