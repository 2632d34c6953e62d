"""Where snapshots of RocksDB backends are put, and what the root of a volume has by itself."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.state import (
    HeapStateBackend,
    RocksDBSnapshot,
    RocksDBStateBackend,
    StateSnapshot,
    ValueStateDescriptor,
    checkpoint,
    restore_checkpoint,
)

VALUE = ValueStateDescriptor("value")
COUNT = 500


def filled(directory: Path) -> RocksDBStateBackend:
    backend = RocksDBStateBackend(directory)
    value = backend.value_state(VALUE)
    for key in range(COUNT):
        backend.set_current_key(key)
        value.update(os.urandom(100))
    return backend


def place_of(snapshot: StateSnapshot) -> Path:
    assert isinstance(snapshot, RocksDBSnapshot)
    return snapshot.directory


def is_linked(directory: Path) -> bool:
    return all(path.stat().st_nlink > 1 for path in directory.glob("*.sst"))


def restored(directory: Path) -> int:
    backend = HeapStateBackend()
    backend.restore([RocksDBSnapshot(directory)])
    return backend.num_entries()


@pytest.fixture
def volume(tmp_path):
    """A mounted volume of its own; only root can make one."""
    path = tmp_path / "volume"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a volume cannot be mounted here")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.fixture
def other_volume(tmp_path):
    """A directory on another volume than the tests' own."""
    here = tmp_path.stat().st_dev
    writable = (path for path in (Path("/dev/shm"), Path("/var/tmp"), Path.home()) if os.access(path, os.W_OK))
    other = next((path for path in writable if path.stat().st_dev != here), None)
    if other is None:
        pytest.skip("there is no second volume here")
    place = other / f"asyncio-operator-{os.getpid()}"
    yield place
    subprocess.run(["rm", "-rf", str(place)], check=True)


def test_S9_a_snapshot_is_put_where_it_is_asked_for_with_its_parents(tmp_path):
    with filled(tmp_path / "state") as backend:
        place = place_of(backend.snapshot(tmp_path / "some" / "where"))
        assert place == tmp_path / "some" / "where"
        assert is_linked(place)
        assert place_of(backend.snapshot(directory=str(tmp_path / "state" / "within"))) == tmp_path / "state" / "within"
    assert restored(place) == COUNT
    with RocksDBStateBackend(tmp_path / "state") as again:
        assert again.num_entries() == COUNT
    assert restored(tmp_path / "state" / "within") == COUNT


def test_S9_a_snapshot_on_another_volume_is_a_copy(other_volume, tmp_path):
    with filled(tmp_path / "state") as backend:
        place = place_of(backend.snapshot(other_volume / "snapshot"))
    assert not is_linked(place)
    assert restored(place) == COUNT


def test_S9_a_snapshot_that_cannot_be_put_there_says_why(tmp_path):
    (tmp_path / "file").write_text("a diary")
    with filled(tmp_path / "state") as backend:
        with pytest.raises(StateError, match=r"cannot be put at .*file/snapshot: take another place"):
            backend.snapshot(tmp_path / "file" / "snapshot")
        with pytest.raises(ConfigurationError, match="a path is needed"):
            backend.snapshot("")
        backend.num_entries()


def test_S9_a_snapshot_in_memory_takes_no_directory(tmp_path):
    with pytest.raises(ConfigurationError, match=r"in memory.*checkpoint\(path, backend\)"):
        HeapStateBackend().snapshot(tmp_path / "snapshot")


def test_S9_a_snapshot_of_a_whole_volume_stays_on_it(volume):
    with filled(volume) as backend:
        place = place_of(backend.snapshot())
        assert place.parent == volume
        assert is_linked(place)
    assert restored(place) == COUNT
    with RocksDBStateBackend(volume) as again:
        assert again.num_entries() == COUNT


def test_S11_the_lost_and_found_of_a_volume_is_nobodys_data(tmp_path):
    (tmp_path / "lost+found").mkdir()
    filled(tmp_path).close()
    with RocksDBStateBackend(tmp_path) as again:
        assert again.num_entries() == COUNT
    assert (tmp_path / "lost+found").is_dir()


def test_S11_a_file_called_lost_and_found_is_left_alone(tmp_path):
    (tmp_path / "lost+found").write_text("a diary")
    with pytest.raises(StateError, match="not empty"):
        RocksDBStateBackend(tmp_path)


def test_S9_a_snapshot_touches_nothing_beside_its_place(tmp_path):
    (tmp_path / "backup.tmp").mkdir()
    (tmp_path / "backup.tmp" / "notes.txt").write_text("kept")
    with filled(tmp_path / "state") as backend:
        backend.snapshot(tmp_path / "backup")
    assert (tmp_path / "backup.tmp" / "notes.txt").read_text() == "kept"
    assert {path.name for path in tmp_path.iterdir()} == {"backup", "backup.tmp", "state"}
    assert restored(tmp_path / "backup") == COUNT


def test_S9_a_snapshot_that_its_place_cannot_hold_names_the_place(volume, tmp_path):
    with filled(tmp_path / "state") as backend:
        (volume / "rest").write_bytes(bytes((64 << 20) - (40 << 10)))
        with pytest.raises(StateError, match=r"a snapshot cannot be put at .*backup: take another place"):
            backend.snapshot(volume / "backup")
        assert [path.name for path in volume.iterdir()] == ["rest"]
        assert restored(place_of(backend.snapshot())) == COUNT


@pytest.mark.parametrize("name", ["a" * 255, "\U0001f600" * 63], ids=["ascii", "four bytes"])
def test_S9_a_snapshot_and_a_checkpoint_take_every_name_that_a_directory_can_have(name, tmp_path):
    with filled(tmp_path / name) as backend:
        assert restored(place_of(backend.snapshot())) == COUNT
        (tmp_path / "other").mkdir()
        assert restored(place_of(backend.snapshot(tmp_path / "other" / name))) == COUNT
        checkpoint(tmp_path / "more" / name, backend)
    again = HeapStateBackend()
    restore_checkpoint(tmp_path / "more" / name, again)
    assert again.num_entries() == COUNT


def test_S9_two_that_put_a_snapshot_at_one_place_at_once_do_not_disturb_each_other(tmp_path):
    with ThreadPoolExecutor(2) as threads, filled(tmp_path / "a") as one, filled(tmp_path / "b") as other:
        for number in range(20):
            place = tmp_path / f"snapshot-{number}"
            tries = [threads.submit(backend.snapshot, place) for backend in (one, other)]
            failures = [error for attempt in tries if (error := attempt.exception()) is not None]
            assert len(failures) == 1
            assert "cannot be put at" in str(failures[0])
            assert restored(place) == COUNT
