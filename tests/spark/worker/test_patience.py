"""X7 where calls and `close` ignore their cancellation: how long the end of a task may take, on every face."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from asyncio_operator import AsyncFunction
from asyncio_operator.policies.shutdown import TASK_GRACE_PERIOD
from asyncio_operator.spark import async_udf
from asyncio_operator.spark.driver.build_task import EnrichOptions, enrich_task
from asyncio_operator.spark.rdd import PartitionTask
from asyncio_operator.spark.worker.links import ChainTask
from enrichers import FunctionEnricher
from tests.spark.worker.tasks import wait_for


class Deaf(AsyncFunction[Any, Any]):
    """The first call gives a result; all others, and `close`, ignore a cancellation until they are let go: all copies
    of it together, for a task makes one."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.running: set[object] = set()

    async def hang(self) -> None:
        this = object()
        self.running.add(this)
        while not self.let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)
        self.running.remove(this)

    async def invoke(self, value: Any) -> Any:
        if value:
            await self.hang()
        return value

    async def close(self) -> None:
        await self.hang()


def of_rows(task: Callable[[Any], Iterator[Any]], *names: str) -> Iterator[Any]:
    keys = pa.array(range(4), pa.int64())
    return task(iter([pa.RecordBatch.from_arrays([keys], ["id"]) if names else keys]))


async def same(key: int) -> Any:
    return {"x": key}


def enriched(function: Deaf) -> Iterator[Any]:
    async def look_up(key: int) -> Any:
        return {"x": await function.invoke(key)}

    # One that ignores its cancellation together with its copies cannot travel.
    task, _ = enrich_task(StructType().add("id", "long"), FunctionEnricher(same, "x long"), EnrichOptions(on="id"))
    deaf = replace(task, enricher=FunctionEnricher(look_up, "x long"), fingerprint="deaf")
    return of_rows(ChainTask([deaf]), "id")


FACES: dict[str, Callable[[Deaf], Iterator[Any]]] = {
    "enrich": enriched,
    "map_partitions": lambda function: PartitionTask(function, {})(range(4)),
    "async_udf": lambda function: of_rows(async_udf("long")(function)._task),
}


@pytest.mark.usefixtures("nothing_is_left_behind")
@pytest.mark.parametrize("face", FACES)
def test_X7_every_face_has_that_grace(face: str, caplog: pytest.LogCaptureFixture) -> None:
    function = Deaf()
    outputs: Any = FACES[face](function)
    next(outputs)
    with caplog.at_level(logging.ERROR, "asyncio_operator"), contextlib.suppress(TimeoutError):
        outputs.close()
    assert f"ignored its cancellation for the grace period of {TASK_GRACE_PERIOD} s and is left behind" in caplog.text
    function.let_go.set()
    wait_for(lambda: not function.running)
