"""Disks that are full or not to be written, under keyed state and a cache of RocksDB.

A directory that cannot be used at all is one clear error; if it fills up on the way, no lookup fails because of its
cache. The disks are file systems in memory; mounting one needs root, and without these tests are passed over.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from asyncio_operator import Cache, ConfigurationError
from asyncio_operator.lookup import Lookup
from asyncio_operator.spark import enrich
from enrichers import FunctionEnricher

KEYS = 3000


class Disk:
    """A small disk.

    Attributes:
        path: where it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, left: int = 0) -> None:
        """Leave this number of bytes free."""
        with (self.path / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                file.truncate(file.tell() - left)

    def read_only(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.decode().strip()}")
    yield Disk(path)
    subprocess.run(["umount", "-l", str(path)], check=True)


def answers() -> FunctionEnricher:
    async def look(key: int) -> Any:
        return {"x": f"{key}-" * 200}

    return FunctionEnricher(look, "x string")


def row(key: int) -> dict[str, str]:
    return {"x": f"{key}-" * 200}


def cache_on(directory: Path) -> Cache:
    return Cache(store="rocksdb", directory=str(directory))


async def ask(lookup: Lookup) -> None:
    assert [await lookup.get(key) for key in range(KEYS)] == [row(key) for key in range(KEYS)]


async def test_a_disk_that_fills_up_costs_no_answer_and_is_told_once(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    async with Lookup(answers(), cache=cache_on(disk.path / "cache")) as lookup:
        disk.fill(left=500_000)
        await ask(lookup)
        await ask(lookup)
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [message for message in told if "cannot be kept" in message and "No space left" in message] == told[:1]
    assert len(told) <= 3, "each kind of trouble once"
    (disk.path / "filler").unlink()
    async with Lookup(answers(), cache=cache_on(disk.path / "cache")) as lookup:
        await ask(lookup)


async def test_a_full_disk_is_one_clear_error_before_anything_is_looked_up(disk: Disk) -> None:
    disk.fill()
    with pytest.raises(
        ConfigurationError, match=rf"the directory '{disk.path}/cache' of a cache cannot be used: .*pace"
    ):
        async with Lookup(answers(), cache=cache_on(disk.path / "cache")):
            pass


@pytest.mark.parametrize("warm", [False, True], ids=["new", "warm"])
async def test_a_disk_that_cannot_be_written_is_one_clear_error(disk: Disk, warm: bool) -> None:
    if warm:
        async with Lookup(answers(), cache=cache_on(disk.path / "cache")) as lookup:
            await ask(lookup)
    disk.read_only()
    with pytest.raises(ConfigurationError, match=rf"the directory '{disk.path}/cache' .*Read-only file system"):
        async with Lookup(answers(), cache=cache_on(disk.path / "cache")):
            pass


async def test_a_file_in_place_of_the_directory_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(ConfigurationError, match=rf"the directory '{tmp_path}/cache' of a cache cannot be used: "):
        async with Lookup(answers(), cache=cache_on(tmp_path / "cache")):
            pass


@pytest.mark.spark
@pytest.mark.faults
def test_a_disk_that_fills_up_under_the_caches_of_a_job_costs_no_row(spark: SparkSession, disk: Disk) -> None:
    numbers = spark.range(0, 4 * KEYS, numPartitions=2)
    for _ in range(2):
        rows = enrich(numbers, answers(), on="id", cache=cache_on(disk.path / "cache")).collect()
        assert [tuple(each) for each in rows] == [(key, row(key)["x"]) for key in range(4 * KEYS)]


@pytest.mark.spark
@pytest.mark.faults
@pytest.mark.parametrize("state", ["full", "read-only"])
def test_a_disk_that_cannot_be_used_fails_the_job_and_names_the_directory(
    spark: SparkSession, disk: Disk, state: str
) -> None:
    disk.fill() if state == "full" else disk.read_only()
    with pytest.raises(Exception, match=rf"the directory '{disk.path}/cache' of a cache cannot be used"):
        enrich(spark.range(10), answers(), on="id", cache=cache_on(disk.path / "cache")).collect()
    assert enrich(spark.range(10), answers(), on="id").count() == 10


FILL = """
import random, shutil, sys
from contextlib import suppress
from pathlib import Path

from asyncio_operator.errors import StateError
from asyncio_operator.state import RocksDBOptions, RocksDBStateBackend, ValueStateDescriptor

disk, copy = map(Path, sys.argv[1:])
options, values = RocksDBOptions(write_buffer_bytes=1 << 20, max_log_bytes=1 << 20), random.Random(1)
for _ in range(8):
    written, full = [], None
    backend = RocksDBStateBackend(disk / "state", options=options)
    state = backend.value_state(ValueStateDescriptor("value"))
    while full is None:
        backend.set_current_key(len(written))
        value = values.randbytes(20_000)
        try:
            state.update(value)
            written.append(value)
        except StateError as error:
            full = str(error)
    assert "No space left on device" in full, full
    with suppress(StateError):
        backend.close()
    shutil.move(disk / "state", copy)
    backend = RocksDBStateBackend(copy)
    state = backend.value_state(ValueStateDescriptor("value"))
    for key, value in enumerate(written):
        backend.set_current_key(key)
        assert state.value() == value, key
    backend.close()
    shutil.rmtree(copy)
"""
"""Writes values faster than RocksDB writes them to files, until the disk is full, and then looks for all of them."""


@pytest.mark.faults
def test_S11_S14_a_write_to_a_full_disk_is_an_error_and_does_not_wait_for_ever(disk: Disk, tmp_path: Path) -> None:
    # In a process of its own, because what waits inside of RocksDB cannot be interrupted.
    program = [sys.executable, "-c", FILL, str(disk.path), str(tmp_path / "copy")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
