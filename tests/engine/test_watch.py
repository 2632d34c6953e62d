"""A function that holds the event loop is reported; one that awaits is not."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator
from asyncio_operator.engine import watch as watch_module
from asyncio_operator.engine.lanes import Lanes
from asyncio_operator.engine.watch import HELD, LOOKS, LoopWatch
from asyncio_operator.lookup.client import Lookup
from asyncio_operator.loop.thread import loop_thread
from enrichers import FunctionEnricher


def run(function: Any, looks: Any, begun: threading.Event) -> None:
    """Look while the function runs in a lane of the loop thread."""

    async def drive() -> None:
        async for _ in AsyncWaitOperator(function).process([1]):
            pass

    run = asyncio.run_coroutine_threadsafe(drive(), loop_thread().loop)
    try:
        assert begun.wait(10)
        looks()
    finally:
        release.set()
        run.result(10)


release = threading.Event()
LANE = Lanes._work.__code__


def test_what_holds_the_loop_is_logged_once_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    release.clear()
    begun = threading.Event()

    def blocking_client() -> None:
        begun.set()
        release.wait(10)

    async def look_up(value: int) -> None:
        blocking_client()

    def looks() -> None:
        watch = LoopWatch(loop_thread()._thread.ident, "the enricher of this test", LANE)
        for _ in range(HELD - 1):
            watch.look()
        assert not caplog.records
        for _ in range(LOOKS):
            watch.look()
        LoopWatch(loop_thread()._thread.ident, "the enricher of this test", LANE).look()

    with caplog.at_level(logging.WARNING, "asyncio_operator"):
        run(look_up, looks, begun)
    (record,) = caplog.records
    assert "the enricher of this test blocked the event loop" in record.getMessage()
    assert __file__ in record.getMessage()
    assert "(look_up)" in record.getMessage()


def test_what_awaits_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    release.clear()
    begun = threading.Event()

    async def look_up(value: int) -> None:
        begun.set()
        await asyncio.to_thread(release.wait, 10)

    def looks() -> None:
        # What runs on the loop behind the start of the call has the loop back from it.
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop_thread().loop).result(10)
        watch = LoopWatch(loop_thread()._thread.ident, "an enricher that awaits", LANE)
        for _ in range(2 * LOOKS):
            watch.look()

    with caplog.at_level(logging.WARNING, "asyncio_operator"):
        run(look_up, looks, begun)
    assert not caplog.records


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "INTERVAL", 0.001)
    monkeypatch.setattr(watch_module, "_warned", set())


def blocks_until_it_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    deadline = time.monotonic() + 20
    while not caplog.records and time.monotonic() < deadline:
        pass


def ran_as_an_iterator(function: Any) -> None:
    assert list(AsyncWaitOperator(function)([1])) == [1]


def ran_on_a_loop_of_ones_own(function: Any) -> None:
    async def drive() -> list[int]:
        return [output async for output in AsyncWaitOperator(function).process([1])]

    assert asyncio.run(drive()) == [1]


def ran_by_a_lookup(function: Any) -> None:
    async def look_up(key: int) -> dict[str, int]:
        return {"v": await function(key)}

    async def drive() -> Any:
        async with Lookup(FunctionEnricher(look_up, "v int")) as lookup:
            return await lookup.get(1)

    assert asyncio.run(drive()) == {"v": 1}


@pytest.mark.parametrize("ran", [ran_as_an_iterator, ran_on_a_loop_of_ones_own, ran_by_a_lookup])
@pytest.mark.usefixtures("often")
def test_what_blocks_a_loop_is_reported_without_spark_too(ran: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def blocking_client(value: int) -> int:
        blocks_until_it_is_reported(caplog)
        return value

    with caplog.at_level(logging.WARNING, "asyncio_operator"):
        ran(blocking_client)
    (record,) = caplog.records
    assert "blocked the event loop" in record.getMessage()
    assert __file__ in record.getMessage()


def test_a_library_that_an_enricher_of_ours_calls_is_not_a_users_function() -> None:
    """A slow `pyarrow.compute.take` on a busy machine is no fault of the user's."""
    place: dict[str, Any] = {"__name__": "pyarrow.compute"}
    exec(compile("def take(then):\n    return then()", "/site-packages/pyarrow/compute.py", "exec"), place)

    def lane() -> list[Any]:
        return list(place["take"](lambda: watch_module._frames(sys._getframe(0).f_back, lane.__code__)))

    assert lane() == []
    place["__name__"] = "company.enrichers"
    assert [frame.f_code.co_name for frame in lane()] == ["take"]


@pytest.mark.usefixtures("often")
def test_X7_the_watching_thread_ends_with_the_last_run() -> None:
    async def look_up(value: int) -> int:
        return value

    ran_on_a_loop_of_ones_own(look_up)
    thread = watch_module._thread
    if thread is not None:
        thread.join(10)
        assert not thread.is_alive()
