"""Timer services given the wrong things: refused when they are made, with the remedy."""

from __future__ import annotations

import functools
from typing import Any, cast

import pytest

from asyncio_operator import timers
from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.state import KeyGroupRange, key_group
from asyncio_operator.state.serializers import BUILTIN
from asyncio_operator.timers import MAX_TIMESTAMP, BatchTimerService, HeapQueues, InternalTimerService, RocksDBQueues

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
    with pytest.raises(ConfigurationError, match=f"{argument} is .*async"):
        service(**{argument: callback})


@pytest.mark.parametrize("queues", ["x", HeapQueues, RocksDBQueues, 5, len])
def test_queues_that_are_none_are_refused(queues):
    with pytest.raises(ConfigurationError, match=r"queues=.*HeapQueues\("):
        untyped.InternalTimerService(queues=queues)


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


def test_all_key_groups_are_the_default(tmp_path):
    for queues in (HeapQueues(max_parallelism=64), RocksDBQueues(tmp_path / "timers", max_parallelism=64)):
        assert queues.key_groups == KeyGroupRange(0, 63)
    assert HeapQueues().key_groups == KeyGroupRange(0, 127)


@pytest.mark.parametrize("cache_size", [0, -1, True, 1.5])
def test_a_wrong_cache_size_is_refused_when_the_queues_are_made(cache_size, tmp_path):
    with pytest.raises(ConfigurationError, match="cache_size is"):
        RocksDBQueues(tmp_path, cache_size=cache_size)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", [5, ["x"], [5], [b"x"], None, {b"x": 1}], ids=repr)
@pytest.mark.parametrize("kind", ["event", "processing"])
def test_T5_a_timer_snapshot_of_another_body_is_refused_and_adds_nothing(kind, wrong):
    service = InternalTimerService()
    service.current_key = "k"
    group = key_group("k", 128)
    service.register_event_time_timer(1)
    body = {**BUILTIN.deserialize(service.snapshot(group)), kind: wrong}
    target = InternalTimerService()
    with pytest.raises(StateError, match="snapshot"):
        target.restore(group, BUILTIN.serialize(body))
    assert not [*target.event_time_timers(), *target.processing_time_timers()]


def test_T6_a_refused_key_leaves_none_and_the_timers_of_the_old_one_wait():
    fired = []
    service = BatchTimerService(on_event_time=lambda timer: fired.append((timer.timestamp, service.current_key)))
    service.current_key = "a"
    service.register_event_time_timer(1)
    with pytest.raises(StateError, match="cannot be a key"):
        service.current_key = [1]
    assert service.current_key is None
    for use in (service.register_event_time_timer, service.delete_event_time_timer):
        with pytest.raises(StateError, match="current_key"):
            use(2)
    assert fired == []
    service.current_key = "b"
    assert fired == [(1, "a")]
    assert service.current_key == "b"


def test_T6_after_a_refused_key_the_last_timers_still_fire_for_the_old_one():
    fired: list[Any] = []

    def on_event_time(timer):
        service.current_key = timer.key
        service.register_event_time_timer(5)
        fired.append((timer.key, service.current_key))

    service = BatchTimerService(on_event_time=on_event_time)
    service.current_key = "a"
    service.register_event_time_timer(1)
    with pytest.raises(StateError, match="cannot be a key"):
        service.current_key = cast(Any, None)
    service.advance_watermark(MAX_TIMESTAMP)
    assert fired == [("a", "a")]
    assert service.current_key is None
