"""`time_left`: what a call may know of its own deadline."""

from __future__ import annotations

import asyncio

import pytest

from asyncio_operator import Retry
from asyncio_operator.enricher import time_left
from asyncio_operator.policies.retry import FixedBackoff
from tests.operator.helpers import process, virtual


async def after_a_second(value):
    await asyncio.sleep(value)
    return time_left()


@virtual
async def test_a_call_knows_the_time_that_its_timeout_leaves_it():
    assert await process(after_a_second, [0, 1, 4], timeout=5.0, capacity=1) == [5.0, 4.0, 1.0]


@virtual
async def test_a_task_of_a_call_knows_the_calls_time():
    async def in_a_task(value):
        return await asyncio.ensure_future(after_a_second(value))

    assert await process(in_a_task, [1, 2], timeout=5.0) == [4.0, 3.0]


@virtual
async def test_an_attempt_knows_the_nearer_of_its_own_limit_and_the_deadline():
    left = []

    async def fails(value):
        left.append(time_left())
        await asyncio.sleep(2.0)
        raise OSError

    with pytest.raises(Exception, match=r"timeout of 5\.0 s"):
        await process(fails, [1], timeout=5.0, attempt_timeout=4.0, retry=Retry(backoff=FixedBackoff(0)))
    assert left == [4.0, 3.0, 1.0]


@virtual
async def test_without_a_limit_there_is_no_time_left_to_tell():
    assert await process(after_a_second, [0]) == [None]
    assert time_left() is None
