"""S11: a process killed with SIGKILL while it writes leaves a directory that opens, each batch whole or absent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from asyncio_operator.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    MigratingMapState,
    RocksDBStateBackend,
    ValueStateDescriptor,
)
from asyncio_operator.timers import BackendQueues, InternalTimerService

COUNTER, LIST = ValueStateDescriptor("counter"), ListStateDescriptor("list")
MAP, OLD, NEW = MapStateDescriptor("map"), ValueStateDescriptor("old"), MapStateDescriptor("new")

WRITER = """
import sys
from asyncio_operator.state import *
from asyncio_operator.timers import BackendQueues, InternalTimerService

backend = RocksDBStateBackend(sys.argv[1])
counter = backend.value_state(ValueStateDescriptor("counter"))
elements = backend.list_state(ListStateDescriptor("list"))
entries, old = backend.map_state(MapStateDescriptor("map")), backend.value_state(ValueStateDescriptor("old"))
backend.set_current_key("k")
for number in range(5000 if counter.value() is None else 0):
    backend.set_current_namespace(number)
    old.update({step: number for step in range(40)})
backend.set_current_namespace(None)
migrating = MigratingMapState(backend, ValueStateDescriptor("old"), MapStateDescriptor("new"))
timers = InternalTimerService(queues=BackendQueues(backend))
timers.current_key = "k"
number = counter.value() or 0
while True:
    number += 1
    entries.put_all({step: number for step in range(100)})
    elements.update([number] * 50)
    backend.set_current_namespace(number % 5000)
    migrating.get(0)
    backend.set_current_namespace(None)
    timers.register_event_time_timer(number)
    timers.delete_event_time_timer(number - 2)
    counter.update(number)
    print(number, flush=True)
"""


def kill_while_writing(directory, after):
    """Runs the writer until it has acknowledged `after` rounds, kills it, and gives the last one acknowledged."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert writer.stdout is not None
    with writer, writer.stdout as lines:
        seen = [lines.readline() for _ in range(after)]
        writer.send_signal(signal.SIGKILL)
        seen += lines.readlines()
    assert writer.returncode == -signal.SIGKILL
    return int([line for line in seen if line.endswith("\n")][-1])


@pytest.mark.parametrize("after", [1, 150])
def test_S11_every_batch_is_whole_or_absent(after, tmp_path):
    acknowledged = 0
    for _ in range(2):
        acknowledged = kill_while_writing(tmp_path / "state", after)
        backend = RocksDBStateBackend(tmp_path / "state")
        backend.set_current_key("k")
        counter = backend.value_state(COUNTER).value()
        assert counter is not None
        assert counter >= acknowledged
        found = dict(backend.map_state(MAP).items())
        assert list(found) == list(range(100))
        assert set(found.values()) in ({counter}, {counter + 1})
        waiting = sorted(
            timer.timestamp for timer in InternalTimerService(queues=BackendQueues(backend)).event_time_timers()
        )
        # The write of a timer is kept if a later one is, and at most one was under way.
        expected = [[counter - 1, counter], [counter - 1, counter, counter + 1], [counter, counter + 1]]
        assert waiting in [[number for number in numbers if number > 0] for numbers in expected]
        elements = backend.list_state(LIST).get()
        assert elements in ([counter] * 50, [counter + 1] * 50)
        old, new = backend.value_state(OLD), backend.map_state(NEW)
        for number in range(1, 5000):
            backend.set_current_namespace(number)
            before = old.value()
            if before is None:
                assert dict(new.items()) == dict.fromkeys(range(40), number)
            else:
                assert before == dict.fromkeys(range(40), number)
                assert new.is_empty()
            assert before is None or number > counter
        backend.set_current_namespace(4999)
        migrating: MigratingMapState[int, int] = MigratingMapState(backend, OLD, NEW)
        assert dict(migrating.items()) == dict.fromkeys(range(40), 4999)
        backend.close()
