"""Names of the parts of a key, to which `on` is matched; coroutines in a running loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from asyncio_operator import ConfigurationError, Enricher
from asyncio_operator.testing import FakeService
from enrichers.http import HttpEnricher
from enrichers.redis import RedisEnricher
from enrichers.threads import run_in_thread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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


@pytest.fixture(params=[over_http, in_redis])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


@pytest.fixture(scope="module")
def flights(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("JFK", 5), ("EWR", 6)], "origin string, hour int").coalesce(1)


def order(flights: DataFrame, enricher: Enricher, on: Any) -> list[str]:
    """The columns of a key, in the order in which the enricher gets their values."""
    from asyncio_operator.spark.driver.columns import key_positions
    from asyncio_operator.spark.enrich import enrich

    enrich(flights, enricher, on=on)
    return [flights.columns[position] for position in key_positions(flights.schema, enricher, on)]


@pytest.mark.spark
def test_the_parts_have_names_and_any_type(make: Make) -> None:
    assert make(("origin", "hour")).key_schema() == pa.schema([("origin", pa.null()), ("hour", pa.null())])
    assert make(("key",)).key_schema() == pa.schema([("key", pa.null())])


@pytest.mark.parametrize(
    "on", [["origin", "hour"], ["hour", "origin"], ("hour", "origin"), {"hour": "hour", "origin": "origin"}]
)
@pytest.mark.spark
def test_X1_a_key_is_matched_by_the_names_of_its_parts_in_any_order(make: Make, flights: DataFrame, on: Any) -> None:
    assert order(flights, make(("origin", "hour")), on) == ["origin", "hour"]
    assert order(flights, make(("hour", "origin")), on) == ["hour", "origin"]


@pytest.mark.spark
def test_a_mapping_gives_columns_other_names(make: Make, flights: DataFrame) -> None:
    assert order(flights, make(("place", "at")), {"hour": "at", "origin": "place"}) == ["origin", "hour"]
    assert order(flights, make(("key",)), {"origin": "key"}) == ["origin"]


@pytest.mark.spark
def test_other_names_are_matched_by_position_and_one_column_to_one_part(make: Make, flights: DataFrame) -> None:
    assert order(flights, make(("place", "at")), ["hour", "origin"]) == ["hour", "origin"]
    assert order(flights, make(("key",)), "hour") == ["hour"]


@pytest.mark.parametrize(
    ("parts", "on", "told"),
    [
        (("origin", "hour"), "origin", "on has 1 columns, ['origin']; the enricher's key has 2: ['origin', 'hour']"),
        (("key",), ["origin", "hour"], "on has 2 columns, ['origin', 'hour']; the enricher's key has 1: ['key']"),
        (("origin", "hour"), ["origin", "huor"], "on names 'huor', which is not a column of the DataFrame; did you"),
        (("place", "at"), {"origin": "place", "hour": "time"}, "the enricher's key columns ['place', 'at'], each once"),
        (("place", "at"), {"place": "origin", "at": "hour"}, "It is the wrong way round; write on={'origin': 'place'"),
    ],
)
@pytest.mark.spark
def test_X4_wrong_names_are_told_on_the_driver(
    make: Make, flights: DataFrame, parts: tuple[str, ...], on: Any, told: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        order(flights, make(parts), on)
    assert told in str(caught.value)


@pytest.mark.spark
def test_X4_a_column_that_can_be_no_key_is_still_told(make: Make, flights: DataFrame) -> None:
    with pytest.raises(ConfigurationError, match="a key must be"):
        order(flights.selectExpr("array(hour) AS key"), make(("key",)), "key")


@pytest.mark.spark
def test_the_service_gets_each_part_in_its_place(flights: DataFrame) -> None:
    from asyncio_operator.spark import enrich

    with FakeService({("JFK", 5): {"v": "JFK at 5"}, ("EWR", 6): {"v": "EWR at 6"}}) as service:
        rows = enrich(flights, over_http(("origin", "hour"), service.url), on=["hour", "origin"]).collect()
    assert [row.v for row in rows] == ["JFK at 5", "EWR at 6"]
