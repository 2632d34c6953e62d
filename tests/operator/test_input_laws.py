"""O8, O17: what a run owes the input that it reads: one cancellation, its clean-up, and a context of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Generator
from contextvars import ContextVar
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator, Retry
from tests.operator.helpers import collect, forever, now, same, virtual

tenant: ContextVar[Any] = ContextVar("tenant")

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "retry": {"retry": Retry()},
    "attempt_timeout": {"attempt_timeout": 10},
    "key_ordered": {"mode": "key_ordered", "key": lambda value: value % 2},
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    return WAYS[request.param]


async def read_two(outputs: Any, how: str) -> None:
    """Read two outputs, wait while the input waits, and end the run in this way."""
    await anext(outputs)
    await anext(outputs)
    await asyncio.sleep(0.1)
    if how == "cancelled":
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(outputs), 1)
    else:
        await outputs.aclose()


@pytest.mark.parametrize("how", ["closed", "cancelled"])
@virtual
async def test_O8_an_input_is_cancelled_once_and_may_clean_up(how, way):
    cleaned: list[Any] = []

    async def elements() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
            await forever()
        finally:
            try:
                await asyncio.sleep(0.2)
            finally:
                cleaned.append(now())

    begun = now()
    outputs = AsyncWaitOperator(same, capacity=2, **way).process(elements())
    await read_two(outputs, how)
    assert cleaned == [pytest.approx(begun + (1.3 if how == "cancelled" else 0.3))]


# -- the context in which it is read


@pytest.mark.parametrize("ending", ["at its end", "early"])
@pytest.mark.parametrize("asynchronous", [False, True])
@virtual
async def test_O17_an_input_is_read_in_one_context_so_that_it_may_reset_what_it_sets(asynchronous, ending, way):
    seen: list[Any] = []

    def elements() -> Generator[int, None, None]:
        token = tenant.set("of the input")
        try:
            for number in range(20):
                yield number
                seen.append(tenant.get())
        finally:
            tenant.reset(token)
            seen.append(tenant.get())

    async def later() -> AsyncIterator[int]:
        with contextlib.closing(elements()) as numbers:
            for number in numbers:
                yield number
                await asyncio.sleep(0.001)

    async def call(value: int) -> int:
        tenant.set(value)
        await asyncio.sleep(0.01)
        return value

    tenant.set("of the consumer")
    outputs = AsyncWaitOperator(call, capacity=3, buffer=5, **way).process(later() if asynchronous else elements())
    if ending == "early":
        await anext(outputs)
        await outputs.aclose()
    else:
        assert await collect(outputs) == list(range(20))
    assert seen.pop() == "of the consumer"
    assert set(seen) == {"of the input"}
