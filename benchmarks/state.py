"""Keyed state, priority-queue sets, time to live and timers, compared with the plain containers below them.

Each pair is measured in turns, and the best of three is taken, because a disturbance can only add time. The plain side
is hand-written code without this library, with the same bytes.
"""

from __future__ import annotations

import heapq
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

from rocksdict import Options, Rdict

from asyncio_operator.state import (
    BuiltinSerializer,
    HeapPriorityQueueSet,
    HeapStateBackend,
    KeyGroupRange,
    ListStateDescriptor,
    MapStateDescriptor,
    RocksDBStateBackend,
    StateBackend,
    StateTtlConfig,
    ValueStateDescriptor,
)
from asyncio_operator.testing.time import ManualClock
from asyncio_operator.timers import HeapQueues, InternalTimerService, RocksDBQueues
from benchmarks import Rows

TURNS = 3
QUEUE = 200_000
OPERATIONS = 50_000
SLICE = 1_000
MAP = 10_000
TIMERS = 1_000_000
ENTRIES = 1_000_000


def s9() -> Rows:
    """Heap priority-queue set, add all then poll all, against heapq push and pop of the same tuples, in CPU time."""
    numbers = random.Random(9)
    elements = [(numbers.randrange(10**9), key) for key in range(QUEUE)]

    def ours() -> None:
        queue: HeapPriorityQueueSet[tuple[int, int]] = HeapPriorityQueueSet(
            lambda element: element[0], lambda element: element[1], KeyGroupRange(0, 127), 128
        )
        for element in elements:
            queue.add(element)
        while queue.poll() is not None:
            pass

    def bare() -> None:
        heap: list[tuple[int, int, tuple[int, int]]] = []
        for number, element in enumerate(elements):
            heapq.heappush(heap, (element[0], number, element))
        while heap:
            heapq.heappop(heap)

    yield _row("S9", "heap priority-queue set, add all + poll all", *_best(ours, bare, thread_time), QUEUE, "<= 2")


def s10() -> Rows:
    """RocksDB value state, set key + get + put, against bare rocksdict of the same bytes, in CPU time of the thread."""
    numbers = random.Random(10)
    for what, keys in (
        ("new int keys", list(range(OPERATIONS))),
        ("new text keys", [f"customer {number:06}" for number in range(OPERATIONS)]),
        ("text keys seen lately", [f"customer {numbers.randrange(5_000):06}" for _ in range(OPERATIONS)]),
    ):
        times = _best_of_turns([_get_and_put(keys) for _ in range(TURNS)])
        yield _row("S10", f"RocksDB value state, set key + get + put, {what}", *times, OPERATIONS, "<= 1.6")


def _get_and_put(keys: Sequence[Any]) -> list[tuple[float, float]]:
    """The times of both sides, slice by slice, in new directories."""
    with _directory() as directory, _rocksdb(directory / "ours") as backend, _bare(directory / "bare") as database:
        state = backend.value_state(ValueStateDescriptor("value"))
        value = "x" * 95
        stored = BuiltinSerializer().serialize(value)
        addresses = []
        with _heap() as other:
            for key in keys:
                other.set_current_key(key)
                addresses.append(other.require_slot())

        def ours(start: int) -> None:
            for key in keys[start : start + SLICE]:
                backend.set_current_key(key)
                state.value()
                state.update(value)

        def bare(start: int) -> None:
            for address in addresses[start : start + SLICE]:
                database.get(address)
                database.put(address, stored)

        starts = range(0, len(keys), SLICE)
        sides = [(partial(ours, start), partial(bare, start)) for start in starts]
        return [(_timed(mine, thread_time)[0], _timed(its, thread_time)[0]) for mine, its in sides]


def list_append() -> Rows:
    """RocksDB list state, one element at a time, against bare puts under a counter."""
    with _directory() as directory, _rocksdb(directory / "ours") as backend, _bare(directory / "bare") as bare_database:
        backend.set_current_key("key")
        state = backend.list_state(ListStateDescriptor("list"))
        prefix, stored = backend.require_slot(), b"\x03" + bytes(8)

        def ours() -> None:
            for number in range(OPERATIONS):
                state.add(number)

        def bare() -> None:
            for number in range(OPERATIONS):
                bare_database.put(prefix + number.to_bytes(8, "big"), stored)

        yield _row("", "RocksDB list state, append", *_best(ours, bare), OPERATIONS)


def map_access() -> Rows:
    """RocksDB map state of 10,000 entries, put and get by user key, against bare puts and gets of the same bytes."""
    with _directory() as directory, _rocksdb(directory / "ours") as backend, _bare(directory / "bare") as bare_database:
        backend.set_current_key("key")
        state = backend.map_state(MapStateDescriptor("map"))
        state.put_all({key: key for key in range(MAP)})
        rows = list(backend.table("map").scan(backend.require_slot()))
        addresses = [(backend.require_slot() + sub, stored) for sub, stored in rows]

        def put() -> None:
            for key in range(MAP):
                state.put(key, key)

        def bare_put() -> None:
            for address, stored in addresses:
                bare_database.put(address, stored)

        def get() -> None:
            for key in range(MAP):
                state.get(key)

        def bare_get() -> None:
            for address, _ in addresses:
                bare_database.get(address)

        yield _row("", "RocksDB map state of 10,000 entries, put", *_best(put, bare_put), MAP)
        yield _row("", "RocksDB map state of 10,000 entries, get", *_best(get, bare_get), MAP)


def containers() -> Rows:
    """A dict in a value state, a list state, a map state, of 5 to 5,000 entries: RocksDB against the heap, in CPU time
    of the thread."""
    with _directory() as directory, _rocksdb(directory / "state") as disk, _heap() as heap:
        for count in (5, 50, 500, 5_000):
            actions = [_container_actions(backend, count) for backend in (disk, heap)]
            for on_disk, in_memory in zip(*actions, strict=True):
                turns = max(3, 2_000 // count)
                (what, ours), (_, theirs) = on_disk, in_memory
                times = _best(partial(_repeat, ours, turns), partial(_repeat, theirs, turns), thread_time)
                yield _row("", f"{what}, {count:,} entries: RocksDB against heap", *times, turns)


def _container_actions(backend: StateBackend, count: int) -> list[tuple[str, Callable[[], Any]]]:
    """One change and a whole read of each kind of state, by name."""
    backend.set_current_key(count)
    entries = {f"entry {number:04}": number for number in range(count)}
    value = backend.value_state(ValueStateDescriptor("value"))
    elements = backend.list_state(ListStateDescriptor("list"))
    # A list of its own, so that the other one keeps its length.
    appended = backend.list_state(ListStateDescriptor("appended"))
    by_key = backend.map_state(MapStateDescriptor("map"))
    value.update(entries)
    elements.update([[name, number] for name, number in entries.items()])
    by_key.put_all(entries)

    def change_value() -> None:
        held = value.value()
        assert held is not None
        held["entry 0003"] = 7
        value.update(held)

    def change_list() -> None:
        held = elements.get()
        held[3] = ["entry 0003", 7]
        elements.update(held)

    return [
        ("value: change one entry", change_value),
        ("list: change one element", change_list),
        ("list: append one element", lambda: appended.add(["entry 0003", 7])),
        ("map: change one entry", lambda: by_key.put("entry 0003", 7)),
        ("value: read all", value.value),
        ("list: read all", elements.get),
        ("map: read all", lambda: dict(by_key.items())),
    ]


def _repeat(action: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        action()


def time_to_live() -> Rows:
    """Value state with time to live and its default clean-up, against one without, in CPU time of the thread."""
    for kind in ("heap", "RocksDB"):
        for what, tick, first, reading in (
            ("set key + get, nothing expires", 0.0, 0, True),
            ("set key + get + put, nothing expires", 0.0, 0, False),
            ("set key + get + put of new keys, as many expire", 1e-5, 2 * MAP, False),
        ):
            turns = []
            for _ in range(TURNS):
                sides = (StateTtlConfig(MAP * 1e-5), None)
                ours, theirs = (_access_each(kind, ttl, tick, range(first, first + MAP), reading) for ttl in sides)
                turns.append([(ours, theirs)])
            yield _row("", f"{kind} value state with time to live, {what}", *_best_of_turns(turns), MAP, "<= 3")


def _access_each(kind: str, ttl: StateTtlConfig | None, tick: float, keys: Sequence[int], reading: bool) -> float:
    """The CPU time of one pass over keys, in a state of twice as many; each access to a key takes a tick."""
    seconds = 0.0

    def access(keys: Sequence[int], reading: bool) -> None:
        nonlocal seconds
        for key in keys:
            seconds += tick
            backend.set_current_key(key)
            state.value()
            if not reading:
                state.update(key)

    with _directory() as directory:
        options: dict[str, Any] = {"clock": lambda: seconds}
        backend = HeapStateBackend(**options) if kind == "heap" else RocksDBStateBackend(directory, **options)
        with backend:
            state = backend.value_state(ValueStateDescriptor("value", ttl=ttl))
            access(range(2 * MAP), reading=False)
            return _timed(partial(access, keys, reading), thread_time)[0]


def timers() -> Rows:
    """Timers registered and fired, in memory, against the same on RocksDB."""
    with _directory() as directory:
        heap_times = _register_and_fire(HeapQueues())
        queues = RocksDBQueues(directory / "timers")
        disk_times = _register_and_fire(queues)
        queues.close()
    for what, on_disk, in_memory in zip(("registered", "fired"), disk_times, heap_times, strict=True):
        ours, theirs = (f"{TIMERS / seconds:,.0f}/s" for seconds in (on_disk, in_memory))
        yield "", f"timers {what}, 1,000,000: RocksDB against heap", ours, theirs, on_disk / in_memory, ""


def snapshots() -> Rows:
    """Snapshot and restore of 1,000,000 map entries, and a second snapshot, on RocksDB against the heap."""
    with _directory() as directory, _rocksdb(directory / "state") as disk, _heap() as heap:
        times: list[list[float]] = []
        for backend, restored in ((disk, _rocksdb(directory / "restored")), (heap, _heap())):
            state = backend.map_state(MapStateDescriptor("map"))
            for key in range(ENTRIES // 1000):
                backend.set_current_key(key)
                state.put_all({entry: entry for entry in range(1000)})
            taken, snapshot = _timed(backend.snapshot)
            backend.set_current_key(0)
            state.put(0, 1)
            again, _ = _timed(backend.snapshot)
            with restored as target:
                restoring, _ = _timed(partial(target.restore, [snapshot]))
                assert target.num_entries() == ENTRIES
            times.append([taken, again, restoring])
    for number, what in enumerate(("snapshot", "snapshot after one change", "restore")):
        ours, theirs = times[0][number], times[1][number]
        row = f"{ours:.3f} s", f"{theirs:.3f} s", ours / theirs
        yield "", f"{what}, 1,000,000 entries: RocksDB against heap", *row, ""


def _register_and_fire(queues: Any) -> tuple[float, float]:
    fired = 0

    def count(timer: object) -> None:
        nonlocal fired
        fired += 1

    service = InternalTimerService(on_event_time=count, clock=ManualClock(), queues=queues)
    numbers = random.Random(7)
    timestamps = [numbers.randrange(10**9) for _ in range(TIMERS)]

    def register() -> None:
        for key, timestamp in enumerate(timestamps):
            service.current_key = key
            service.register_event_time_timer(timestamp)

    registering, _ = _timed(register)
    firing, _ = _timed(lambda: service.advance_watermark(10**9))
    assert fired == TIMERS
    return registering, firing


def _timed(action: Callable[[], Any], clock: Callable[[], float] = perf_counter) -> tuple[float, Any]:
    start = clock()
    result = action()
    return clock() - start, result


def _best(
    ours: Callable[[], None], theirs: Callable[[], None], clock: Callable[[], float] = perf_counter
) -> tuple[float, float]:
    """The shortest time of each, measured in turns."""
    return _best_of_turns([[(_timed(ours, clock)[0], _timed(theirs, clock)[0])] for _ in range(TURNS)])


def _best_of_turns(turns: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    """For work that is timed in slices, several times: the sum of the shortest time of each slice, for either side."""
    shortest = [
        (min(ours), min(theirs)) for ours, theirs in (zip(*times, strict=True) for times in zip(*turns, strict=True))
    ]
    return sum(ours for ours, _ in shortest), sum(theirs for _, theirs in shortest)


def _row(name: str, what: str, ours: float, theirs: float, count: int, target: str = "") -> tuple[str | float, ...]:
    each = [f"{seconds / count * 1e6:.2f} us" for seconds in (ours, theirs)]
    return name, what, *each, ours / theirs, target


@contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="benchmark-state-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def _rocksdb(directory: Path) -> Iterator[StateBackend]:
    backend = RocksDBStateBackend(directory, clock=ManualClock())
    try:
        yield backend
    finally:
        backend.close()


@contextmanager
def _heap() -> Iterator[StateBackend]:
    yield HeapStateBackend(clock=ManualClock())


@contextmanager
def _bare(directory: Path) -> Iterator[Rdict]:
    database = Rdict(str(directory), Options(raw_mode=True))
    try:
        yield database
    finally:
        database.close()
