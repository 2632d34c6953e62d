"""Directories that are damaged, foreign, full or not to be written: nothing is lost silently, nothing is touched."""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

from asyncio_operator.errors import StateError
from asyncio_operator.state import (
    CleanupIncrementally,
    HeapStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    RocksDBSnapshot,
    RocksDBStateBackend,
    StateTtlConfig,
    ValueStateDescriptor,
)
from asyncio_operator.state.rocksdb.view import BEGUN
from asyncio_operator.state.ttl import STRETCH
from asyncio_operator.testing.time import ManualClock
from asyncio_operator.timers import InternalTimerService, RocksDBQueues
from tests.state.queue_kinds import number_queue

MAP = MapStateDescriptor("entries")
VALUE = ValueStateDescriptor("value")
COUNT = 3000


def filled(directory: Path, descriptor: MapStateDescriptor = MAP) -> RocksDBStateBackend:
    backend = RocksDBStateBackend(directory)
    backend.set_current_key("k")
    backend.map_state(descriptor).put_all({number: f"{number}" * 20 for number in range(COUNT)})
    return backend


def damage(directory: Path, parts: int = 1) -> None:
    """Flips bytes at one place or more in the largest table file; a hard link to it elsewhere stays whole."""
    table = max(directory.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    for part in range(parts):
        place = len(data) // 3 if parts == 1 else 10 + part * (len(data) * 3 // 4) // parts
        data[place : place + 64] = bytes(byte ^ 0x5A for byte in data[place : place + 64])
    table.unlink()
    table.write_bytes(data)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@contextmanager
def full_disk(limit: int = 20_000) -> Iterator[None]:
    """No file may grow beyond `limit` bytes."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


LOOKED_AT = StateTtlConfig(60, cleanup=CleanupIncrementally(5))


@pytest.mark.parametrize(
    ("action", "ttl", "parts"),
    [
        *((action, None, 1) for action in ("items", "get", "num_entries", "clear")),
        *((action, LOOKED_AT, 20) for action in ("items", "get", "is_empty", "keys", "num_entries", "sweep")),
    ],
)
def test_S6_S11_a_damaged_table_is_no_shorter_table_but_an_error_that_does_not_keep_the_directory(
    action, ttl, parts, tmp_path
):
    descriptor = MapStateDescriptor("entries", ttl=ttl)
    filled(tmp_path / "state", descriptor).close()
    damage(tmp_path / "state", parts)
    backend = RocksDBStateBackend(tmp_path / "state")
    backend.set_current_key("k")
    entries = backend.map_state(descriptor)
    actions: dict[str, Callable[[], Any]] = {
        "items": lambda: list(entries.items()),
        "get": lambda: [entries.get(number) for number in range(COUNT)],
        "is_empty": lambda: [entries.is_empty() for _ in range(COUNT)],
        "keys": lambda: list(backend.keys("entries")),
        "num_entries": backend.num_entries,
        "sweep": lambda: [entries.contains(-1) for _ in range(COUNT)],
        "clear": entries.clear,
    }
    with pytest.raises(StateError, match="damaged") as caught:
        actions[action]()
    for part in ("entries", str(tmp_path / "state"), "restore a snapshot into another directory"):
        assert part in str(caught.value)
    with suppress(StateError):
        backend.close()
    RocksDBStateBackend(tmp_path / "state").close()
    assert caught.value.__traceback__ is not None


def test_a_bound_lives_as_long_as_its_iteration(tmp_path):
    backend = filled(tmp_path / "state")
    backend.set_current_key("l")
    backend.map_state(MAP).put(1, "another key's")
    backend.set_current_key("k")
    iterations = [backend.map_state(MAP).keys() for _ in range(20)]
    assert [len(list(keys)) for keys in iterations] == [COUNT] * 20
    backend.close()


@pytest.mark.parametrize(
    ("options", "temporary", "says"),
    [
        ({}, None, "another directory"),
        ({"options": Options(raw_mode=True)}, None, "another directory"),
        ({"options": Options(raw_mode=True)}, "nowhere", r"foreign.*set TMPDIR"),
    ],
    ids=["pickling", "raw", "no temporary directory"],
)
@pytest.mark.parametrize("open_it", [RocksDBStateBackend, RocksDBSnapshot, number_queue])
def test_a_foreign_database_is_as_it_was_when_it_was_refused(options, temporary, says, open_it, tmp_path, monkeypatch):
    if temporary is not None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / temporary))
    database = Rdict(str(tmp_path / "foreign"), **options)
    key, value = (b"key", b"value") if options else ("key", {"value": 1})
    database[key] = value
    database.close()
    before = contents(tmp_path / "foreign")
    with pytest.raises(StateError, match=says):
        open_it(tmp_path / "foreign")
    assert contents(tmp_path / "foreign") == before
    database = Rdict(str(tmp_path / "foreign"), **options)
    assert database[key] == value
    database.close()


def test_what_is_read_leaves_no_files_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "views"))
    (tmp_path / "views").mkdir()
    snapshot = filled(tmp_path / "state").snapshot()
    HeapStateBackend().restore([snapshot])
    with pytest.raises(StateError):
        RocksDBStateBackend(tmp_path / "state")
    assert not list((tmp_path / "views").iterdir())


@pytest.mark.parametrize("name", ["diary.txt", "LOG", "MANIFEST-000001"])
@pytest.mark.parametrize("open_it", [RocksDBStateBackend, number_queue])
def test_a_directory_of_other_files_is_left_alone(open_it, name, tmp_path):
    (tmp_path / name).write_text("a diary")
    with pytest.raises(StateError, match="take another directory"):
        open_it(tmp_path)
    with pytest.raises(StateError, match=name):
        open_it(tmp_path / name)
    assert contents(tmp_path) == {name: b"a diary"}


def test_S11_a_flipped_bit_in_the_configuration_of_rocksdict_hides_no_state(tmp_path):
    filled(tmp_path / "state").close()
    path = tmp_path / "state" / "rocksdict-config.json"
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with RocksDBStateBackend(tmp_path / "state") as backend:
            assert backend.num_entries() == COUNT


def test_S14_state_without_the_file_CURRENT_is_an_error_that_says_so_and_is_left_alone(tmp_path):
    filled(tmp_path / "state").close()
    (tmp_path / "state" / "CURRENT").unlink()
    before = contents(tmp_path / "state")
    with pytest.raises(StateError, match=r"damaged .*no file CURRENT.*restore a snapshot"):
        RocksDBStateBackend(tmp_path / "state")
    assert contents(tmp_path / "state") == before


DIES_WHILE_OPENING = """
import os, sys
from asyncio_operator.state.rocksdb import database
database.Rdict = lambda *arguments: os.kill(os.getpid(), 9)
database.Database(sys.argv[1])
"""


@pytest.mark.parametrize("left", [[], ["LOG"], ["LOG", "IDENTITY", "MANIFEST-"]])
def test_S11_what_a_process_leaves_that_died_at_the_beginning_is_taken(left, tmp_path):
    died = subprocess.run([sys.executable, "-c", DIES_WHILE_OPENING, str(tmp_path / "state")], check=False)
    assert died.returncode == -signal.SIGKILL
    filled(tmp_path / "whole").close()
    for path in (tmp_path / "whole").iterdir():
        if any(path.name.startswith(name) for name in left):
            shutil.copy(path, tmp_path / "state")
    filled(tmp_path / "state").close()
    assert not (tmp_path / "state" / BEGUN).exists()


def test_what_a_killed_reader_left_is_removed_with_the_next_view(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "views"))
    died = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    dead, days = int(died.stdout), {"old": 2, "new": 0}
    views = {
        (process, age): tmp_path / "views" / f"asyncio-operator-view-{process}-{age}"
        for process in (dead, os.getpid())
        for age in days
    }
    for (_, age), view in views.items():
        view.mkdir(parents=True)
        (view / "000001.log").symlink_to(tmp_path)
        os.utime(view, (time.time() - 86_400 * days[age],) * 2)
    filled(tmp_path / "state").close()
    RocksDBStateBackend(tmp_path / "state").close()
    assert set((tmp_path / "views").iterdir()) == set(views.values()) - {views[dead, "old"]}


@pytest.mark.parametrize("name", ["state", "LOCK", "Corruption"])
def test_a_path_says_nothing_about_the_cause(name, tmp_path):
    (tmp_path / name).mkdir()
    (tmp_path / name / "CURRENT").write_text("MANIFEST-000001\n")
    (tmp_path / name / "MANIFEST-000001").mkdir()
    with pytest.raises(StateError, match="cannot be used: remove the cause"):
        RocksDBStateBackend(tmp_path / name)


@contextmanager
def whoever_is_not_root() -> Iterator[None]:
    """For root no directory is closed to writing, so the test takes another user for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def test_S9_a_snapshot_on_a_medium_that_cannot_be_written_is_restored():
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        backend = filled(Path(directory) / "state")
        snapshot = backend.snapshot()
        backend.close()
        assert isinstance(snapshot, RocksDBSnapshot)
        for path in snapshot.directory.iterdir():
            path.chmod(0o444)
        snapshot.directory.chmod(0o555)
        restored = HeapStateBackend()
        with whoever_is_not_root():
            with pytest.raises(PermissionError):
                (snapshot.directory / "new").touch()
            restored.restore([snapshot])
        assert restored.num_entries() == COUNT
        snapshot.directory.chmod(0o755)


def test_S11_close_on_a_full_disk_says_so_once_and_gives_the_directory_free(tmp_path):
    backend = RocksDBStateBackend(tmp_path / "state")
    value, acknowledged = backend.value_state(VALUE), 0

    def write():
        nonlocal acknowledged
        for acknowledged in itertools.count():
            backend.set_current_key(acknowledged)
            value.update("x" * 100)

    with full_disk():
        with pytest.raises(StateError, match=r"state 'value', key \d+: .*too large"):
            write()
        with pytest.raises(StateError, match=r"cannot be used: remove the cause.*too large") as caught:
            backend.close()
        backend.close()
    again = RocksDBStateBackend(tmp_path / "state")
    assert again.num_entries("value") == acknowledged
    again.close()
    assert str(tmp_path / "state") in str(caught.value)


def test_P6_a_queue_on_a_full_disk_is_closed_all_the_same(tmp_path):
    queue, acknowledged = number_queue(tmp_path / "queue", cache_size=4), 0

    def add() -> None:
        nonlocal acknowledged
        for acknowledged in itertools.count():
            queue.add(acknowledged)

    with full_disk():
        with pytest.raises(StateError, match="too large"):
            add()
        assert len(queue) == acknowledged, "what was refused is not inside"
        with pytest.raises(StateError, match="too large"):
            queue.close()
        queue.close()
    again = number_queue(tmp_path / "queue")
    assert list(again) == list(range(len(again)))
    again.close()


def test_T_queues_on_a_full_disk_are_all_closed(tmp_path):
    queues = RocksDBQueues(tmp_path / "timers", cache_size=2)
    service = InternalTimerService(queues=queues)
    service.current_key = "k"
    with full_disk():
        for register in (service.register_event_time_timer, service.register_processing_time_timer):
            with pytest.raises(StateError, match="too large"):
                list(map(register, range(100_000)))
        with pytest.raises(StateError, match="too large"):
            queues.close()
    again = InternalTimerService(queues=queues)
    assert len(list(again.event_time_timers())) > 0
    queues.close()


def set_key_often(backend):
    """So often that a clean-up with every change of key has looked at something."""
    for _ in range(STRETCH):
        backend.set_current_key(3)


def test_an_error_of_the_disk_names_state_and_key_wherever_it_comes(tmp_path):
    clock = ManualClock()
    backend = RocksDBStateBackend(tmp_path / "state", clock=clock)
    ttl = StateTtlConfig(10, cleanup=CleanupIncrementally(every_record=True))
    swept = backend.value_state(ValueStateDescriptor("swept", ttl=ttl))
    entries = backend.map_state(MapStateDescriptor("map", ttl=StateTtlConfig(10, cleanup=())))
    items = backend.list_state(ListStateDescriptor("list"))
    for key in range(200):
        backend.set_current_key(key)
        swept.update(key)
        entries.put(1, 1)
    with full_disk():
        with pytest.raises(StateError):
            list(map(items.add, ["x" * 100] * 10_000))
        clock.advance(20)
        actions = {
            "swept": lambda: set_key_often(backend),
            "map": lambda: (entries.is_empty(), entries.is_empty()),
            "list": lambda: items.add_all([1, 2]),
        }
        for name, action in actions.items():
            with pytest.raises(StateError, match=rf"^state '{name}', key \d+: .*too large"):
                action()
        with pytest.raises(StateError):
            backend.close()


def test_P6_an_iteration_that_outlives_its_queue_raises(tmp_path):
    queue = number_queue(tmp_path / "queue")
    queue.add_all(range(1000))
    iterations = [iter(queue), iter(queue)]
    next(iterations[0])
    queue.close()
    for iteration in iterations:
        with pytest.raises(StateError, match="closed"):
            next(iteration)
    shutil.rmtree(tmp_path / "queue")
