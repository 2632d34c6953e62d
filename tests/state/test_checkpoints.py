"""Checkpoints: a backend and its timer services at one moment, whole or absent, also where somebody else wrote them."""

from __future__ import annotations

import copy
import itertools
import json
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.state import (
    HeapStateBackend,
    KeyGroupRange,
    ListStateDescriptor,
    MapStateDescriptor,
    RocksDBStateBackend,
    SnapshotReader,
    StateBackend,
    StateTtlConfig,
    ValueStateDescriptor,
    checkpoint,
    restore_checkpoint,
)
from asyncio_operator.testing.time import ManualClock
from asyncio_operator.timers import BatchTimerService, HeapQueues, InternalTimerService, RocksDBQueues

KINDS = ("heap", "rocksdb")
KEYS = (1, True, "text", (1, "a"), b"bytes", -(2**70))
END = 2**63 - 1


class Json:
    name = "json-1"

    def serialize(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def deserialize(self, data: bytes) -> Any:
        return json.loads(data)


JSON, LIST = ValueStateDescriptor("json", serializer=Json()), ListStateDescriptor("list")
LIVES = MapStateDescriptor("lives", ttl=StateTtlConfig(10.0, cleanup=()))


class Job:
    """A backend with a timer service for each container of timers, and one for batches."""

    def __init__(
        self, kind: str, directory: Path, key_groups: KeyGroupRange | None = None, max_parallelism: int = 128
    ) -> None:
        groups = key_groups or KeyGroupRange(0, max_parallelism - 1)
        self.clock = ManualClock()
        self.fired: list[Any] = []
        given: dict[str, Any] = {"key_groups": groups, "max_parallelism": max_parallelism, "clock": self.clock}
        self.backend: StateBackend
        if kind == "heap":
            self.backend = HeapStateBackend(**given)
            queues: Any = HeapQueues(groups, max_parallelism)
        else:
            self.backend = RocksDBStateBackend(directory / "state", **given)
            queues = RocksDBQueues(directory / "timers", groups, max_parallelism, cache_size=4)
        self.queues = queues
        heard: dict[str, Any] = {"on_event_time": self.fired.append, "on_processing_time": self.fired.append}
        self.timers = InternalTimerService(**heard, clock=self.clock, queues=queues)
        self.batch = BatchTimerService(**heard)

    def fill(self, keys: Any = KEYS) -> None:
        for key, namespace in itertools.product(keys, (None, "n", 7)):
            self.backend.set_current_key(key)
            self.backend.set_current_namespace(namespace)
            self.backend.value_state(JSON).update({"n": namespace, "key": repr(key)})
            self.backend.list_state(LIST).add_all([3, 1, 2, 1])
            self.backend.map_state(LIVES).put_all({"a": 1})
            self.timers.current_key = key
            self.timers.register_event_time_timer(5, namespace)
            self.timers.register_processing_time_timer(-3, namespace)
        self.batch.current_key = key
        self.batch.register_event_time_timer(9, "n")
        self.batch.register_processing_time_timer(8)

    def save(self, path: Path) -> None:
        checkpoint(path, self.backend, self.timers, self.batch)

    def load(self, *paths: Path) -> None:
        restore_checkpoint(paths if len(paths) > 1 else paths[0], self.backend, self.timers, self.batch)

    def contents(self, keys: Any = KEYS) -> list[Any]:
        found: list[Any] = [self.batch.current_key]
        for key, namespace in itertools.product(keys, (None, "n", 7)):
            self.backend.set_current_key(key)
            self.backend.set_current_namespace(namespace)
            lives = list(self.backend.map_state(LIVES).items())
            found.append((self.backend.value_state(JSON).value(), self.backend.list_state(LIST).get(), lives))
        for service in (self.timers, self.batch):
            found += [sorted(map(repr, service.event_time_timers()))]
            found += [sorted(map(repr, service.processing_time_timers()))]
        return found

    def close(self) -> None:
        self.backend.close()
        if isinstance(self.queues, RocksDBQueues):
            self.queues.close()


@pytest.fixture
def new(tmp_path):
    numbers, made = itertools.count(), []

    def make(kind: str, key_groups: KeyGroupRange | None = None, max_parallelism: int = 128) -> Job:
        made.append(Job(kind, tmp_path / f"job-{next(numbers)}", key_groups, max_parallelism))
        return made[-1]

    yield make
    for job in made:
        job.close()


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_S15_a_checkpoint_restores_into_every_kind_of_backend(source, target, new, tmp_path):
    job = new(source)
    job.fill()
    before = job.contents()
    job.save(tmp_path / "some" / "checkpoint")
    job.fill()
    assert job.contents() != before
    first, again = new(target), new(target)
    for restored in (first, again):
        restored.load(tmp_path / "some" / "checkpoint")
        assert restored.contents() == before
    again.clock.advance(10.0)
    again.backend.set_current_key("text")
    assert list(again.backend.map_state(LIVES).items()) == []
    again.backend.list_state(LIST).add("later")
    assert again.backend.list_state(LIST).get()[-1] == "later"
    assert [path.name for path in (tmp_path / "some").iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("kind", KINDS)
def test_S15_a_checkpoint_is_read_without_pickle_and_without_the_job(kind, new, tmp_path):
    job = new(kind)
    job.fill()
    job.save(tmp_path / "checkpoint")
    job.close()
    program = (
        "import sys\n"
        "for name in ('pickle', '_pickle', 'cloudpickle', 'marshal'):\n"
        "    sys.modules[name] = None\n"
        "from asyncio_operator.state import HeapStateBackend, restore_checkpoint\n"
        "from asyncio_operator.timers import BatchTimerService, InternalTimerService\n"
        "backend, timers = HeapStateBackend(), InternalTimerService()\n"
        "restore_checkpoint(sys.argv[1], backend, timers, BatchTimerService())\n"
        "print(backend.num_entries(), len(list(timers.event_time_timers())))\n"
    )
    if kind == "rocksdb":
        program = program.replace("'pickle', '_pickle', ", "")  # rocksdict itself imports it.
    command = [sys.executable, "-c", program, str(tmp_path / "checkpoint")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert ended.stdout.split() == [str(len(KEYS) * 3 * 6), str(len(KEYS) * 3)], ended.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_S15_nothing_is_written_over(kind, new, tmp_path):
    job = new(kind)
    for make in (Path.mkdir, Path.touch):
        place = tmp_path / "place"
        make(place)
        with pytest.raises(StateError, match=r"place exists already: take another path"):
            job.save(place)
        shutil.rmtree(place) if place.is_dir() else place.unlink()


@pytest.mark.parametrize("kind", KINDS)
def test_S15_a_checkpoint_that_lacks_a_file_or_a_piece_of_one_is_damaged(kind, new, tmp_path):
    job = new(kind)
    job.fill()
    job.save(tmp_path / "whole")
    files = [path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*") if path.is_file()]
    assert len(files) >= 3
    for number, (name, cut) in enumerate(itertools.product(files, (None, 0, 1))):
        torn = tmp_path / f"torn-{number}"
        shutil.copytree(tmp_path / "whole", torn)
        data = (torn / name).read_bytes()
        if cut is None:
            (torn / name).unlink()
        elif data:
            (torn / name).write_bytes(data[:-1] if cut else b"")
        else:
            continue
        again = new("heap")
        with pytest.raises(StateError, match=rf"torn-{number}.*restore another one"):
            again.load(torn)
        assert again.backend.num_entries() == 0
    new("heap").load(tmp_path / "whole")


def test_S15_a_flipped_bit_anywhere_in_a_checkpoint_is_a_state_error(new, tmp_path):
    job = new("heap")
    job.fill(KEYS[:1])
    job.save(tmp_path / "checkpoint")
    for path in sorted((tmp_path / "checkpoint").iterdir()):
        whole = path.read_bytes()
        for place in range(0, len(whole), 29):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
            backend, timers, batch = HeapStateBackend(), InternalTimerService(), BatchTimerService()
            with pytest.raises(StateError, match="checkpoint"):
                restore_checkpoint(tmp_path / "checkpoint", backend, timers, batch)
            assert backend.num_entries() == 0
            assert not list(timers.event_time_timers())
        path.write_bytes(whole)
    new("heap").load(tmp_path / "checkpoint")


def manifest_of(directory: Path) -> Any:
    return json.loads((directory / "CHECKPOINT").read_bytes().partition(b"\n")[2])


def rewrite(directory: Path, body: bytes, head: bytes = b"asyncio-operator checkpoint 1 %08x") -> None:
    (directory / "CHECKPOINT").write_bytes((head % crc32(body) if b"%" in head else head) + b"\n" + body)


def test_S15_a_checkpoint_of_another_version_is_refused(new, tmp_path):
    for name, version, changes in (("checkpoint", 2, {}), ("layout", 1, {"layout": 9})):
        new("heap").save(tmp_path / name)
        manifest = manifest_of(tmp_path / name)
        manifest["state"].update(changes)
        head = b"asyncio-operator checkpoint %d %%08x" % version
        rewrite(tmp_path / name, json.dumps(manifest).encode(), head)
        with pytest.raises(StateError, match=rf"{name} has .*format [29].*take it to the version that wrote it"):
            new("heap").load(tmp_path / name)


def test_S15_what_does_not_fit_is_refused_and_named(new, tmp_path):
    job = new("heap")
    job.fill()
    job.save(tmp_path / "whole")
    half = new("heap", KeyGroupRange(0, 63))
    checkpoint(tmp_path / "half", half.backend, half.timers, half.batch)
    with pytest.raises(StateError, match=r"whole was taken with max_parallelism=128, this backend has 64"):
        new("heap", None, 64).load(tmp_path / "whole")
    with pytest.raises(StateError, match=r"key group 64 of .* is in none of the checkpoints .*half"):
        new("heap").load(tmp_path / "half")
    with pytest.raises(StateError, match=r"hold the same key groups"):
        new("heap").load(tmp_path / "half", tmp_path / "whole")
    with pytest.raises(StateError, match=r"whole holds the services \['timers', 'batch timers'\], and \['timers'\]"):
        restore_checkpoint(tmp_path / "whole", HeapStateBackend(), InternalTimerService())
    with pytest.raises(StateError, match=r"nothing.*correct the path"):
        new("heap").load(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StateError, match=r"empty is not a checkpoint, or was never completed"):
        new("heap").load(tmp_path / "empty")
    with pytest.raises(StateError, match="has timers already"):
        restore_checkpoint(tmp_path / "whole", HeapStateBackend(), job.timers, BatchTimerService())
    with pytest.raises(StateError, match="has a key already"):
        restore_checkpoint(tmp_path / "whole", HeapStateBackend(), InternalTimerService(), job.batch)
    with pytest.raises(StateError, match="comes too late"):
        restore_checkpoint(tmp_path / "whole", job.backend, InternalTimerService(), BatchTimerService())
    other = InternalTimerService(queues=HeapQueues(KeyGroupRange(0, 5)))
    for action in (
        lambda: checkpoint(tmp_path / "another", job.backend, other),
        lambda: restore_checkpoint(tmp_path / "whole", HeapStateBackend(), other, BatchTimerService()),
    ):
        with pytest.raises(ConfigurationError, match="cannot share a checkpoint"):
            action()
    assert not (tmp_path / "another").exists()
    closed = HeapStateBackend()
    closed.close()
    with pytest.raises(StateError, match="is closed"):
        checkpoint(tmp_path / "another", closed)
    for arguments in (("", HeapStateBackend()), (tmp_path / "a", "backend"), (tmp_path / "a", HeapStateBackend(), Job)):
        with pytest.raises(ConfigurationError, match=r"it must be|is needed"):
            checkpoint(*arguments)
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("job-")) == [
        "empty",
        "half",
        "whole",
    ]


def test_S15_a_checkpoint_that_cannot_be_written_leaves_nothing(new, tmp_path):
    job = new("heap")
    job.fill()
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match=r"file/checkpoint cannot be written: remove the cause, or take another path"):
        job.save(tmp_path / "file" / "checkpoint")
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("job-")] == ["file"]
    job.backend.num_entries()


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
