"""docs/operator.md promises that its programs run: they do here, one after the other, and keep what the page says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator
from asyncio_operator.testing import VirtualTimeLoop
from tests.pages import run_programs


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    return run_programs("operator.md")


def test_the_programs_of_the_page_run(page: dict[str, Any]) -> None:
    assert "with_heartbeat" in page


async def price(product: str) -> int | None:
    await asyncio.sleep(3.5 if product == "slow" else 0.1)
    return None if product == "air" else len(product)


def run(main: Any) -> Any:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def test_O8_the_heartbeat_of_the_page_keeps_results_that_are_None(page: dict[str, Any]) -> None:
    async def main() -> list[int | None]:
        return [result async for result in page["with_heartbeat"](["tea", "air", "slow"], beats)]

    beats: list[str] = []
    page["operator"] = AsyncWaitOperator(price)
    assert run(main()) == [3, None, 4]
    assert len(beats) == 3


def test_O8_the_heartbeat_of_the_page_ends_with_its_consumer(page: dict[str, Any]) -> None:
    async def main() -> tuple[int, list[int | None]]:
        step = asyncio.ensure_future(anext(page["with_heartbeat"](["slow"], [])))
        await asyncio.sleep(0.5)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        left = len(asyncio.all_tasks()) - 1
        return left, [result async for result in page["operator"].process(["tea"])]

    page["operator"] = AsyncWaitOperator(price)
    assert run(main()) == (0, [3])
