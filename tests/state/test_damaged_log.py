"""S14: a damaged log is a StateError, wherever a bit is wrong; a torn tail opens with every earlier write."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncio_operator.errors import StateError
from asyncio_operator.state import HeapStateBackend, RocksDBSnapshot, RocksDBStateBackend, ValueStateDescriptor
from asyncio_operator.state.rocksdb.log import BLOCK, damage_of

VALUE = ValueStateDescriptor("v")
HEADER = 7
"""Bytes before the data of a record in a log: checksum, length, type."""

WRITER = """
import os, sys
from asyncio_operator.state import *
state = (backend := RocksDBStateBackend(sys.argv[1])).value_state(ValueStateDescriptor("v"))
for key in range(int(sys.argv[2])):
    backend.set_current_key(key)
    state.update("x" * int(sys.argv[3]))
os.kill(os.getpid(), 9)
"""


def killed(directory: Path, count: int, length: int = 50) -> Path:
    """A directory whose process was killed after `count` writes; gives its log."""
    command = [sys.executable, "-c", WRITER, str(directory), str(count), str(length)]
    died = subprocess.run(command, check=False, env={"PYTHONPATH": os.pathsep.join(sys.path)})
    assert died.returncode == -signal.SIGKILL
    return max(directory.glob("*.log"), key=lambda path: path.stat().st_size)


def records_of(data: bytes) -> Iterator[tuple[int, int]]:
    """Beginning and end of each record in a log."""
    place = 0
    while place + HEADER <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER:
            place += left
            continue
        end = place + HEADER + int.from_bytes(data[place + 4 : place + 6], "little")
        yield place, end
        place = end


def copy_with(directory: Path, target: Path, log: Path, data: bytes) -> Path:
    """A copy of a directory with another log."""
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(directory, target)
    (target / log.name).write_bytes(data)
    return target


def kept(directory: Path, count: int) -> int:
    """How many of the first keys are there, one behind the other."""
    with RocksDBStateBackend(directory) as backend:
        state = backend.value_state(VALUE)
        for key in range(count):
            backend.set_current_key(key)
            if state.value() is None:
                return key
    return count


def flipped(data: bytes, place: int, bit: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def test_S14_a_flipped_bit_anywhere_in_the_log_is_a_state_error(tmp_path):
    count, rng = 2000, random.Random(3)
    log = killed(tmp_path / "state", count)
    data = log.read_bytes()
    assert len(data) > 3 * BLOCK
    assert damage_of(tmp_path / "state") is None
    for _ in range(60):
        damaged = flipped(data, rng.randrange(len(data)), rng.randrange(8))
        with pytest.raises(StateError, match=r"is damaged: restore a snapshot"):
            RocksDBStateBackend(copy_with(tmp_path / "state", tmp_path / "copy", log, damaged))
    assert kept(tmp_path / "state", count) == count


def test_S14_a_flipped_bit_in_the_header_of_a_record_is_a_state_error(tmp_path):
    log = killed(tmp_path / "state", 500)
    data = log.read_bytes()
    records = list(records_of(data))
    assert records[-1][1] == len(data)
    for start, _ in (records[0], records[len(records) // 2], records[-2], records[-1]):
        for place in range(start, start + HEADER):
            for bit in range(8):
                copy = copy_with(tmp_path / "state", tmp_path / "copy", log, flipped(data, place, bit))
                with pytest.raises(StateError, match="damaged"):
                    RocksDBStateBackend(copy)


def test_S11_a_tail_torn_at_any_byte_of_the_last_record_opens_with_every_earlier_write(tmp_path):
    count = 20
    log = killed(tmp_path / "state", count)
    data = log.read_bytes()
    start, end = list(records_of(data))[-1]
    assert end == len(data)
    for length in range(start, end):
        copy = copy_with(tmp_path / "state", tmp_path / "copy", log, data[:length])
        assert kept(copy, count) == count - 1, f"torn {length - start} bytes behind its beginning"
    assert kept(copy_with(tmp_path / "state", tmp_path / "copy", log, data), count) == count


@pytest.mark.parametrize("length", [40_000, 100_000])
def test_S11_a_tail_torn_within_a_write_of_several_blocks_opens_with_every_earlier_write(length, tmp_path):
    count = 3
    log = killed(tmp_path / "state", count, length)
    data = log.read_bytes()
    starts = [start for start, _ in records_of(data)]
    for start in [start for start in starts if start > len(data) - length]:
        for place in (start - 1, start, start + 1, start + HEADER, start + HEADER + 1, start + 100):
            copy = copy_with(tmp_path / "state", tmp_path / "copy", log, data[:place])
            assert kept(copy, count) == count - 1


def test_S14_a_snapshot_with_a_damaged_log_is_a_state_error(tmp_path):
    with RocksDBStateBackend(tmp_path / "state") as backend:
        backend.set_current_key("k")
        backend.value_state(VALUE).update("x" * 100)
        snapshot = backend.snapshot()
    assert isinstance(snapshot, RocksDBSnapshot)
    logs = [path for path in snapshot.directory.glob("*.log") if path.stat().st_size]
    for log in logs:
        data = log.read_bytes()
        log.write_bytes(flipped(data, list(records_of(data))[-1][0] + 6, 2))
    if logs:
        with pytest.raises(StateError, match="damaged"):
            HeapStateBackend().restore([RocksDBSnapshot(snapshot.directory)])


def test_S14_a_log_of_the_default_size_is_looked_through_in_part_of_a_second(tmp_path):
    import time

    log = killed(tmp_path / "state", 100)
    start, end = list(records_of(log.read_bytes()))[-1]
    record = log.read_bytes()[start:end]
    block = record * (BLOCK // len(record))
    block += bytes(BLOCK - len(block))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "000001.log").write_bytes(block * ((32 << 20) // BLOCK))
    begun = time.monotonic()
    assert damage_of(tmp_path / "logs") is None
    assert time.monotonic() - begun < 1
