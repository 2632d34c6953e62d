"""Names of the parts of a key, to which `on` is matched; coroutines in a running loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from asyncio_operator import Enricher
from asyncio_operator.spark.driver.columns import key_positions
from asyncio_operator.testing import FakeService
from enrichers.http import HttpEnricher
from enrichers.redis import RedisEnricher
from enrichers.threads import run_in_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


async def test_a_coroutine_is_run_to_its_end_inside_of_a_running_loop() -> None:
    ended: list[bool] = []

    async def linger() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def work() -> str:
        task = asyncio.ensure_future(linger())
        await asyncio.sleep(0)
        assert not task.done()
        return threading.current_thread().name

    assert run_in_thread(work, "test") == "asyncio-operator-test"
    assert ended == [True], "what is left behind is ended too"

    async def fail() -> None:
        raise SystemExit(7)

    with pytest.raises(SystemExit, match="7"):
        run_in_thread(fail, "test")


async def test_a_thread_that_hangs_is_not_waited_for() -> None:
    released = threading.Event()

    async def work() -> int:
        asyncio.get_running_loop().run_in_executor(None, released.wait)
        return 7

    try:
        assert run_in_thread(work, "test") == 7
    finally:
        released.set()


Make = Callable[[tuple[str, ...]], Enricher]


def over_http(parts: tuple[str, ...], url: str = "https://api.example") -> HttpEnricher:
    path = "/".join(f"{{{part}}}" for part in parts)
    return HttpEnricher(f"{url}/rows/{path}", key=parts, schema="v string")


def in_redis(parts: tuple[str, ...]) -> RedisEnricher:
    template = ":".join(f"{{{part}}}" for part in parts)
    return RedisEnricher("redis://cache.example", key_template=template, key=parts, schema="v string")


FLIGHTS = StructType([StructField("origin", StringType()), StructField("hour", IntegerType())])


@pytest.mark.parametrize("make", [over_http, in_redis])
@pytest.mark.parametrize(
    ("parts", "on", "positions"),
    [
        *((("origin", "hour"), on, (0, 1)) for on in (["origin", "hour"], ["hour", "origin"], ("hour", "origin"))),
        (("hour", "origin"), {"hour": "hour", "origin": "origin"}, (1, 0)),
        (("place", "at"), {"hour": "at", "origin": "place"}, (0, 1)),
        (("key",), {"origin": "key"}, (0,)),
        (("place", "at"), ["hour", "origin"], (1, 0)),
        (("key",), "hour", (1,)),
    ],
)
def test_X1_a_key_is_matched_by_the_names_of_its_parts_and_else_by_position(
    make: Make, parts: tuple[str, ...], on: Any, positions: tuple[int, ...]
) -> None:
    assert make(parts).key_schema() == pa.schema([(part, pa.null()) for part in parts]), "names and any type"
    assert key_positions(FLIGHTS, make(parts), on) == positions


@pytest.mark.spark
def test_the_service_gets_each_part_in_its_place(spark: SparkSession) -> None:
    from asyncio_operator.spark import enrich

    flights = spark.createDataFrame([("JFK", 5), ("EWR", 6)], FLIGHTS).coalesce(1)
    with FakeService({("JFK", 5): {"v": "JFK at 5"}, ("EWR", 6): {"v": "EWR at 6"}}) as service:
        rows = enrich(flights, over_http(("origin", "hour"), service.url), on=["hour", "origin"]).collect()
    assert [row.v for row in rows] == ["JFK at 5", "EWR at 6"]
