"""Watermark generators: where the watermark stands after the elements seen, and when an input is idle."""

from __future__ import annotations

import math
import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import Watermark
from asyncio_operator.errors import ConfigurationError
from asyncio_operator.testing import ManualClock
from asyncio_operator.watermarks import BoundedOutOfOrderness, MonotonousTimestamps

timestamps = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 10_000)


@given(st.lists(timestamps), st.integers(0, 10_000))
def test_it_is_the_largest_timestamp_less_the_delay_less_one(seen, delay):
    generator = BoundedOutOfOrderness(timedelta(milliseconds=delay))
    assert generator.current_watermark() == -(2**63)
    for place, timestamp in enumerate(seen):
        before = generator.current_watermark()
        generator.on_event(timestamp)
        assert generator.current_watermark() == max(-(2**63), max(seen[: place + 1]) - delay - 1)
        assert generator.current_watermark() >= before


@given(st.lists(st.integers(0, 10_000), min_size=1), st.integers(0, 50))
def test_no_element_within_the_delay_is_late(seen, delay):
    generator = BoundedOutOfOrderness(delay / 1000)
    largest = seen[0]
    for timestamp in seen:
        if timestamp >= largest - delay:
            assert timestamp > generator.current_watermark()
        generator.on_event(timestamp)
        largest = max(largest, timestamp)


def test_monotonous_timestamps_have_no_delay():
    generator = MonotonousTimestamps()
    assert generator.current_watermark() == -(2**63)
    for timestamp, watermark in ((1000, 999), (1000, 999), (2500, 2499)):
        generator.on_event(timestamp)
        assert generator.current_watermark() == watermark


@pytest.mark.parametrize("make", [lambda **more: BoundedOutOfOrderness(1, **more), MonotonousTimestamps])
def test_an_input_is_idle_when_no_element_has_come_for_a_while(make):
    clock = ManualClock()
    generator = make(idle_after=timedelta(seconds=5), clock=clock)
    assert not generator.is_idle()
    clock.advance(4.9)
    assert not generator.is_idle()
    clock.advance(0.1)
    assert generator.is_idle()
    generator.on_event(7000)
    watermark = generator.current_watermark()
    assert not generator.is_idle()
    clock.advance(5)
    assert generator.is_idle()
    assert generator.current_watermark() == watermark


def test_without_idle_after_it_is_never_idle_and_asks_no_clock():
    def forbidden():
        raise AssertionError("nobody should ask")

    generator = BoundedOutOfOrderness(1, clock=forbidden)
    generator.on_event(5)
    assert not generator.is_idle()


@pytest.mark.parametrize("timestamp", [None, 1.5, "5", True])
def test_a_timestamp_that_is_no_int_is_refused_and_changes_nothing(timestamp):
    generator = BoundedOutOfOrderness(0)
    for takes in (generator.on_event, Watermark):
        with pytest.raises(ConfigurationError, match=f"timestamp is {timestamp!r}; it must be an int, milliseconds"):
            takes(timestamp)
    assert generator.current_watermark() == -(2**63)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"delay": -1}, "delay is -1;"),
        ({"delay": math.nan}, "delay is nan;"),
        ({"delay": None}, "delay is None;"),
        ({"delay": 1, "idle_after": 0}, "idle_after is 0;"),
        ({"delay": 1, "idle_after": -1}, "idle_after is -1;"),
        ({"delay": 1, "clock": 5}, "clock is 5;"),
    ],
)
def test_a_wrong_value_is_named(arguments, message):
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        BoundedOutOfOrderness(**arguments)


def test_it_goes_on_in_another_process():
    generator = BoundedOutOfOrderness(1)
    generator.on_event(5000)
    copy = pickle.loads(pickle.dumps(generator))
    copy.on_event(4000)
    assert copy.current_watermark() == 3999
