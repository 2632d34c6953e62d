"""S14: a damaged log is a StateError, wherever a bit is wrong; a torn tail opens with every earlier write."""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncio_operator.errors import StateError
from asyncio_operator.state import RocksDBSnapshot, RocksDBStateBackend, ValueStateDescriptor
from asyncio_operator.state.rocksdb.log import BLOCK, LogCheck

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


def run_until_killed(program: str, *arguments: object) -> None:
    """Runs a program that kills itself."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    died = subprocess.run(command, check=False, env={"PYTHONPATH": os.pathsep.join(sys.path)})
    assert died.returncode == -signal.SIGKILL


def killed(directory: Path, count: int, length: int = 50) -> Path:
    """A directory whose process was killed after `count` writes; gives its log."""
    run_until_killed(WRITER, directory, count, length)
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
    records = list(records_of(data))
    assert len(data) > 3 * BLOCK
    assert records[-1][1] == len(data)
    assert LogCheck(tmp_path / "state").damage is None
    headers = [start + place for start, _ in (records[0], records[-2], records[-1]) for place in range(HEADER)]
    flips = [(place, bit) for place in headers for bit in (0, 3, 7)]
    for place, bit in [*flips, *((rng.randrange(len(data)), rng.randrange(8)) for _ in range(30))]:
        with pytest.raises(StateError, match=r"is damaged: restore a snapshot"):
            RocksDBStateBackend(copy_with(tmp_path / "state", tmp_path / "copy", log, flipped(data, place, bit)))
    assert kept(tmp_path / "state", count) == count


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


def one_kept(directory: Path, tmp_path: Path) -> Path:
    """A directory of a killed process, whose MANIFEST has records of every kind, and which has a snapshot beside it."""
    script = """
import os, sys
from asyncio_operator.state import *
backend = RocksDBStateBackend(sys.argv[1])
state = backend.value_state(ValueStateDescriptor("v"))
for turn in range(2):
    for key in range(50):
        backend.set_current_key(key)
        state.update(turn)
    snapshot = backend.snapshot(sys.argv[2] + str(turn))
os.kill(os.getpid(), 9)
"""
    run_until_killed(script, directory, tmp_path / "snapshot")
    return tmp_path / "snapshot1"


def test_S14_a_flipped_bit_anywhere_in_the_manifest_is_a_state_error_before_RocksDB_reads_it(tmp_path):
    snapshot = one_kept(tmp_path / "state", tmp_path)
    for directory, open_it in ((tmp_path / "state", RocksDBStateBackend), (snapshot, RocksDBSnapshot)):
        manifest = next(directory.glob("MANIFEST-*"))
        data = manifest.read_bytes()
        headers = [place for start, _ in records_of(data) for place in range(start + 4, start + HEADER)]
        for place in [*headers, *range(0, len(data), 29)]:
            for bit in range(8):
                manifest.unlink()
                manifest.write_bytes(flipped(data, place, bit))
                with pytest.raises(StateError, match="damaged: restore a snapshot"):
                    open_it(directory)
        manifest.write_bytes(data)
    assert kept(tmp_path / "state", 50) == 50


def test_S11_a_manifest_torn_in_its_last_record_is_no_damage(tmp_path):
    one_kept(tmp_path / "state", tmp_path)
    manifest = next((tmp_path / "state").glob("MANIFEST-*"))
    data = manifest.read_bytes()
    start, end = list(records_of(data))[-1]
    for length in range(start, end):
        manifest.write_bytes(data[:length])
        assert LogCheck(tmp_path / "state").damage is None


@pytest.mark.parametrize("size", [7, 512, 4096])
def test_S14_zeros_in_place_of_records_of_the_log_are_a_state_error(size, tmp_path):
    log = killed(tmp_path / "state", 300)
    data = log.read_bytes()
    start = list(records_of(data))[30][0]
    assert start + size < len(data) < BLOCK
    copy = copy_with(tmp_path / "state", tmp_path / "copy", log, data[:start] + bytes(size) + data[start + size :])
    with pytest.raises(StateError, match="is damaged: restore a snapshot"):
        RocksDBStateBackend(copy)


SEVERAL_LOGS = """
import os, sys
from pathlib import Path
from asyncio_operator.state import *
options = RocksDBOptions(write_buffer_bytes=4 << 20, max_log_bytes=64 << 20)
backend = RocksDBStateBackend(sys.argv[1], options=options)
small, large = (backend.value_state(ValueStateDescriptor(name)) for name in ("small", "large"))
key = 0
while len(list(Path(sys.argv[1]).glob("*.log"))) < 4:
    backend.set_current_key(key := key + 1)
    if key % 100 == 1:
        small.update(key)
    large.update(os.urandom(20_000))
for key in range(20):
    backend.set_current_key(key)
    small.update(0)
os.kill(os.getpid(), 9)
"""


def test_S14_a_log_that_is_cut_or_missing_between_others_is_a_state_error(tmp_path):
    run_until_killed(SEVERAL_LOGS, tmp_path / "state")
    logs = sorted((tmp_path / "state").glob("*.log"))
    older = logs[-2]
    data = older.read_bytes()
    cut = list(records_of(data))[len(list(records_of(data))) // 2]
    for length in (cut[0], cut[0] + 3, cut[1] - 1):
        with pytest.raises(StateError, match=r"is damaged.*writes are missing before .*\.log"):
            RocksDBStateBackend(copy_with(tmp_path / "state", tmp_path / "copy", older, data[:length]))
    copy = copy_with(tmp_path / "state", tmp_path / "copy", older, data)
    (copy / older.name).unlink()
    if len(logs) > 2:
        with pytest.raises(StateError, match=r"is damaged.*writes are missing before .*\.log"):
            RocksDBStateBackend(copy)
    RocksDBStateBackend(tmp_path / "state").close()


def test_S11_a_hole_among_logs_that_are_no_longer_needed_is_no_damage(tmp_path):
    first, second = (log_of(start) for start in (1, 100))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "000004.log").write_bytes(first)
    (tmp_path / "logs" / "000007.log").write_bytes(second)
    found = LogCheck(tmp_path / "logs")
    assert found.hole(5) is None
    assert found.hole(4) == "000007.log, byte 0"


def log_of(start: int) -> bytes:
    """A log of one record, a batch of three writes."""
    return struct.pack("<IHBQI", 0, 12, 1, start, 3)
