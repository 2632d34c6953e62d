"""S14: what RocksDB takes in memory and on disk beside its data, and `RocksDBOptions`, which say how much."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

from asyncio_operator import Cache, ConfigurationError
from asyncio_operator.errors import StateError
from asyncio_operator.state import (
    HeapStateBackend,
    MapStateDescriptor,
    RocksDBCachingPriorityQueueSet,
    RocksDBOptions,
    RocksDBStateBackend,
    StateStatistics,
    ValueStateDescriptor,
)
from asyncio_operator.state.rocksdb.database import Settings
from asyncio_operator.timers import RocksDBQueues

MIB = 1 << 20
BOUND = 3 * RocksDBOptions().max_log_bytes
SMALL = RocksDBOptions(write_buffer_bytes=8 * MIB, block_cache_bytes=2 * MIB, max_log_bytes=4 * MIB)


def size_of(directory: Path, pattern: str = "*") -> int:
    """Bytes of its files; RocksDB may delete one meanwhile."""
    sizes = 0
    for path in directory.glob(pattern):
        try:
            sizes += path.stat().st_size
        except FileNotFoundError:
            continue
    return sizes


@pytest.mark.parametrize("states", [1, 6])
def test_S14_the_log_is_bounded_however_much_is_written_over(states, tmp_path):
    # Buffers so large that they alone would let the log grow.
    options = replace(SMALL, write_buffer_bytes=128 * MIB)
    data, logs, whole = os.urandom(20_000), 0, 0
    with RocksDBStateBackend(tmp_path / "state", options=options) as backend:
        seldom = [backend.value_state(ValueStateDescriptor(f"seldom {number}")) for number in range(states - 1)]
        hot = backend.value_state(ValueStateDescriptor("hot"))
        for number in range(5_000):
            backend.set_current_key(number % 20)
            hot.update(data)
            if number % 1_000 == 0:
                for state in seldom:
                    state.update(number)
            if number % 50 == 0:
                logs = max(logs, size_of(tmp_path / "state", "*.log"))
                whole = max(whole, size_of(tmp_path / "state"))
    assert logs < 4 * SMALL.max_log_bytes
    assert whole < 4 * SMALL.max_log_bytes + 8 * MIB


def test_S14_what_is_replayed_after_a_kill_is_bounded_by_the_defaults(tmp_path):
    program = f"""
import os, sys
from asyncio_operator.state import *
data, state = os.urandom(10_000), (backend := RocksDBStateBackend(sys.argv[1])).value_state(ValueStateDescriptor("v"))
for number in range(30_000):
    backend.set_current_key(number % 100)
    state.update(data)
    if number % 1000 == 0:
        assert backend.statistics().log < {BOUND}, backend.statistics()
os.kill(os.getpid(), 9)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "state")]
    died = subprocess.run(command, check=False, env={"PYTHONPATH": os.pathsep.join(sys.path)})
    assert died.returncode == -signal.SIGKILL
    assert size_of(tmp_path / "state", "*.log") < BOUND
    with RocksDBStateBackend(tmp_path / "state") as backend:
        assert backend.num_entries() == 100
        assert backend.statistics().log == 0


def test_S14_write_buffers_and_block_cache_are_shared_by_a_process():
    options = RocksDBOptions(write_buffer_bytes=16 * MIB, background_jobs=3)
    opened = [Settings(options, read_only=False) for _ in range(40)]
    parts = [settings.write_buffer for settings in opened]
    assert parts[:3] == [8 * MIB, 4 * MIB, 2 * MIB]
    assert set(parts[3:]) == {2 * MIB}
    assert len({id(settings.shared.cache) for settings in opened}) == 1
    for settings in opened:
        settings.release()
        settings.release()
    assert Settings(options, read_only=False).write_buffer == 8 * MIB
    smallest = RocksDBOptions(write_buffer_bytes=MIB)
    assert Settings(smallest, read_only=False).write_buffer == MIB
    assert Settings(SMALL, read_only=False).shared is not opened[0].shared


def test_S14_a_backend_that_is_dropped_without_close_returns_its_part_of_the_write_buffers(tmp_path):
    options = RocksDBOptions(write_buffer_bytes=18 * MIB)
    for _ in range(4):
        backend = RocksDBStateBackend(tmp_path / "state", options=options)
        assert Settings(options, read_only=True).write_buffer == 9 * MIB // 2
        del backend
        gc.collect()


MEMORY = """
import sys
from asyncio_operator.state import *

def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

with RocksDBStateBackend(sys.argv[1]) as backend:
    states = [backend.value_state(ValueStateDescriptor(str(number))) for number in range(int(sys.argv[2]))]
    before = rss()
    for number in range(400_000):
        backend.set_current_key(number)
        states[number % len(states)].update("x" * 400)
    print(rss() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.faults
@pytest.mark.parametrize("states", [1, 100])
def test_S14_the_memory_of_written_states_is_that_of_the_options_not_of_their_number(states, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "state"), str(states)],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    defaults = RocksDBOptions()
    assert int(done.stdout) < defaults.write_buffer_bytes + defaults.block_cache_bytes + 30 * MIB


def test_S14_the_journals_of_RocksDB_are_bounded(tmp_path):
    tiny = RocksDBOptions(write_buffer_bytes=MIB, block_cache_bytes=MIB, max_log_bytes=MIB)
    with RocksDBStateBackend(tmp_path / "state", options=tiny) as backend:
        state = backend.value_state(ValueStateDescriptor("v"))
        for number in range(3_000):
            backend.set_current_key(number % 10)
            state.update("x" * 50_000)
        journals = size_of(tmp_path / "state", "LOG*") + size_of(tmp_path / "state", "MANIFEST*")
    assert journals < 4 * MIB


def test_S14_statistics_say_what_is_used(tmp_path):
    options = RocksDBOptions(write_buffer_bytes=32 * MIB, max_log_bytes=8 * MIB, background_jobs=4)
    with RocksDBStateBackend(tmp_path / "state", options=options) as backend:
        empty = backend.statistics()
        assert empty.log < 1_000
        assert empty.pending_compaction == 0
        states = [backend.value_state(ValueStateDescriptor(name)) for name in "ab"]
        for number in range(4_000):
            backend.set_current_key(number)
            states[number % 2].update("x" * 1_000)
        full = backend.statistics()
        assert 4_000_000 < full.memory < options.write_buffer_bytes
        assert 4_000_000 < full.log < full.disk < full.log + 2 * MIB
        backend.compact()
        merged = backend.statistics()
        assert merged.memory < MIB
        assert merged.disk < full.disk
        for number in range(4_000):
            backend.set_current_key(number)
            states[number % 2].value()
        assert (
            empty.shared_cache <= merged.shared_cache < backend.statistics().shared_cache <= options.block_cache_bytes
        )
        with pytest.raises(FrozenInstanceError):
            full.log = 0  # type: ignore[misc]
    with pytest.raises(StateError, match="closed"):
        backend.statistics()


def test_S14_a_heap_backend_measures_nothing():
    backend = HeapStateBackend()
    assert backend.statistics() == StateStatistics(0, 0, 0, 0, 0)
    backend.close()
    with pytest.raises(StateError, match="closed"):
        backend.statistics()


SIZE = "must be an int from 1048576 to 1099511627776"


@pytest.mark.parametrize(
    ("name", "wrong", "says"),
    [
        *((name, wrong, SIZE) for name in ("write_buffer_bytes", "block_cache_bytes") for wrong in (0, MIB - 1, "64")),
        *(("max_log_bytes", wrong, SIZE) for wrong in (-1, (1 << 40) + 1, 1e9, True, None)),
        *(("background_jobs", wrong, "must be an int from 1 to 64") for wrong in (0, 65, 1.5, True, None)),
        *(("compression", wrong, 'must be "none" | "snappy" | "lz4" | "zstd"') for wrong in ("gzip", "", None, 1)),
    ],
)
def test_a_wrong_option_says_what_is_right(name: str, wrong: Any, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RocksDBOptions(**{name: wrong})
    assert str(caught.value) == f"{name} is {wrong!r}; it {says}"


def test_who_takes_options_refuses_others(tmp_path) -> None:
    takers: tuple[Any, ...] = (RocksDBStateBackend, RocksDBQueues)
    for take in takers:
        with pytest.raises(ConfigurationError, match=r"options is \{.*; it must be a RocksDBOptions"):
            take(tmp_path / "state", options={"max_log_bytes": 1})
    with pytest.raises(ConfigurationError, match="rocksdb is 1; it must be a RocksDBOptions, or None"):
        Cache(store="rocksdb", directory=tmp_path, rocksdb=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r'rocksdb is .*, and store is "heap"'):
        Cache(rocksdb=RocksDBOptions())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("compression", ["none", "snappy", "lz4", "zstd"])
def test_every_compression_works_and_is_read_with_every_other(compression: str, tmp_path) -> None:
    entries = dict.fromkeys(range(1000), "x" * 100)
    with RocksDBStateBackend(tmp_path / "state", options=RocksDBOptions(compression=compression)) as backend:
        backend.set_current_key("k")
        backend.map_state(MapStateDescriptor("map")).put_all(entries)
        backend.compact()
    with RocksDBStateBackend(tmp_path / "state") as backend:
        backend.set_current_key("k")
        assert dict(backend.map_state(MapStateDescriptor("map")).items()) == entries


def test_who_passes_options_on(tmp_path) -> None:
    options = RocksDBOptions(background_jobs=1)
    queues = RocksDBQueues(tmp_path / "timers", options=options)
    queue = queues("t")
    assert isinstance(queue, RocksDBCachingPriorityQueueSet)
    assert queue._database.options is options
    queues.close()
