"""Timers that a state backend keeps: S9, S15 and T5 for them, and one moment with the states."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.state import (
    HeapStateBackend,
    KeyGroupRange,
    KeySerializer,
    RocksDBStateBackend,
    SnapshotReader,
    ValueStateDescriptor,
    checkpoint,
    key_group,
    restore_checkpoint,
)
from asyncio_operator.timers import (
    BackendQueues,
    HeapQueues,
    InternalTimerService,
    ProcessingTimeDriver,
    Timer,
    TimerServiceManager,
)
from tests.operator.helpers import virtual

KINDS = ("heap", "rocksdb")
ALL = KeyGroupRange(0, 127)
HALVES = KeyGroupRange(0, 63), KeyGroupRange(64, 127)
SEEN = ValueStateDescriptor("seen")


@pytest.fixture
def make_backend(tmp_path):
    made: list[Any] = []

    def make(kind, groups=ALL):
        if kind == "heap":
            backend: Any = HeapStateBackend(key_groups=groups)
        else:
            backend = RocksDBStateBackend(tmp_path / f"state-{len(made)}", key_groups=groups)
        made.append(backend)
        return backend

    yield make
    for backend in made:
        backend.close()


def service_of(backend, fired=None):
    note = None if fired is None else fired.append
    return InternalTimerService(on_event_time=note, on_processing_time=note, queues=BackendQueues(backend, 2))


def fill(backend, service):
    """Keys 0 to 19 with a state of their own and a timer of each kind; timer and state of key 20 are taken back."""
    seen = backend.value_state(SEEN)
    for key in range(21):
        if key_group(key, 128) in backend.key_groups:
            service.current_key = key
            backend.set_current_key(key)
            seen.update(key)
            service.register_event_time_timer(100 + key, "w")
            service.register_processing_time_timer(key)
            if key == 20:
                seen.clear()
                service.delete_event_time_timer(120, "w")
                service.delete_processing_time_timer(20)


def fired_by(service, fired):
    service.advance_watermark(2**62)
    service.advance_processing_time()
    found = sorted((timer.timestamp, timer.key) for timer in fired)
    fired.clear()
    return found


def wanted(groups=ALL):
    keys = [key for key in range(20) if key_group(key, 128) in groups]
    return [(key, key) for key in keys] + [(100 + key, key) for key in keys]


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_S9_T5_a_snapshot_of_a_backend_holds_its_timers_for_every_range(make_backend, source, target):
    backend = make_backend(source)
    fill(backend, service_of(backend))
    snapshot = backend.snapshot()
    backend.close()
    assert [state.name for state in SnapshotReader(snapshot).states()] == ["seen"]
    for groups in HALVES:
        fired: list[Timer] = []
        half = make_backend(target, groups)
        half.restore([snapshot])
        # Kept, and in the next snapshot, also if no service asks for them.
        again = make_backend(target, groups)
        again.restore([half.snapshot()])
        assert again.num_entries() == len(wanted(groups)) // 2
        service = service_of(again, fired)
        assert fired_by(service, fired) == wanted(groups)
        assert not service.has_timers()
        assert {key for key in range(20) if key_group(key, 128) in groups} == {*again.keys("seen")}


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_S15_a_checkpoint_gives_services_that_are_there_the_timers_of_the_backend(
    make_backend, source, target, tmp_path
):
    backend = make_backend(source)
    service = service_of(backend)
    fill(backend, service)
    checkpoint(tmp_path / "saved", backend, service)
    assert (tmp_path / "saved" / "timers").stat().st_size == 0
    service.advance_watermark(2**62)
    fired: list[Timer] = []
    new = make_backend(target)
    service = service_of(new, fired)
    restore_checkpoint(tmp_path / "saved", new, service)
    assert fired_by(service, fired) == wanted()

    # Timers of a service on queues of its own may move into a backend, but not out of it.
    backend, service = make_backend(source), InternalTimerService(queues=HeapQueues())
    fill(backend, service)
    checkpoint(tmp_path / "moves", backend, service)
    new = make_backend(target)
    service = service_of(new, fired)
    restore_checkpoint(tmp_path / "moves", new, service)
    assert fired_by(service, fired) == wanted()
    with pytest.raises(StateError, match=r"with BackendQueues\(backend\) for timers in the state"):
        restore_checkpoint(tmp_path / "saved", make_backend(target), InternalTimerService())
    with pytest.raises(ConfigurationError, match="give that backend"):
        checkpoint(tmp_path / "other", make_backend(target), service)


def test_S11_a_directory_that_is_opened_again_has_the_timers_of_its_last_change(make_backend, tmp_path):
    backend = RocksDBStateBackend(tmp_path / "state")
    manager = TimerServiceManager(BackendQueues(backend, 3))
    for name in ("a", "b"):
        fill(backend, manager.service(name))
    backend.snapshot(tmp_path / "copy")  # of what is written: nothing waits in memory
    backend.close()
    for directory in (tmp_path / "state", tmp_path / "copy"):
        fired: list[Timer] = []
        with RocksDBStateBackend(directory) as backend:
            service = TimerServiceManager(BackendQueues(backend)).service(
                "b", on_event_time=fired.append, on_processing_time=fired.append
            )
            assert fired_by(service, fired) == wanted()
        with pytest.raises(StateError, match="closed"):
            service.register_event_time_timer(1)


@virtual
async def test_T7_a_restore_moves_the_alarm_of_a_driver(make_backend, tmp_path):
    clock = asyncio.get_running_loop().time
    backend, new = make_backend("rocksdb"), make_backend("rocksdb")
    service = InternalTimerService(clock=clock, queues=BackendQueues(backend))
    service.current_key = 1
    service.register_processing_time_timer(5_000)
    checkpoint(tmp_path / "saved", backend, service)
    fired: list[Timer] = []
    service = InternalTimerService(clock=clock, on_processing_time=fired.append, queues=BackendQueues(new))
    async with ProcessingTimeDriver(service):
        restore_checkpoint(tmp_path / "saved", new, service)
        await asyncio.sleep(6)
    assert fired == [Timer(5_000, 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_is_refused_what_is_wrong(make_backend, kind):
    backend = make_backend(kind)
    service = service_of(backend)
    with pytest.raises(StateError, match="queue 'timers/event_time_timers' is in use already"):
        service_of(backend)
    with pytest.raises(StateError, match="is a queue state, not a value state"):
        backend.value_state(ValueStateDescriptor("timers/event_time_timers"))
    with pytest.raises(StateError, match="has no state"):
        backend.drop("timers/event_time_timers")
    fill(backend, service)
    assert (backend.num_entries(), backend.num_entries("timers/event_time_timers")) == (20, 0)
    assert [*backend.keys("timers/event_time_timers")] == []
    with pytest.raises(StateError, match="comes too late"):
        backend.restore([])
    other = make_backend(kind)
    other.queue("timers/event_time_timers", key=len, key_of=str, serializer=KeySerializer())
    snapshot = backend.snapshot()
    with pytest.raises(StateError, match="value serialiser"):
        other.restore([snapshot])
    # Nothing has changed: it can still restore.
    other.restore([])
    for wrong, argument in (((None,), "backend"), ((HeapStateBackend,), "backend"), ((backend, 0), "cache_size")):
        with pytest.raises(ConfigurationError, match=argument):
            BackendQueues(*wrong)
