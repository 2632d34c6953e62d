"""The manager of named timer services: T8, and T10 over several services."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.state import HeapStateBackend, KeyGroupRange, checkpoint, key_group, restore_checkpoint
from asyncio_operator.state.serializers import BUILTIN
from asyncio_operator.testing.time import ManualClock
from asyncio_operator.timers import BatchTimerService, InternalTimerService, RocksDBQueues, TimerServiceManager

names = st.sampled_from(["", "b", "a/b", "..", "ä"])
actions = (
    st.tuples(st.just("register"), names, st.integers(0, 9), st.integers(0, 3))
    | st.tuples(st.just("watermark"), st.none() | st.integers(1, 4), st.integers(0, 9), st.none())
    | st.tuples(st.just("restore"), st.none(), st.none(), st.none())
    | st.tuples(st.just("ask"), names, st.none(), st.none())
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(actions, max_size=30))
def test_T8_T10_against_a_sorted_list(make_queues, steps):
    """Timers as (name, time, key). A restore moves all of them into a new manager, where no name was asked for."""
    fired: list[tuple[str, int, Any]] = []
    model: list[tuple[str, int, int]] = []
    watermark, groups = -(2**63), KeyGroupRange(0, 3)

    def ask(name):
        asked.add(name)
        service = manager.service(
            f"n{name}", on_event_time=lambda timer: check(service, name, timer), on_processing_time=None
        )
        assert service is manager.service(f"n{name}")
        assert service.current_watermark == watermark
        return service

    def check(service, name, timer):
        assert service.current_watermark == manager.current_watermark == watermark
        fired.append((name, timer.timestamp, timer.key))

    manager, asked = TimerServiceManager(make_queues(groups, 4)), set[str]()
    for action, name, timestamp, key in steps:
        if action == "ask":
            ask(name)
        elif action == "register":
            service = ask(name)
            service.current_key = key
            service.register_event_time_timer(timestamp)
            model = sorted({*model, (name, timestamp, key)})
        elif action == "restore":
            saved = {group: manager.snapshot(group) for group in groups}
            manager, asked, watermark = TimerServiceManager(make_queues(groups, 4)), set(), -(2**63)
            for group, data in saved.items():
                manager.restore(group, data)
        else:
            # What an earlier pass left in a service that its limit did not reach stays; equal times in any order.
            limit, older = name, timestamp < watermark
            watermark = max(watermark, timestamp)
            more = manager.advance_watermark(timestamp, limit)
            due = [] if older else [timer for timer in model if timer[0] in asked and timer[1] <= timestamp]
            assert [timer[:2] for timer in fired] == [timer[:2] for timer in due[:limit]]
            assert more == (len(due) > len(fired))
            for timer in fired:
                model.remove(timer)
            fired.clear()
    asked_now = {timer for timer in model if timer[0] in asked}
    found = {
        (name, one.timestamp, one.key) for name in asked for one in manager.service(f"n{name}").event_time_timers()
    }
    assert found == asked_now


def note(fired, name, timer):
    fired.append((name, timer.timestamp))


def later(clock, seconds):
    return clock() + seconds


def test_T8_processing_time_by_name_each_with_its_own_clock(make_queues):
    clock, manager = ManualClock(1.0), TimerServiceManager(make_queues())
    fired: list[tuple[str, int]] = []
    assert manager.next_processing_time() is None
    for name, ahead in (("b", 0), ("a", 5)):
        service = manager.service(
            name,
            on_processing_time=partial(note, fired, name),
            clock=partial(later, clock, ahead),
        )
        service.current_key = "k"
        for timestamp in (3_000, 500, 900):
            service.register_processing_time_timer(timestamp)
    assert manager.next_processing_time() == 500
    assert [service is manager.service(name) for name, service in zip("ab", manager.services, strict=True)] == [
        True
    ] * 2
    assert manager.advance_processing_time(limit=2)
    assert fired == [("a", 500), ("a", 900)]
    assert manager.advance_processing_time(limit=2)
    assert not manager.advance_processing_time(limit=1)
    assert not manager.advance_processing_time()
    assert fired[2:] == [("a", 3_000), ("b", 500), ("b", 900)]
    assert manager.next_processing_time() == 3_000


def test_T8_a_checkpoint_holds_all_services_of_a_manager(make_queues, tmp_path):
    """Two managers, each of half of the key groups, become one; a name that is not asked for goes on to the next."""
    halves = KeyGroupRange(0, 63), KeyGroupRange(64, 127)
    for index, groups in enumerate(halves):
        manager = TimerServiceManager(make_queues(groups))
        backend = manager.state_backend or HeapStateBackend(key_groups=groups)
        for name in ("windows", "sessions"):
            service = manager.service(name)
            for key in [key for key in range(40) if key_group(key, 128) in groups]:
                service.current_key = key
                service.register_event_time_timer(key, "w")
                service.register_processing_time_timer(key)
        checkpoint(tmp_path / f"first-{index}", backend, manager)

    paths, fired = [tmp_path / "first-0", tmp_path / "first-1"], []
    manager = TimerServiceManager()
    for step in range(2):
        manager = TimerServiceManager(make_queues())
        backend = manager.state_backend or HeapStateBackend()
        restore_checkpoint(paths, backend, manager)
        assert not manager.advance_watermark(2**62)
        paths = [tmp_path / f"again-{step}"]
        checkpoint(paths[0], backend, manager)
        with pytest.raises(StateError, match=r"has timers already|was called before"):
            restore_checkpoint(paths, manager.state_backend or HeapStateBackend(), manager)
    sessions = manager.service("sessions", on_event_time=lambda timer: fired.append(timer.key))
    assert sorted(timer.key for timer in sessions.processing_time_timers()) == [*range(40)]
    manager.advance_watermark(2**62)
    assert fired == [*range(40)]
    if manager.state_backend is None:
        assert "sessions; key" not in repr(manager)
        assert "windows (not asked for)" in repr(manager)
    with pytest.raises(StateError, match="timer services"):
        restore_checkpoint(paths, HeapStateBackend(), InternalTimerService())
    with pytest.raises(ConfigurationError, match=r"cannot share a checkpoint|give that backend"):
        checkpoint(tmp_path / "other", HeapStateBackend(max_parallelism=256), manager)


def test_T8_names_are_directories_on_disk(tmp_path):
    queues = RocksDBQueues(tmp_path / "timers")
    manager = TimerServiceManager(queues)
    for name in ("..", "a/b", "x" * 64):
        service = manager.service(name)
        service.current_key = "k"
        service.register_event_time_timer(1)
    queues.close()
    assert [path.name for path in tmp_path.iterdir()] == ["timers"]
    again = TimerServiceManager(RocksDBQueues(tmp_path / "timers"))
    assert len([*again.service("a/b").event_time_timers()]) == 1
    again.queues.close()  # type: ignore[attr-defined]


def test_T8_what_is_wrong_is_refused(make_queues):
    manager = TimerServiceManager(make_queues(KeyGroupRange(0, 3), 4))
    wrong: Any
    for wrong in ("", "x" * 65, None, 5, "\ud800"):
        with pytest.raises(ConfigurationError, match="name is "):
            manager.service(wrong)
    with pytest.raises(ConfigurationError, match="queues is "):
        TimerServiceManager(BatchTimerService())  # type: ignore[arg-type]
    with pytest.raises(StateError, match="timestamp"):
        manager.advance_watermark(1.5)  # type: ignore[arg-type]
    assert manager.current_watermark == -(2**63)
    with pytest.raises(StateError, match="outside the range"):
        manager.snapshot(4)
    with pytest.raises(StateError, match="outside the range"):
        manager.restore(4, manager.snapshot(0))
    service = manager.service("a")
    service.current_key = next(key for key in range(99) if key_group(key, 4) == 1)
    service.register_event_time_timer(1)
    for wrong in (b"", b"junk", None, service.snapshot(1), BUILTIN.serialize({"format": 2, "services": {}})):
        with pytest.raises(StateError, match="not a snapshot of the timer services of key group 2"):
            manager.restore(2, wrong)
    with pytest.raises(StateError, match="key_group 1"):
        manager.restore(2, manager.snapshot(1))
    assert len([*service.event_time_timers()]) == 1
