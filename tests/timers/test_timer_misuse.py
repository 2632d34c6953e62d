"""Timer services given the wrong things: refused when they are made, with the remedy."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from asyncio_operator import timers
from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.state import KeyGroupRange
from asyncio_operator.timers import BatchTimerService, HeapQueues, InternalTimerService, RocksDBQueues

untyped: Any = timers


async def later(timer):
    """What would never be awaited."""


class Later:
    async def __call__(self, timer):
        """What would never be awaited."""


@pytest.mark.parametrize("service", [InternalTimerService, BatchTimerService])
@pytest.mark.parametrize("argument", ["on_event_time", "on_processing_time"])
@pytest.mark.parametrize("callback", [later, functools.partial(later), Later()], ids=["def", "partial", "object"])
def test_an_async_callback_is_refused(service, argument, callback):
    with pytest.raises(ConfigurationError, match=f"{argument}=.*async"):
        service(**{argument: callback})


@pytest.mark.parametrize("queues", ["x", HeapQueues, RocksDBQueues, 5, len])
def test_queues_that_are_none_are_refused(queues):
    with pytest.raises(ConfigurationError, match=r"queues=.*HeapQueues\("):
        untyped.InternalTimerService(queues=queues)


@pytest.mark.parametrize("service", [InternalTimerService, BatchTimerService])
def test_a_clock_that_gives_no_number_is_named(service):
    with pytest.raises(StateError, match=r"clock .*seconds"):
        service(clock=lambda: None).current_processing_time()


def test_two_services_do_not_share_sets_on_disk(tmp_path):
    queues = RocksDBQueues(tmp_path / "timers")
    service = InternalTimerService(queues=queues)
    service.current_key = "k"
    service.register_event_time_timer(5)
    with pytest.raises(StateError, match=r"event_time_timers.*close\(\)"):
        InternalTimerService(queues=queues)
    queues.close()
    again = InternalTimerService(queues=queues)
    assert [timer.timestamp for timer in again.event_time_timers()] == [5]
    queues.close()


@pytest.mark.parametrize("data", [b"junk", b"", None, b"\x00"])
def test_T5_junk_is_no_timer_snapshot(data):
    with pytest.raises(StateError, match=r"timers? .*key group 3"):
        InternalTimerService().restore(3, data)


def test_all_key_groups_are_the_default(tmp_path):
    for queues in (HeapQueues(max_parallelism=64), RocksDBQueues(tmp_path / "timers", max_parallelism=64)):
        assert queues.key_groups == KeyGroupRange(0, 63)
    assert HeapQueues().key_groups == KeyGroupRange(0, 127)
