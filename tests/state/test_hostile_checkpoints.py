"""S15: a checkpoint that somebody else wrote, with checksums that fit, is restored or is a StateError, nothing else."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from asyncio_operator.errors import StateError
from asyncio_operator.state import (
    HeapStateBackend,
    MapStateDescriptor,
    SnapshotReader,
    StateTtlConfig,
    ValueStateDescriptor,
    checkpoint,
    restore_checkpoint,
)
from asyncio_operator.timers import InternalTimerService

REMOVED = object()
HOSTILE: list[Any] = [
    None,
    -1,
    2**62,
    10**30,
    "x",
    [],
    {},
    1.5,
    True,
    [1, 2, 3],
    {"a": 1},
    [0, 2**62, 0],
    "\0",
    REMOVED,
]


@pytest.fixture
def directory(tmp_path):
    backend, timers = HeapStateBackend(), InternalTimerService()
    backend.set_current_key(1)
    backend.value_state(ValueStateDescriptor("v")).update(1)
    backend.map_state(MapStateDescriptor("m", ttl=StateTtlConfig(50))).put(1, 2)
    timers.current_key = 1
    timers.register_event_time_timer(5)
    checkpoint(tmp_path / "checkpoint", backend, timers)
    return tmp_path / "checkpoint"


def manifest_of(directory: Path) -> Any:
    return json.loads((directory / "CHECKPOINT").read_bytes().partition(b"\n")[2])


def rewrite(directory: Path, body: bytes, head: bytes = b"asyncio-operator checkpoint 1 %08x") -> None:
    (directory / "CHECKPOINT").write_bytes((head % crc32(body) if b"%" in head else head) + b"\n" + body)


def use(directory: Path) -> None:
    """Every error but a StateError fails the test."""
    with suppress(StateError):
        restore_checkpoint(directory, HeapStateBackend(), InternalTimerService())
    with suppress(StateError):
        reader = SnapshotReader(directory)
        for state in reader.states():
            with suppress(StateError):
                reader.namespaces(state.name)
            with suppress(StateError):
                list(reader.entries(state.name))


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    if isinstance(value, dict):
        for name in value:
            yield from places(value[name], (*place, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*place, index))


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return None if new is REMOVED else new
    result = part = copy.deepcopy(value)
    for step in place[:-1]:
        part = part[step]
    if new is REMOVED:
        del part[place[-1]]
    else:
        part[place[-1]] = new
    return result


def test_S15_every_odd_part_of_a_manifest_is_a_state_error_or_harmless(directory):
    whole = manifest_of(directory)
    for place in places(whole):
        for new in HOSTILE:
            rewrite(directory, json.dumps(changed(whole, place, new)).encode())
            use(directory)


@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000, b"{", b"\xff", b'{"max_parallelism":' + b"1" * 5000 + b"}", b"null", b"{}"],
    ids=["deep", "half", "no text", "a number of 5000 digits", "null", "empty"],
)
def test_S15_a_manifest_that_is_no_manifest_is_a_state_error(body, directory):
    rewrite(directory, body)
    for open_it in (SnapshotReader, lambda path: restore_checkpoint(path, HeapStateBackend(), InternalTimerService())):
        with pytest.raises(StateError, match="damaged"):
            open_it(directory)
    rewrite(directory, b"{}", b"asyncio-operator checkpoint " + b"1" * 5000 + b" 00000000")
    with pytest.raises(StateError, match="damaged"):
        SnapshotReader(directory)


@pytest.mark.parametrize("name", ["rows", "timers"])
def test_S15_odd_bytes_under_a_right_checksum_are_a_state_error_or_harmless(name, directory):
    rng = random.Random(1)
    good = (directory / name).read_bytes()
    odd = [b"", b"\0", b"\xff" * 8, b"\0\0\0\1", bytes(8), struct.pack(">I", 200_000) + b"\x0f" * 200_000]
    odd += [bytes(rng.randrange(256) for _ in range(40)) for _ in range(30)]
    odd += [bytes(byte ^ (rng.random() < 0.05) << rng.randrange(8) for byte in good) for _ in range(100)]
    whole = manifest_of(directory)
    holder = whole["state"]["segments"]["m"] if name == "rows" else whole["services"][0]["segments"]
    for data in odd:
        (directory / name).write_bytes(data)
        whole["files"][name] = len(data)
        holder[next(iter(holder))] = [0, len(data), crc32(data)]
        rewrite(directory, json.dumps(whole).encode())
        use(directory)
