"""The timer service: T1 to T5, over heap and RocksDB queues, and what it refuses."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.state import KeyGroupRange, key_group
from asyncio_operator.state.serializers import BUILTIN
from asyncio_operator.testing.time import ManualClock
from asyncio_operator.timers import (
    BatchTimerService,
    HeapQueues,
    InternalTimerService,
    RocksDBQueues,
    Timer,
    TimerServiceManager,
)
from asyncio_operator.timers.queues import deserialize_timer, serialize_timer


class Fixture:
    """A service that notes what fires, with the current key and the watermark at that moment."""

    def __init__(self, queues):
        self.clock = ManualClock()
        self.fired = []
        self.react = lambda kind, timer: None
        self.service = InternalTimerService(
            on_event_time=lambda timer: self.note("event", timer),
            on_processing_time=lambda timer: self.note("processing", timer),
            clock=self.clock,
            queues=queues,
        )

    def note(self, kind, timer):
        assert self.service.current_key == timer.key
        assert type(self.service.current_key) is type(timer.key)
        self.fired.append((kind, *timer))
        self.react(kind, timer)

    def take(self):
        fired, self.fired = self.fired, []
        return fired


@pytest.fixture
def world(make_queues):
    return Fixture(make_queues())


def test_T1_unique_per_kind_key_namespace_and_timestamp(world):
    service = world.service
    for key in (1, True, "1", 1):
        service.current_key = key
        for namespace in (None, "", 1, True, None):
            service.register_event_time_timer(5, namespace)
            service.register_processing_time_timer(5, namespace)
    service.delete_event_time_timer(6)
    service.delete_event_time_timer(5, "other")
    service.current_key = "unknown"
    service.delete_processing_time_timer(5)
    service.advance_watermark(5)
    fired = world.take()
    assert len(fired) == 12
    assert {(kind, at, repr(key), repr(space)) for kind, at, key, space in fired} == {
        ("event", 5, key, space) for key in ("1", "True", "'1'") for space in ("None", "''", "1", "True")
    }
    service.advance_watermark(5)
    assert world.take() == []
    world.clock.set(0.005)
    service.advance_processing_time()
    assert len(world.take()) == 12


def test_T4_one_waking_time_that_of_the_earliest(world):
    service = world.service
    assert service.next_processing_time() is None
    service.current_key = "a"
    service.register_processing_time_timer(2000)
    assert service.next_processing_time() == 2000
    service.register_processing_time_timer(1000)
    assert service.next_processing_time() == 1000
    world.clock.set(0.9994)
    service.advance_processing_time()
    assert world.take() == []
    world.clock.set(0.9996)
    assert service.current_processing_time() == 1000
    service.advance_processing_time()
    assert world.take() == [("processing", 1000, "a", None)]
    assert service.next_processing_time() == 2000
    service.delete_processing_time_timer(2000)
    assert service.next_processing_time() is None


def test_T4_a_pass_has_one_time_so_a_periodic_timer_lets_it_end(world):
    service = world.service

    def react(kind, timer):
        assert len(world.fired) < 10, "the pass does not end"
        service.register_processing_time_timer(timer.timestamp + 1)
        world.clock.advance(0.002)

    world.react = react
    service.current_key = "a"
    service.register_processing_time_timer(0)
    service.advance_processing_time()
    assert [at for _, at, _, _ in world.take()] == [0]
    service.advance_processing_time()
    assert [at for _, at, _, _ in world.take()] == [1, 2]


@pytest.mark.parametrize("error", [LookupError, StopIteration])
def test_a_callback_that_raises_ends_the_pass_and_loses_only_its_timer(world, error):
    service = world.service

    def react(kind, timer):
        if timer.timestamp == 2:
            raise error("broken")

    world.react = react
    service.current_key = "a"
    for timestamp in (1, 2, 3):
        service.register_event_time_timer(timestamp)
    service.register_processing_time_timer(2)
    with pytest.raises(error):
        service.advance_watermark(10)
    service.advance_watermark(10)
    assert [at for _, at, _, _ in world.take()] == [1, 2, 3]
    world.clock.advance(1)
    with pytest.raises(error):
        service.advance_processing_time()


@pytest.mark.parametrize(
    ("groups", "max_parallelism"),
    [(KeyGroupRange(10, 32766), 32767), (KeyGroupRange(2, 5), 6)],
    ids=["most", "few"],
)
def test_T5_a_snapshot_of_a_key_group_has_its_timers_whatever_the_range(groups, max_parallelism, make_queues):
    service = InternalTimerService(queues=make_queues(groups, max_parallelism))
    keys = [key for key in range(40) if key_group(key, max_parallelism) in groups]
    for key in keys:
        service.current_key = key
        service.register_event_time_timer(key, "event")
        service.register_processing_time_timer(key, "processing")
    middle = (groups.start + groups.end) // 2
    for half in (KeyGroupRange(groups.start, middle), KeyGroupRange(middle + 1, groups.end)):
        world = Fixture(make_queues(half, max_parallelism))
        inside = [key for key in keys if key_group(key, max_parallelism) in half]
        for group in {key_group(key, max_parallelism) for key in inside} | {half.start, half.end}:
            world.service.restore(group, service.snapshot(group))
        world.clock.set(1)
        world.service.advance_watermark(1000)
        world.service.advance_processing_time()
        assert world.take() == [(kind, key, key, kind) for kind in ("event", "processing") for key in inside]


def test_T5_groups_and_data_that_do_not_belong_are_refused(make_queues):
    service = InternalTimerService(queues=make_queues(KeyGroupRange(0, 63), 128))
    other = InternalTimerService(queues=make_queues(KeyGroupRange(0, 255), 256))
    wrong: Any
    for wrong in (64, -1, "0", True, 1.0, None):
        with pytest.raises(StateError, match="outside the range"):
            service.snapshot(wrong)
        with pytest.raises(StateError, match="outside the range"):
            service.restore(wrong, service.snapshot(0))
    with pytest.raises(StateError, match="max_parallelism 256"):
        service.restore(0, other.snapshot(0))
    with pytest.raises(StateError, match="key_group 1"):
        service.restore(0, service.snapshot(1))
    junk: Any
    for junk in (b"", b"junk", None, b"\x0a\x00\x00\x00\x00"):
        with pytest.raises(StateError):
            service.restore(0, junk)


def test_wrong_timers_are_refused(world):
    service = world.service
    with pytest.raises(StateError, match="current_key"):
        service.register_event_time_timer(1)
    service.current_key = "a"
    for register in (service.register_event_time_timer, service.register_processing_time_timer):
        for wrong in (1.5, None, 2**63, -(2**63) - 1, True):
            with pytest.raises(StateError, match="timestamp"):
                register(wrong)
        with pytest.raises(StateError, match="cannot be a key"):
            register(1, [1])
    with pytest.raises(StateError, match="timestamp"):
        service.advance_watermark(1.5)
    service.current_key = [1]
    with pytest.raises(StateError, match="cannot be a key"):
        service.register_event_time_timer(1)
    with pytest.raises(ConfigurationError, match="on_event_time"):
        InternalTimerService(on_event_time=5)  # type: ignore[arg-type]


def test_timers_are_listed_by_namespace(world):
    service = world.service
    service.current_key = "a"
    for namespace in (None, 1, True):
        service.register_event_time_timer(1, namespace)
        service.register_processing_time_timer(2, namespace)
    assert len(list(service.event_time_timers())) == 3
    assert [repr(timer) for timer in service.event_time_timers(namespace=None)] == [
        "Timer(timestamp=1, key='a', namespace=None)"
    ]
    assert [timer.namespace for timer in service.processing_time_timers(True)] == [True]
    assert list(service.processing_time_timers(1.0)) == []


keys = st.integers() | st.text(max_size=3) | st.booleans() | st.floats() | st.tuples(st.integers())
timers = st.builds(Timer, st.integers(-(2**63), 2**63 - 1), keys, st.none() | keys)


@given(timers, timers)
def test_P6_timers_are_equal_if_their_bytes_are_and_sort_by_timestamp(first, second):
    a, b = serialize_timer(first), serialize_timer(second)
    assert serialize_timer(deserialize_timer(a)) == a
    assert deserialize_timer(a) == first
    assert (a == b) == (first == second)
    assert a != b or hash(first) == hash(second)
    if first.timestamp != second.timestamp:
        assert (a < b) == (first.timestamp < second.timestamp)


limits = st.none() | st.integers(1, 4)
steps = st.lists(
    st.tuples(st.sampled_from(["register", "delete", "watermark", "clock"]), st.integers(-3, 12), st.integers(0, 3))
    | st.tuples(st.just("limit"), limits, st.just(0)),
    max_size=40,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(taken=steps)
def test_T1_T2_T3_T4_T10_against_two_sets(make_queues, taken):
    """Each pass, bounded or not, is held against the timers that are due. What fires at an even time below 8 registers
    a timer three later."""
    world, limit = Fixture(make_queues()), None
    model: dict[str, set[tuple[int, int]]] = {"event": set(), "processing": set()}
    service, now = world.service, {"event": -(2**63), "processing": 0}

    def react(kind, timer):
        assert kind == "processing" or service.current_watermark == now["event"]
        if timer.timestamp % 2 == 0 and timer.timestamp < 8:
            getattr(service, f"register_{kind}_time_timer")(timer.timestamp + 3)

    world.react = react
    for action, timestamp, key in taken:
        service.current_key = key
        for kind in model if action in ("register", "delete") else ():
            getattr(service, f"{action}_{kind}_time_timer")(timestamp)
            (model[kind].add if action == "register" else model[kind].discard)((timestamp, key))
        if action == "limit":
            limit = timestamp
        elif action in ("watermark", "clock"):
            kind = "event" if action == "watermark" else "processing"
            older, now[kind] = timestamp < now[kind], max(now[kind], timestamp)
            world.clock.set(now["processing"] / 1000)
            more = (
                service.advance_watermark(timestamp, limit)
                if kind == "event"
                else service.advance_processing_time(limit)
            )
            check_pass(model[kind], world.take(), now[kind], 0 if older and kind == "event" else limit, more)
    assert set(service.event_time_timers()) == {Timer(*timer) for timer in model["event"]}


def check_pass(model, fired, now, limit, more):
    """Takes what has fired out of the model: each was the first, none too much, and those that are left are said."""
    for _, timestamp, key, _ in fired:
        assert timestamp == min(at for at, _ in model) <= now
        model.remove((timestamp, key))
        if timestamp % 2 == 0 and timestamp < 8:
            model.add((timestamp + 3, key))
    due = any(at <= now for at, _ in model)
    assert more == (limit not in (None, 0) and due)
    assert len(fired) == limit if due and limit is not None else limit is None or len(fired) <= limit
    assert not (due and limit is None)


def test_T10_a_limit_is_an_int_from_1(world):
    for service in (world.service, BatchTimerService(), TimerServiceManager()):
        wrong: Any
        for wrong in (0, -1, True, 1.0, "1"):
            with pytest.raises(ConfigurationError, match="limit"):
                service.advance_watermark(5, limit=wrong)
            with pytest.raises(ConfigurationError, match="limit"):
                service.advance_processing_time(limit=wrong)
        assert service.current_watermark == -(2**63)


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
    with pytest.raises(ConfigurationError, match=f"{argument} is .*; it must take one argument, the timer"):
        service(**{argument: lambda: None})


@pytest.mark.parametrize("queues", ["x", HeapQueues, RocksDBQueues, 5, len])
def test_queues_that_are_none_are_refused(queues):
    with pytest.raises(ConfigurationError, match=r"queues is .*HeapQueues\("):
        InternalTimerService(queues=queues)


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
