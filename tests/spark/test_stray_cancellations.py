"""O12 and X5 in a task: what a user's function cancels of others fails the task with its name, on every face.

Without Spark, on the real loop thread; the next task on the same loop works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextvars import Context
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator import AsyncWaitOperator, FunctionError
from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.spark import async_udf
from asyncio_operator.spark.rdd import PartitionTask
from tests.operator.helpers import cancel_all
from tests.spark.helpers import wait_until
from tests.spark.worker.tasks import chained, task_of

Function = Callable[[Any], Any]
Face = Callable[[Function], Iterator[Any]]


async def in_the_call(key: Any) -> Any:
    if key == 3:
        cancel_all()
        await asyncio.sleep(0)
    return None


async def in_a_task_of_the_call(key: Any) -> Any:
    async def inner() -> None:
        cancel_all()

    if key == 3:
        await asyncio.gather(inner())
    return None


async def by_a_timer(key: Any) -> Any:
    if key == 3:
        asyncio.get_running_loop().call_later(0.01, cancel_all)
    await asyncio.Event().wait()


def cancel_all_on(loop: asyncio.AbstractEventLoop) -> None:
    # In a context of its own, as that of a thread which a client has started.
    Context().run(lambda: loop.call_soon_threadsafe(cancel_all))


async def in_another_thread(key: Any) -> Any:
    """It is unknown who cancelled it."""
    if key == 3:
        await asyncio.to_thread(cancel_all_on, asyncio.get_running_loop())
    await asyncio.Event().wait()


def keys() -> pa.Array:
    return pa.array(range(6), pa.int64())


def enriched(*functions: Function, **options: Any) -> Iterator[Any]:
    tasks = [task_of("x", function, **options) for function in functions]
    return chained(tasks, [pa.RecordBatch.from_arrays([keys()], ["id"])])


async def found(key: Any) -> Any:
    return {"x": key}


FACES: dict[str, Face] = {
    "enrich": enriched,
    "enrich, managed": partial(enriched, capacity=6, attempt_timeout=60.0),
    "enrich, failures hidden": partial(enriched, fail=False),
    "enrich, first of a chain": lambda function: enriched(function, found),
    "enrich, last of a chain": lambda function: enriched(found, found, function),
    "map_partitions": lambda function: PartitionTask(function, {"on_error": "skip"})(range(6)),
    "the operator": lambda function: AsyncWaitOperator(function)(range(6)),
    "async_udf": lambda function: async_udf("long", on_error="null")(function)._task(iter([keys()])),
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("function", [in_the_call, in_a_task_of_the_call, by_a_timer, in_another_thread])
def test_O12_whoever_cancels_all_tasks_of_the_loop_is_named(face: str, function: Function) -> None:
    with pytest.raises(FunctionError, match="may cancel only tasks that it has started itself") as told:
        list(FACES[face](function))
    if face != "the operator" or function is not in_another_thread:
        assert function.__name__ in str(told.value)
    if function is in_the_call:
        assert "in the call for element" in str(told.value)

    async def null(key: Any) -> Any:
        return None

    assert len(list(FACES[face](null))) > 0

    async def others() -> int:
        return len(asyncio.all_tasks()) - 1

    wait_until(
        lambda: asyncio.run_coroutine_threadsafe(others(), loop_thread().loop).result(20) == 0, 20, "no task is left"
    )


class Shop:
    """Has a password, and shows it."""

    def __repr__(self) -> str:
        return "Shop('hunter2')"

    async def asks(self, key: int, password: str = "") -> None:
        cancel_all()


@pytest.mark.parametrize("asks", [Shop().asks, partial(Shop().asks, password="hunter2")], ids=["method", "partial"])
def test_X5_the_name_of_a_function_shows_nothing_that_it_holds(asks: Any) -> None:
    with pytest.raises(FunctionError, match=r"Shop\.asks") as told:
        list(PartitionTask(asks, {})(range(3)))
    assert "hunter2" not in str(told.value)
