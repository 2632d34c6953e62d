"""What the tests of faults ask, over a proxy, and what happens on the way.

Asked is a query of PostgreSQL or an HTTP service; both multiply a key by seven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from asyncio_operator import Enricher, FixedBackoff, Retry
from asyncio_operator.testing import FakeRequest, FakeService
from enrichers import HttpEnricher, PostgresEnricher
from tests.faults.proxy import Mode, Proxy
from tests.servers import PostgresServer
from tests.spark.helpers import BATCH_SIZE, GONE, assert_workers_are_clean, setting, wait_until

FILLER = "x" * 100
"""Makes answers long enough to be broken off in their middle."""


class Outside:
    """Something that answers, and the way to it.

    Attributes:
        proxy: the way.
        at: makes an enricher that asks over the proxy, which has the given name; keys are whole numbers.
        enricher: one that it has made.
    """

    def __init__(self, name: str, proxy: Proxy, make: Callable[[str], Enricher]) -> None:
        self.name = name
        self.proxy = proxy
        self.at = make
        self.enricher = make(proxy.host)


def row(key: int) -> dict[str, Any]:
    """The right answer."""
    return {"v": 7 * key, "filler": FILLER}


PASSING = {
    "cut at once": Mode("cut", times=6),
    "cut in an answer": Mode("cut", after=3000, times=6),
    "reset at once": Mode("reset", times=6),
    "reset in an answer": Mode("reset", after=3000, times=6),
    "half-closed at once": Mode("half_close", times=6),
    "half-closed in an answer": Mode("half_close", after=3000, times=6),
    "black hole at once": Mode("blackhole", times=2),
    "black hole in an answer": Mode("blackhole", after=3000, times=2),
}


LASTING = {
    "cut": (Mode("cut"), "the connection was lost", "the server is not reachable|the server closed the connection"),
    "reset": (Mode("reset"), "the connection was lost|the service is not reachable", "not reachable|connection was"),
    "half_close": (Mode("half_close"), "the connection was lost", "not reachable|closed the connection"),
    "blackhole": (Mode("blackhole"), "within its timeout of 0.5 s", "within its timeout of 0.5 s"),
    "trickle": (Mode("trickle", 20), "within its timeout of 0.5 s", "within its timeout of 0.5 s"),
    "delay": (Mode("delay", 1), "within its timeout of 0.5 s", "within its timeout of 0.5 s"),
}


SILENT = ("blackhole", "trickle", "delay")
"""Faults that only a deadline ends."""


@contextmanager
def over_http() -> Iterator[Outside]:
    def answer(request: FakeRequest) -> dict[str, Any]:
        return row(int(request.path.removeprefix("/v/")))

    with FakeService(handler=answer) as service, Proxy(("127.0.0.1", int(service.url.rpartition(":")[2]))) as proxy:
        yield Outside(
            "http",
            proxy,
            lambda host: HttpEnricher(f"http://{host}:{proxy.port}/v/{{key}}", schema="v long, filler string"),
        )


@contextmanager
def over_postgres(server: PostgresServer) -> Iterator[Outside]:
    sql = f"SELECT k AS id, 7 * k AS v, '{FILLER}' AS filler FROM unnest($1::int8[]) AS k"
    with Proxy(("127.0.0.1", server.port)) as proxy:

        def make(host: str) -> Enricher:
            dsn = server.tcp_dsn().replace(f"127.0.0.1:{server.port}", f"{host}:{proxy.port}")
            return PostgresEnricher(dsn, query=sql, key="id", max_batch=20)

        yield Outside("postgres", proxy, make)


# -- jobs of a Spark


ROWS = 2000

CAPACITY = 50

RETRY = Retry(max_attempts=60, backoff=FixedBackoff(0.05))


def numbers(spark: SparkSession) -> DataFrame:
    """Keys that recur, and nulls, in two partitions."""
    return spark.range(0, ROWS, numPartitions=2).selectExpr("id AS n", "IF(id % 11 = 0, NULL, id % 700) AS id")


def expected() -> list[tuple[Any, ...]]:
    found = row(0).keys()
    keys = [None if n % 11 == 0 else n % 700 for n in range(ROWS)]
    return [(n, key, *(None if key is None else row(key)[name] for name in found)) for n, key in enumerate(keys)]


@contextmanager
def leaves_nothing(spark: SparkSession, outside: Outside) -> Iterator[None]:
    """Behind it the workers are as they were, and have no more connections than their pools keep."""
    with setting(spark, BATCH_SIZE, 300):
        yield
    outside.proxy.pass_on()
    assert_workers_are_clean(spark)
    kept = 2 * (4 if outside.name == "postgres" else CAPACITY)
    wait_until(lambda: outside.proxy.open <= kept, GONE, "no more connections than are of use")
