"""Clocks: seconds as a float outside, whole milliseconds inside."""

from __future__ import annotations

import time

import pytest

from asyncio_operator.clock import milliseconds
from asyncio_operator.errors import ConfigurationError
from asyncio_operator.testing.time import ManualClock


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
    with pytest.raises(ConfigurationError, match="clock"):
        milliseconds(5)  # type: ignore[arg-type]
