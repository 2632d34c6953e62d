"""Orders, sent to a service by POST: a worker is killed in the middle, and the next run sends what is left.

    python -m examples.send_orders
    python -m examples.send_orders --orders 10000

The service remembers idempotency keys, as payment services do: a request that comes twice is done once. It refuses some
orders, and fails now and then. When it has seen half of the orders it kills the worker that sends the next one, as a
machine that fails does. `sent` does the work. The rest starts the service and Spark, and prints.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.stage import Stage, local_spark, positive, require_java, run, step, workspace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from asyncio_operator.spark import SendReport
    from asyncio_operator.testing import FakeRequest

ORDERS = 2_000


def sent(orders: DataFrame, url: str, journal: Path) -> SendReport:
    """Sends each order that the journal does not know. The report has the orders that were not sent."""
    from asyncio_operator import Journal
    from asyncio_operator.spark import send
    from enrichers import HttpEnricher

    def headers() -> dict[str, str]:
        return {"X-Process": str(os.getpid())}  # for the service that kills: yours needs none

    service = HttpEnricher(
        url + "/orders",
        method="POST",
        key=["product", "pieces"],
        json_body={"product": "{product}", "pieces": "{pieces}"},
        headers=headers,
        schema="id string",
    )
    # The journal is on its way to disk within 0.2 seconds of each answer.
    known = Journal(journal, flush_every=0.2)
    return send(orders, service, on=["product", "pieces"], journal=known, capacity=20, on_error="keep")


class Shop:
    """The service: it counts the orders that it has taken.

    Args:
        kills_at: the number of requests after which it kills the next worker; 0: none.
    """

    def __init__(self, kills_at: int) -> None:
        from asyncio_operator.testing import FakeService

        self.taken: Counter[tuple[str, int]] = Counter()
        self.killed = 0
        self.service = FakeService(handler=self._answer, latency=0.005, errors={503: 0.02}, retry_after=0)
        self._known: set[str] = set()
        self._kills_at = kills_at

    def _answer(self, request: FakeRequest) -> Any:
        from asyncio_operator.testing import FakeAnswer

        if self._kills_at and len(self.service.requests) >= self._kills_at:
            self._kills_at, self.killed = 0, 1
            os.kill(int(request.headers["x-process"]), signal.SIGKILL)
        order = json.loads(request.body)
        if order["pieces"] == 7:
            return FakeAnswer({"error": "we do not sell seven"}, 422)
        key = request.headers["idempotency-key"]
        if key not in self._known:
            self._known.add(key)
            self.taken[order["product"], order["pieces"]] += 1
        return FakeAnswer({"id": key}, 201)


def orders_of(spark: SparkSession, count: int) -> DataFrame:
    """`count` orders, the same in every run; many are equal, and each of them is an order."""
    draw = random.Random(0)
    rows = [(number, draw.choice(("tea", "ink", "paper")), draw.randint(1, 50)) for number in range(count)]
    return spark.createDataFrame(rows, "id int, product string, pieces int")


def demo(stage: Stage, options: argparse.Namespace) -> None:
    """Runs the whole demo."""
    require_java()
    directory = stage.enter(workspace("send-orders"))
    with step("Starting the service and Spark"):
        shop = Shop(options.orders // 2)
        stage.enter(shop.service)
        spark = stage.enter(local_spark(directory, spark__app__name="send-orders"))
    orders = orders_of(spark, options.orders)
    url, journal = shop.service.url, directory / "journal"
    try:
        with step(f"Sending {options.orders:,} orders"):
            sent(orders, url, journal)
    except Exception:
        print(f"The job failed: a worker was killed after {len(shop.service.requests):,} requests.")
    with step("Sending the rest"):
        report = sent(orders, url, journal)
    print()
    print(report)
    print()
    report.failures.drop("message").show(3)
    print(f"The service got {len(shop.service.requests):,} requests and took {shop.taken.total():,} orders.")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="send_orders", description="Send orders to a service, once each.")
    parser.add_argument("--orders", type=positive, default=ORDERS, help=f"how many (default: {ORDERS:,})")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    chosen = parse()
    sys.exit(run(lambda stage: demo(stage, chosen)))
