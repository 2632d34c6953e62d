"""A function that holds the event loop is reported; one that awaits is not."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator
from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.loop.watch import HELD, LOOKS, LoopWatch


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


def test_what_holds_the_loop_is_logged_once_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    release.clear()
    begun = threading.Event()

    def blocking_client() -> None:
        begun.set()
        release.wait(10)

    async def look_up(value: int) -> None:
        blocking_client()

    def looks() -> None:
        watch = LoopWatch(loop_thread().ident, "the enricher of this test")
        for _ in range(HELD - 1):
            watch.look()
        assert not caplog.records
        for _ in range(LOOKS):
            watch.look()
        LoopWatch(loop_thread().ident, "the enricher of this test").look()

    with caplog.at_level(logging.WARNING, "asyncio_operator"):
        run(look_up, looks, begun)
    (record,) = caplog.records
    assert "the enricher of this test holds the event loop" in record.getMessage()
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
        watch = LoopWatch(loop_thread().ident, "an enricher that awaits")
        for _ in range(2 * LOOKS):
            watch.look()

    with caplog.at_level(logging.WARNING, "asyncio_operator"):
        run(look_up, looks, begun)
    assert not caplog.records
