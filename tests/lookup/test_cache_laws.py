"""L3 to L7: what a lookup cache keeps, for how long, where, and whose."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from asyncio_operator import Cache, ConfigurationError
from asyncio_operator.lookup import cache_directories
from asyncio_operator.lookup.cache import LookupCache
from asyncio_operator.lookup.cache_directories import open_cache
from asyncio_operator.state.entries import ABSENT
from asyncio_operator.state.rocksdb_options import RocksDBOptions
from asyncio_operator.testing import ManualClock
from tests.lookup.helpers import OneByOne
from tests.operator.helpers import virtual

Make = Callable[..., LookupCache]
ROW = {"name": "Ada", "born": 1815}
SCHEMA = pa.schema([("name", pa.string()), ("born", pa.int64())])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000.0)


@pytest.fixture(params=["heap", "rocksdb", "columns"])
def make(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Make]:
    """Makes caches of a store, and closes them."""
    made: list[Any] = []

    def make(**options: Any) -> Any:
        place: dict[str, Any] = {"store": "rocksdb", "directory": tmp_path / "cache"}
        if request.param == "columns":
            made.append(in_columns := OneByOne(Cache(**options), SCHEMA, clock))
            return in_columns
        place = place if request.param == "rocksdb" else {}
        cache = open_cache(Cache(**options, **place), "specification", clock)
        made.append(cache)
        return cache

    yield make
    for cache in made:
        cache.close()


def kept(cache: LookupCache, *keys: Any) -> list[Any]:
    """Those of the keys that are there."""
    return [key for key in keys if cache.get(key) is not ABSENT]


def test_L3_misses_are_kept_as_misses(make):
    cache = make()
    cache.put("a", None)
    assert cache.get("a") is None
    assert cache.get("b") is ABSENT


def test_L3_misses_are_not_kept_where_nobody_wants_them(make):
    cache = make(cache_missing=False)
    cache.put("a", ROW)
    cache.put("a", None)
    assert cache.get("a") is ABSENT


def test_L3_misses_have_their_own_time_to_live(make, clock):
    cache = make(missing_ttl=5.0, expire_after_write=60.0)
    cache.put("a", None)
    cache.put("b", ROW)
    clock.advance(4.999)
    assert kept(cache, "a", "b") == ["a", "b"]
    clock.advance(0.001)
    assert kept(cache, "a", "b") == ["b"]


@pytest.mark.parametrize("expiry", ["expire_after_write", "expire_after_access"])
def test_L5_at_its_time_to_live_an_entry_is_gone(make, clock, expiry):
    cache = make(**{expiry: 10.0})
    cache.put("a", ROW)
    clock.advance(9.999)
    assert cache.get("a") == ROW
    clock.advance(0.001)
    assert (cache.get("a") is ABSENT) == (expiry == "expire_after_write")
    clock.advance(10.0)
    assert cache.get("a") is ABSENT


def test_L6_an_answer_is_old_from_refresh_after_on_and_still_found(make, clock):
    cache = make(refresh_after=5.0, expire_after_write=10.0)
    cache.put("a", ROW)
    clock.advance(4.999)
    assert not cache.is_old("a")
    clock.advance(0.001)
    assert cache.is_old("a")
    assert cache.get("a") == ROW
    assert not cache.is_old("b")
    cache.put("a", ROW)
    assert not cache.is_old("a")


@pytest.mark.parametrize("expiry", ["expire_after_write", "expire_after_access"])
def test_L6_an_expired_answer_is_still_there_for_a_failure(make, clock, expiry):
    cache = make(stale_if_error=True, **{expiry: 5.0})
    cache.put("a", ROW)
    clock.advance(5.0)
    for _ in range(2):
        assert cache.get("a") is ABSENT
        assert cache.stale("a") == ROW
    assert cache.stale("b") is ABSENT


@pytest.mark.parametrize("key", [None, [1], {"a": 1}, object(), ("a", [1])])
def test_a_key_that_cannot_be_kept_is_looked_up_every_time_and_told_once(make, caplog, key):
    if not isinstance(cache := make(), LookupCache):
        return  # Keys in Arrow have types that can be kept.
    for _ in range(3):
        cache.put(key, ROW)
        assert cache.get(key) is ABSENT
    told = [record.getMessage() for record in caplog.records]
    assert 1 <= len(told) <= 2  # of keeping, and of reading where the key cannot even be hashed
    assert all("are looked up every time" in text for text in told)


def test_a_value_that_cannot_be_written_to_disk_is_told_once(tmp_path, caplog):
    cache = open_cache(Cache(store="rocksdb", directory=tmp_path), "s")
    for key in "ab":
        cache.put(key, {"name": np.int64(5)})
        assert cache.get(key) is ABSENT
    cache.put("c", ROW)
    assert cache.get("c") == ROW
    cache.close()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


# -- on disk


def on_disk(directory: Path, specification: str = "s", clock: ManualClock | None = None, **options: Any) -> LookupCache:
    return open_cache(Cache(store="rocksdb", directory=directory, **options), specification, clock)


def test_L7_two_never_share_a_directory(tmp_path):
    first, second = on_disk(tmp_path), on_disk(tmp_path)
    first.put("a", ROW)
    assert second.get("a") is ABSENT
    second.put("b", ROW)
    second.close()
    third = on_disk(tmp_path)
    assert kept(third, "a", "b") == ["b"]
    first.close()
    third.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "0.lock", "1", "1.lock"]


@pytest.mark.parametrize("other", ["for another specification", "by another version"])
def test_L7_what_was_written_by_another_version_or_for_another_specification_is_cleared_and_logged(
    tmp_path, caplog, monkeypatch, other
):
    if "version" in other:
        monkeypatch.setattr(cache_directories, "FORMAT", 1)
    cache = on_disk(tmp_path, "one")
    cache.put("a", ROW)
    cache.close()
    monkeypatch.undo()
    again = "one" if "version" in other else "two"
    for specification in (again, "one"):
        cache = on_disk(tmp_path, specification)
        assert cache.get("a") is ABSENT
        cache.close()
    assert f"is cleared: it was written {other}" in caplog.text
    assert ("another version" in caplog.text) == ("version" in other)
    assert str(tmp_path) in caplog.text


def test_L7_ones_own_directory_is_preferred_to_another_ones(tmp_path, caplog):
    one, two = on_disk(tmp_path, "one"), on_disk(tmp_path, "two")
    two.put("a", ROW)
    one.close()
    two.close()
    two = on_disk(tmp_path, "two")
    assert two.get("a") == ROW
    two.close()
    assert not caplog.text


def test_L7_other_limits_of_rocksdb_keep_the_answers(tmp_path, caplog):
    cache = on_disk(tmp_path)
    cache.put("a", ROW)
    cache.close()
    cache = on_disk(tmp_path, rocksdb=RocksDBOptions(write_buffer_bytes=2 << 20, block_cache_bytes=2 << 20))
    assert cache.get("a") == ROW
    cache.close()
    assert not caplog.text


@pytest.mark.parametrize("damage", ["CURRENT", "MANIFEST", "all"])
def test_L7_what_is_damaged_is_cleared_and_logged(tmp_path, caplog, damage):
    cache = on_disk(tmp_path)
    cache.put("a", ROW)
    cache.close()
    for path in (tmp_path / "0").iterdir():
        if damage == "all" or path.name.startswith(damage):
            path.write_bytes(b"damaged")
    cache = on_disk(tmp_path)
    assert cache.get("a") is ABSENT
    cache.put("a", ROW)
    assert cache.get("a") == ROW
    cache.close()
    assert "is cleared: " in caplog.text
    assert "specification" not in caplog.text


@pytest.mark.parametrize("place", range(-200, 0, 17))
def test_L7_a_flipped_bit_in_the_log_of_a_killed_worker_clears_the_cache_and_is_logged(tmp_path, caplog, place):
    cache = on_disk(tmp_path / "alive")
    for key in range(50):
        cache.put(key, ROW)
    shutil.copytree(tmp_path / "alive" / "0", tmp_path / "killed" / "0")
    cache.close()
    log = max((tmp_path / "killed" / "0").glob("*.log"), key=lambda path: path.stat().st_size)
    data = bytearray(log.read_bytes())
    data[place] ^= 4
    log.write_bytes(data)
    cache = on_disk(tmp_path / "killed")
    assert not kept(cache, *range(50))
    cache.put("a", ROW)
    assert cache.get("a") == ROW
    cache.close()
    assert "is cleared" in caplog.text


def test_a_directory_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"file.* of a cache cannot be used: .*; give a directory"):
        on_disk(tmp_path / "file")


def _hold(directory: str, ready: Any) -> None:
    cache = on_disk(Path(directory))
    cache.put("a", ROW)
    ready.send(None)
    ready.recv()


def test_L7_a_killed_workers_directory_is_taken_over_warm(tmp_path):
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    worker = context.Process(target=_hold, args=(str(tmp_path), there))
    worker.start()
    here.recv()
    other = on_disk(tmp_path)
    assert other.get("a") is ABSENT
    other.close()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    taken = on_disk(tmp_path)
    assert taken.get("a") == ROW
    taken.close()


def test_L7_two_threads_that_open_at_the_same_time_share_nothing(tmp_path):
    for number in range(10):
        start = threading.Barrier(3)

        def opened(directory: Path = tmp_path / str(number), start: threading.Barrier = start) -> LookupCache:
            start.wait()
            return on_disk(directory)

        with ThreadPoolExecutor(3) as pool:
            caches = [future.result() for future in [pool.submit(opened) for _ in range(3)]]
        for i, cache in enumerate(caches):
            cache.put(i, ROW)
        assert [kept(cache, 0, 1, 2) for cache in caches] == [[0], [1], [2]]
        for cache in caches:
            cache.close()


def test_a_cache_whose_files_are_gone_closes_and_gives_its_place_back(tmp_path):
    cache = on_disk(tmp_path)
    cache.put("a", ROW)
    shutil.rmtree(tmp_path)
    cache.close()
    cache = on_disk(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["0"]
    cache.close()


@virtual
async def test_X7_a_task_that_fails_gives_its_cache_back() -> None:
    caches = cache_directories.new_caches()
    with pytest.raises(ZeroDivisionError):
        async with cache_directories.lent_cache(caches, "owner", Cache()):
            raise ZeroDivisionError
    for other in range(cache_directories.UNUSED):
        async with cache_directories.lent_cache(caches, f"other {other}", Cache()):
            pass
    await asyncio.sleep(0)
    assert len(caches.all()) == cache_directories.UNUSED


@pytest.mark.parametrize("fraction", [i / 10_000 for i in range(10)])
@virtual
async def test_L5_ages_of_a_lookup_on_virtual_time_do_not_depend_on_the_time_of_day(
    fraction: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_directories, "wall", lambda: 1_800_000_000 + fraction)
    await asyncio.sleep(0.0004)
    cache = await cache_directories.open_own_cache(Cache(expire_after_write=1), "owner", None, SCHEMA)
    cache.put("a", ROW)
    await asyncio.sleep(0.9992)
    assert cache.get("a") is ABSENT
    cache.close()
