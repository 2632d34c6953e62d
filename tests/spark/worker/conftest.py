"""Fixtures for tasks that run in this process, without Spark."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.spark.worker.process import this_process
from tests.spark.worker.tasks import ENDS, wait_for


@pytest.fixture(params=[True, False], ids=["ordered", "unordered"])
def ordered(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def nothing_is_left_behind() -> Iterator[None]:
    yield
    wait_for(lambda: not [one for one in threading.enumerate() if one.name == "asyncio-operator-feeder"])

    async def others() -> int:
        return len(asyncio.all_tasks()) - 1

    wait_for(lambda: asyncio.run_coroutine_threadsafe(others(), loop_thread().loop).result(ENDS) == 0)
    assert not this_process.caches._used
    assert not this_process.clients._used
