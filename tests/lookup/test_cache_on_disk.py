"""L4 and S14: a cache on disk drops exactly the least recently used, and takes no memory for the keys it holds."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator import Cache
from asyncio_operator.lookup.cache import LookupCache
from asyncio_operator.lookup.cache_directories import CacheOnDisk, open_cache
from asyncio_operator.state import RocksDBOptions, RocksDBStateBackend
from asyncio_operator.state.entries import ABSENT
from asyncio_operator.state.rocksdb import use_order
from asyncio_operator.state.rocksdb.database import Database
from asyncio_operator.testing import ManualClock
from tests.lookup.helpers import OneByOne
from tests.state import invariants

MIB = 1 << 20
SMALL = RocksDBOptions(write_buffer_bytes=4 * MIB, block_cache_bytes=2 * MIB, max_log_bytes=2 * MIB)


@pytest.fixture
def tiny(monkeypatch):
    """Little is kept in memory, so that few steps reach every case."""
    monkeypatch.setattr(use_order, "UNWRITTEN", 2)
    monkeypatch.setattr(use_order, "AHEAD", 2)


def on_disk(directory: Path, clock: ManualClock | None = None, **options: Any) -> LookupCache:
    return open_cache(Cache(store="rocksdb", directory=directory, **options), "s", clock)


def check(cache: LookupCache) -> None:
    """The order is in order, and has exactly the slots that have answers."""
    assert isinstance(cache, CacheOnDisk)
    invariants.check(cache._order)
    backend: Any = cache._backend
    places = {slot for slot, _ in backend._database.scan("places", b"", None)}
    assert places == {slot + sub for slot, sub, _ in cache._written.table.entries()}
    if cache._used is not None:
        assert places == {slot + sub for slot, sub, _ in cache._used.table.entries()}


STEPS = st.lists(st.tuples(st.sampled_from("ggpptor"), st.integers(0, 7)), max_size=60)


@pytest.mark.parametrize("store", ["heap", "rocksdb", "columns"])
def test_L4_L5_a_cache_is_what_a_dictionary_in_order_of_use_says_on_disk_also_after_reopening(tiny, tmp_path, store):
    numbers = itertools.count()

    @settings(max_examples=40, deadline=None)
    @given(st.sampled_from([(None, None), (4, None), (None, 3), (5, 3)]), st.integers(1, 5), STEPS)
    def run(lifetimes, most, steps):
        write, access = lifetimes
        cache: Any
        clock, directory = ManualClock(), tmp_path / str(next(numbers))
        options = {"max_rows": most, "expire_after_write": write, "expire_after_access": access}
        if store == "rocksdb":
            options |= {"store": store, "directory": directory}
        if store == "columns":
            cache = OneByOne(Cache(**options), pa.schema([("born", pa.int64())]), clock)
        else:
            cache = open_cache(Cache(**options), "s", clock)
        model: OrderedDict[int, list[Any]] = OrderedDict()  # key: answer, written, used

        def over(entry):
            return (write and clock() - entry[1] >= write) or (access and clock() - entry[2] >= access)

        for step, key in steps:
            if step == "t":
                clock.advance(key / 2)
            elif step in "or":
                if store != "rocksdb":
                    continue
                if step == "o":
                    cache.close()
                    cache = open_cache(Cache(**options), "s", clock)
                check(cache)
            elif step == "p":
                model.pop(key, None)
                model[key] = [{"born": key}, clock(), clock()]
                cache.put(key, {"born": key})
                if len(model) > most:
                    model.popitem(last=False)
                for _ in range(2):
                    oldest = next(iter(model), None)
                    if oldest is None or not over(model[oldest]):
                        break
                    del model[oldest]
            else:
                found = model.get(key)
                if found and over(found):
                    del model[key]
                    found = None
                if found:
                    model.move_to_end(key)
                    found[2] = clock()
                assert cache.get(key) == (found[0] if found else ABSENT)
            # Answers in columns that have expired stay until they are asked for, or others need their places.
            assert len(cache) == len(model) or (store == "columns" and len(model) < len(cache) <= most)
        cache.close()

    run()


def test_L4_uses_of_long_keys_do_not_gather_in_memory(tmp_path):
    cache = on_disk(tmp_path, max_rows=50)
    for key in range(100):
        cache.put(f"{key:09}" + "k" * 5_000, {"born": key})
        assert cache.get(f"{key:09}" + "k" * 5_000) == {"born": key}
        assert isinstance(cache, CacheOnDisk)
        assert not cache._order._unwritten
    check(cache)
    cache.close()


def test_L4_a_small_cache_through_which_many_keys_go_keeps_its_order(tmp_path):
    cache = on_disk(tmp_path, max_rows=100, rocksdb=SMALL)
    for number in range(5_000):
        cache.put(number, {"born": number})
        cache.get(number - 50)
    assert len(cache) == 100
    check(cache)
    cache.close()


WRITER = """
import sys
from asyncio_operator import Cache
from asyncio_operator.lookup.cache_directories import open_cache
cache = open_cache(Cache(max_rows=500, store="rocksdb", directory=sys.argv[1], expire_after_access=1000), "s")
print("begun", flush=True)
for number in range(10**9):
    cache.put(number % 1000, {"born": number})
    cache.get((number * 7) % 1000)
    if number % 1000 == 0:
        print(number, flush=True)
"""


def test_L7_a_killed_worker_leaves_no_answer_outside_the_order(tmp_path):
    for rounds in (3, 5):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "cache")]
        writer = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": os.pathsep.join(sys.path)}
        )
        assert writer.stdout is not None
        with writer, writer.stdout as lines:
            for _ in range(rounds):
                lines.readline()
            writer.send_signal(signal.SIGKILL)
        cache = on_disk(tmp_path / "cache", max_rows=500, expire_after_access=1000)
        assert len(cache) == 500
        check(cache)
        cache.close()


MEMORY = """
import sys
from asyncio_operator import Cache
from asyncio_operator.lookup.cache_directories import open_cache
from asyncio_operator.state import RocksDBOptions, RocksDBStateBackend

def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

options = RocksDBOptions(write_buffer_bytes=4 << 20, block_cache_bytes=2 << 20, max_log_bytes=2 << 20)
cache = open_cache(Cache(max_rows=10**6, store="rocksdb", directory=sys.argv[1], rocksdb=options), "s")
for number in range(10_000):
    cache.put(f"customer {number:07}", {"name": "Ada Lovelace", "born": 1815})
before = rss()
for number in range(60_000):
    cache.put(f"customer {number:07}", {"name": "Ada Lovelace", "born": 1815})
for number in range(0, 60_000, 10):
    assert cache.get(f"customer {number:07}")
print(rss() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_S14_a_cache_on_disk_takes_no_memory_for_its_keys(tmp_path):
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "cache")]
    done = subprocess.run(
        command, env={"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 10 * MIB  # 50,000 keys; 328 bytes for each were 16 MB.


def test_the_database_of_an_order_is_the_backends(tmp_path, monkeypatch):
    with RocksDBStateBackend(tmp_path / "state") as backend:
        order = backend.order_of_use()
        for slot in (b"a", b"b", b"c"):
            order.put(slot, backend.new_batch())
        order.use(b"a")
        assert order.oldest() == b"b"
        order.remove(b"b", backend.new_batch())
        order.remove(b"b", backend.new_batch())
        assert (len(order), order.oldest()) == (2, b"c")
        order.flush()
        invariants.check(order)
    with RocksDBStateBackend(tmp_path / "state") as backend:
        with monkeypatch.context() as patch:
            patch.setattr(Database, "scan", lambda *args: pytest.fail("it counts"))
            order = backend.order_of_use()
        assert (len(order), order.oldest()) == (2, b"c")
        order.use(b"c")
        assert order.oldest() == b"a"


@pytest.mark.parametrize("step", ["get", "stale", "is_old", "put"])
def test_L7_damage_that_shows_only_when_an_answer_is_read_clears_the_cache_and_is_logged(step, tmp_path, caplog):
    options: dict[str, Any] = {"max_rows": 3_000, "refresh_after": 1_000, "stale_if_error": True}
    cache = on_disk(tmp_path, **options)
    for key in range(3_000):
        cache.put(key, {"name": os.urandom(400).hex()})
    cache.close()
    tables = sorted((tmp_path / "0").glob("*.sst"), key=lambda path: path.stat().st_size)
    assert tables[-1].stat().st_size > 1_000_000 > 10 * tables[-2].stat().st_size  # The answers, and the others.
    data = bytearray(tables[-1].read_bytes())
    data[: len(data) // 10 * 9] = bytes(len(data) // 10 * 9)
    tables[-1].write_bytes(data)
    cache = on_disk(tmp_path, **options)
    assert len(cache) == 3_000
    assert not caplog.records
    steps: dict[str, Any] = {
        "get": lambda: cache.get(5),
        "stale": lambda: cache.stale(5),
        "is_old": lambda: cache.is_old(5),
        "put": lambda: cache.put("new", {"name": "x"}),
    }
    steps[step]()
    cache.get(2_000)
    assert "is cleared" in caplog.text
    assert len(caplog.records) == 1
    assert len(cache) == 0
    for key in range(20):
        assert cache.get(key) is ABSENT
        cache.put(key, {"born": key})
        assert cache.get(key) == {"born": key}
    assert len(cache) == 20
    check(cache)
    cache.close()
    cache = on_disk(tmp_path, **options)
    assert cache.get(7) == {"born": 7}
    cache.close()
    assert len(caplog.records) == 1
