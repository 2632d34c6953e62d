"""How long directories of RocksDB take to open, beside the second that law S14 allows."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from asyncio_operator import Cache
from asyncio_operator.lookup.cache_directories import open_cache
from asyncio_operator.state import RocksDBStateBackend
from benchmarks import Row, Rows

ALLOWED = 1.0
"""Seconds, by law S14."""

KILLED = """
import os, sys
from asyncio_operator.state import *
state = (backend := RocksDBStateBackend(sys.argv[1])).value_state(ValueStateDescriptor("v"))
for number in range(int(sys.argv[3])):
    backend.set_current_key(number % 100)
    state.update(os.urandom(int(sys.argv[2])))
os.kill(os.getpid(), 9)
"""


def opening() -> Rows:
    """Opening after a kill (large and small records in the log), and a full cache of the default size."""
    with tempfile.TemporaryDirectory() as directory:
        for length, writes in ((10_000, 30_000), (10, 300_000)):
            path = Path(directory, str(length))
            subprocess.run([sys.executable, "-c", KILLED, str(path), str(length), str(writes)], check=False)
            begun = perf_counter()
            RocksDBStateBackend(path).close()
            yield _row(f"state after a kill, records of {length:,} bytes", perf_counter() - begun)
        options = Cache(store="rocksdb", directory=os.path.join(directory, "cache"))
        cache = open_cache(options, "benchmark")
        for key in range(options.max_rows):
            cache.put(key, {"a": "x" * 5_000})
        cache.close()
        begun = perf_counter()
        open_cache(options, "benchmark").close()
        yield _row("a full cache of the default size", perf_counter() - begun)


def _row(what: str, seconds: float) -> Row:
    return "opening", what, f"{seconds:.3f} s", f"{ALLOWED} s", seconds / ALLOWED, "<= 1"
