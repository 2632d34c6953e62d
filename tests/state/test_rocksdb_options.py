"""`RocksDBOptions`: checked where they are given, by name, value and range; they travel without RocksDB."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from asyncio_operator import Cache, ConfigurationError
from asyncio_operator.state import (
    MapStateDescriptor,
    RocksDBCachingPriorityQueueSet,
    RocksDBOptions,
    RocksDBStateBackend,
)
from asyncio_operator.timers import RocksDBQueues

SIZES = ("write_buffer_bytes", "block_cache_bytes", "max_log_bytes")


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [0, -1, (1 << 20) - 1, (1 << 40) + 1, 1e9, True, None, "64 MB"])
def test_a_size_is_a_number_of_bytes_within_a_range(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RocksDBOptions(**{name: value})
    assert str(caught.value) == f"{name} is {value!r}; it must be an int from 1048576 to 1099511627776"
    options: Any = {name: 1 << 20}
    assert getattr(RocksDBOptions(**options), name) == 1 << 20


@pytest.mark.parametrize("value", [0, 65, 1.5, True, None])
def test_background_jobs_are_threads(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"background_jobs is .*; it must be an int from 1 to 64"):
        RocksDBOptions(background_jobs=value)


@pytest.mark.parametrize("value", ["gzip", "", None, 1])
def test_compression_is_one_that_RocksDB_has(value: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r'compression is .*; it must be "none" \| "snappy" \| "lz4" \| "zstd"'
    ):
        RocksDBOptions(compression=value)


def test_who_takes_options_refuses_others(tmp_path) -> None:
    takers: tuple[Any, ...] = (RocksDBStateBackend, RocksDBQueues)
    for take in takers:
        with pytest.raises(ConfigurationError, match=r"options is \{.*; it must be RocksDBOptions"):
            take(tmp_path / "state", options={"max_log_bytes": 1})
    with pytest.raises(ConfigurationError, match="rocksdb is 1; it must be a RocksDBOptions, or None"):
        Cache(store="rocksdb", directory=tmp_path, rocksdb=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r'rocksdb is .*, and store is "heap"'):
        Cache(rocksdb=RocksDBOptions())
    assert not list(tmp_path.iterdir())


def test_they_are_values_that_travel(tmp_path) -> None:
    options = RocksDBOptions(max_log_bytes=1 << 21)
    assert pickle.loads(pickle.dumps(options)) == options
    cache = Cache(store="rocksdb", directory=tmp_path, rocksdb=options)
    assert pickle.loads(pickle.dumps(cache)) == cache
    with pytest.raises(AttributeError):
        options.max_log_bytes = 5  # type: ignore[misc]


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
