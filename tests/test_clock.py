"""Clocks: seconds as a float outside, whole milliseconds inside."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest

from asyncio_operator import AsyncWaitOperator
from asyncio_operator.checks import milliseconds
from asyncio_operator.errors import ConfigurationError
from asyncio_operator.lookup import Lookup
from asyncio_operator.state import HeapStateBackend, KeyGroupRange, RocksDBStateBackend
from asyncio_operator.testing import FakeEnricher
from asyncio_operator.testing.time import ManualClock
from asyncio_operator.timers import BatchTimerService, HeapQueues, InternalTimerService, TimerServiceManager


def test_a_manual_clock_moves_when_told_to():
    clock = ManualClock(5.0)
    assert clock() == 5.0
    assert clock.advance(1.5) == 6.5
    clock.set(-3)
    assert clock() == -3.0
    for wrong in (-1, float("nan")):
        with pytest.raises(ConfigurationError, match="set"):
            clock.advance(wrong)
    assert clock() == -3.0


def test_milliseconds_are_rounded():
    clock = ManualClock(1.0006)
    assert milliseconds(clock)() == 1001
    clock.set(-0.0006)
    assert milliseconds(clock)() == -1


def test_none_is_the_clock_of_the_system():
    before = time.time()
    assert abs(milliseconds(None)() - before * 1000) < 60_000


async def waits():
    return 1.0


class Waits:
    async def __call__(self):
        return 1.0


async def echo(value):
    return value


@pytest.mark.parametrize(
    "clock", [5, waits, Waits(), lambda now: now], ids=["number", "async", "async-call", "arguments"]
)
def test_E10_a_clock_is_a_plain_function_without_arguments(clock, tmp_path):
    queues = HeapQueues(KeyGroupRange(0, 0), 1)
    makers: tuple[Callable[..., object], ...] = (
        HeapStateBackend,
        partial(RocksDBStateBackend, tmp_path / "state"),
        partial(InternalTimerService, queues=queues),
        BatchTimerService,
        partial(TimerServiceManager(queues).service, "name"),
        partial(AsyncWaitOperator, echo),
        partial(Lookup, FakeEnricher({"a": {"n": 1}})),
    )
    for make in makers:
        with pytest.raises(ConfigurationError, match=r"^clock is "):
            make(clock=clock)
