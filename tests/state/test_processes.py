"""A RocksDB directory belongs to the process that opened it: forked children, and processes that open it at once."""

from __future__ import annotations

import gc
import os
import platform
import signal
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.lookup.cache_directories import open_cache
from asyncio_operator.policies.cache import Cache
from asyncio_operator.state import (
    KeyGroupRange,
    ListStateDescriptor,
    MapStateDescriptor,
    RocksDBSnapshot,
    RocksDBStateBackend,
    StateTtlConfig,
    ValueStateDescriptor,
)
from asyncio_operator.state.entries import ABSENT
from asyncio_operator.state.rocksdb.processes import DirectoryLock
from asyncio_operator.timers import InternalTimerService, RocksDBQueues
from tests.state.queue_kinds import number_queue

VALUE = ValueStateDescriptor("value")
LIVES = ValueStateDescriptor("lives", ttl=StateTtlConfig(60.0))
LIST, MAP = ListStateDescriptor("list"), MapStateDescriptor("map")
MANY = 1000
"""More rows than a scan reads at once, so that an iteration holds an iterator of RocksDB."""


def in_a_child(work: Callable[[], object]) -> None:
    """Runs `work` in a forked child; what fails there fails here, and what hangs there is killed."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # A handler in Python would wait for what hangs.
        signal.alarm(20)
        try:
            work()
            gc.collect()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def refused(action: Callable[[], object]) -> None:
    with pytest.raises(StateError, match=r"belongs to the process that opened it.*forked child"):
        action()


def test_S13_every_use_of_a_backend_in_a_forked_child_is_refused_and_harms_nothing(tmp_path):
    backend = RocksDBStateBackend(tmp_path / "state")
    backend.set_current_key("k")
    value, lives = backend.value_state(VALUE), backend.value_state(LIVES)
    elements, entries = backend.list_state(LIST), backend.map_state(MAP)
    value.update(1)
    lives.update(1)
    elements.add_all(range(MANY))
    entries.put_all({number: number for number in range(MANY)})
    items, keys = entries.items(), backend.keys("value")
    next(items)

    def child() -> None:
        uses: list[Callable[[], Any]] = [
            lambda: backend.set_current_key("k"),
            lambda: backend.set_current_key("new"),
            lambda: backend.set_current_namespace("n"),
            value.value,
            lambda: value.update(2),
            value.clear,
            lives.value,
            lambda: lives.update(2),
            elements.get,
            lambda: elements.add(1),
            lambda: elements.update([]),
            lambda: entries.get(1),
            lambda: entries.put(1, 1),
            lambda: entries.put_all({1: 2}),
            lambda: list(items),
            lambda: list(keys),
            backend.num_entries,
            lambda: backend.keys("value"),
            backend.snapshot,
            backend.compact,
            lambda: backend.restore([]),
            lambda: backend.value_state(ValueStateDescriptor("another")),
        ]
        for use in uses:
            refused(use)
        backend.close()
        refused(uses[0])

    in_a_child(child)
    for key in range(3 * MANY):
        backend.set_current_key(key)
        value.update(key)
    assert len(list(items)) == MANY - 1
    backend.close()
    with RocksDBStateBackend(tmp_path / "state") as again:
        assert again.num_entries() == 2 + 5 * MANY


@pytest.mark.parametrize("cache_size", [1, 128])
def test_S13_every_use_of_a_queue_in_a_forked_child_is_refused_and_harms_nothing(cache_size, tmp_path):
    queue = number_queue(tmp_path / "queue", cache_size)
    queue.add_all(range(MANY))
    rows = iter(queue)
    next(rows)
    queue.peek()

    def child() -> None:
        uses: list[Callable[[], Any]] = [
            queue.poll,
            queue.peek,
            lambda: queue.add(-1),
            lambda: queue.add(5),
            lambda: queue.remove(5),
            lambda: list(queue),
            lambda: list(rows),
            lambda: queue.subset_for_key_group(0),
            queue.flush,
            queue.clear,
        ]
        for use in uses:
            refused(use)
        queue.close()
        refused(queue.poll)

    in_a_child(child)
    assert [queue.poll() for _ in range(MANY)] == list(range(MANY))
    queue.close()


def test_S13_timers_on_disk_and_a_cache_on_disk_are_their_processs(tmp_path):
    queues = RocksDBQueues(tmp_path / "timers")
    service = InternalTimerService(queues=queues)
    service.current_key = "k"
    service.register_event_time_timer(1)
    options = Cache(store="rocksdb", directory=str(tmp_path / "cache"), expire_after_access=60.0, stale_if_error=True)
    cache = open_cache(options, "owner")
    cache.put("key", [{"a": 1}])

    def child() -> None:
        refused(lambda: service.register_event_time_timer(2))
        refused(lambda: service.advance_watermark(5))
        queues.close()
        assert cache.get("key") is ABSENT  # A cache that fails is one without answers, and logs why.
        cache.put("other", None)
        assert cache.stale("key") is ABSENT
        cache.close()
        with pytest.raises(ConfigurationError, match="spawn"):
            open_cache(options, "another owner")

    in_a_child(child)
    assert [timer.timestamp for timer in service.event_time_timers()] == [1]
    queues.close()
    assert cache.get("other") is ABSENT
    assert cache.get("key") == [{"a": 1}]
    cache.close()
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"0", "0.lock"}


def test_S13_letting_go_in_a_forked_child_harms_nothing_and_does_not_hang(tmp_path):
    """Also where the child ends as a program of its own does, with all that Python does at its end."""
    made: dict[str, Any] = {
        "backend": RocksDBStateBackend(tmp_path / "state"),
        "queue": number_queue(tmp_path / "queue"),
    }
    made["backend"].set_current_key("k")
    value = made["backend"].value_state(VALUE)
    made["entries"] = made["backend"].map_state(MAP)
    made["entries"].put_all({number: number for number in range(MANY)})
    made["items"] = made["entries"].items()
    next(made["items"])
    kept = dict(made)

    def child() -> None:
        made.clear()
        kept.clear()

    in_a_child(child)
    program = (
        "import gc, os, signal, sys\n"
        "from asyncio_operator.state import RocksDBStateBackend, ValueStateDescriptor\n"
        "backend = RocksDBStateBackend(sys.argv[1])\n"
        "backend.set_current_key(1)\n"
        "state = backend.value_state(ValueStateDescriptor('v'))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.alarm(20)\n"
        "    sys.exit(3)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3\n"
        "state.update(1)\n"
        "backend.close()\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "program")], check=True, timeout=60)
    value.update(1)
    assert len(list(kept["items"])) == MANY - 1
    kept["backend"].close()
    kept["queue"].close()


@pytest.mark.parametrize("closed", [False, True])
def test_S13_a_child_of_a_process_that_has_used_rocksdb_opens_no_directory(closed, tmp_path):
    """It could not close it, because RocksDB waits for threads that are in the parent alone."""
    backend = RocksDBStateBackend(tmp_path / "parent")
    backend.snapshot(tmp_path / "snapshot")
    if closed:
        backend.close()

    def child() -> None:
        for name in ("parent", "new"):
            for open_it in (RocksDBStateBackend, number_queue):
                with pytest.raises(StateError, match=r"RocksDB's threads.*get_context\(\"spawn\"\)"):
                    open_it(tmp_path / name)
        with pytest.raises(StateError, match=r"snapshot cannot be opened in a forked child"):
            RocksDBSnapshot(tmp_path / "snapshot")

    in_a_child(child)
    backend.close()
    RocksDBStateBackend(tmp_path / "parent").close()
    assert not (tmp_path / "new").exists()


def test_S13_a_lock_ends_with_its_release_whatever_copies_of_its_file_there_are(tmp_path):
    """A child has such a copy until it has begun, or for ever if it was not forked by Python."""
    lock = DirectoryLock(tmp_path)
    assert lock._file is not None
    copy = os.dup(lock._file)
    lock.release()
    DirectoryLock(tmp_path).release()
    os.close(copy)


FORKS_WHILE_OPENING = """
import os, sys
from asyncio_operator.state.rocksdb.database import Database


def look(seen):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, b"the child has begun")
        sys.stdin.read()
        os._exit(0)
    os.read(reading, 1)
    os.kill(os.getpid(), 9)


Database(sys.argv[1]).close()
Database(sys.argv[1], look=look)
"""


def test_S13_a_child_that_was_forked_while_a_directory_was_opened_does_not_keep_it(tmp_path):
    command = [sys.executable, "-c", FORKS_WHILE_OPENING, str(tmp_path / "state")]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert parent.wait(60) == -signal.SIGKILL
    RocksDBStateBackend(tmp_path / "state").close()
    assert parent.stdin is not None
    parent.stdin.close()


ENDS = """
import os, sys, threading
from asyncio_operator.state import RocksDBStateBackend

backend = RocksDBStateBackend(sys.argv[1])
ended = threading.Event()
threads = [threading.Thread(target=ended.wait) for _ in range(8)]
for thread in threads:
    thread.start()
for status in range(5):
    child = os.fork()
    if child == 0:
        print("child", status)
        sys.exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status
ended.set()
backend.close()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has on_exit")
def test_S13_a_child_of_a_process_with_more_threads_ends_with_its_own_status(tmp_path):
    command = [sys.executable, "-c", ENDS, str(tmp_path / "state")]
    ended = subprocess.run(command, check=True, timeout=60, stdout=subprocess.PIPE, text=True)
    assert ended.stdout.splitlines() == [f"child {status}" for status in range(5)]


RACER = """
import sys
from asyncio_operator.errors import StateError
from asyncio_operator.state import RocksDBStateBackend, ValueStateDescriptor

print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[2])):
    place = f"{sys.argv[1]}/{number // 20}"
    try:
        with RocksDBStateBackend(place) as backend:
            backend.set_current_key(number)
            backend.value_state(ValueStateDescriptor("v")).update(1)
        print("opened")
    except StateError as error:
        print("in use" if "is in use by another backend" in str(error) else error)
"""


def test_S13_processes_that_open_one_directory_at_once_get_it_or_hear_that_it_is_in_use(tmp_path):
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path), "80"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    seen = Counter(line for racer in racers for line in racer.communicate(timeout=60)[0].splitlines())
    assert set(seen) <= {"opened", "in use"}
    assert seen["opened"] > 0


def test_S13_a_snapshot_is_opened_by_several_at_once(tmp_path):
    with RocksDBStateBackend(tmp_path / "state") as backend:
        backend.set_current_key(1)
        backend.value_state(VALUE).update(1)
        snapshot = backend.snapshot()
    assert isinstance(snapshot, RocksDBSnapshot)
    rows = [RocksDBSnapshot(snapshot.directory).rows("value", KeyGroupRange(0, 127)) for _ in range(3)]
    assert len({next(each) for each in rows}) == 1
