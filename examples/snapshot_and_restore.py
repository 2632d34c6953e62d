"""A run that is stopped at any moment, and goes on in another process as if nothing had happened.

    python -m examples.snapshot_and_restore

An operator counts the readings of sensors in keyed state, and its timers give the count of each sensor once a minute of
event time. The first process takes some outputs, saves them, and is killed with calls in flight. With the outputs it
saves where the input was, `operator.snapshot()` for the elements in flight, and a checkpoint with the state and the
timers. The next process restores them. All outputs together are those of a run that nothing has stopped: none is lost,
none is doubled.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from asyncio_operator import AsyncWaitOperator, Record, Watermark
from asyncio_operator.state import HeapStateBackend, ValueStateDescriptor, checkpoint, restore_checkpoint
from asyncio_operator.timers import InternalTimerService, Timer

MINUTE = 60_000
SENSORS = ("hall", "lab", "roof")
READINGS = 60
"""One every ten seconds, of each sensor in turn."""

OUTPUTS_A_PROCESS = 45

KILLED = 9


class Readings:
    """The input, which knows how many of its elements were read: a reading every ten seconds, then a watermark."""

    def __init__(self, position: int = 0) -> None:
        self.position = position

    async def __aiter__(self) -> AsyncIterator[Record[str] | Watermark]:
        while self.position < 2 * READINGS:
            number, is_watermark = divmod(self.position, 2)
            self.position += 1
            time = 10_000 * number
            yield Watermark(time) if is_watermark else Record(SENSORS[number % 3], time)


class Counting:
    """Counts readings of sensors, one minute after the other."""

    def __init__(self) -> None:
        self.backend = HeapStateBackend()
        self.timers = InternalTimerService(on_event_time=self.minute_is_over)

    def states(self) -> None:
        """Ask for the state, when it has been restored."""
        self._count = self.backend.value_state(ValueStateDescriptor("readings of a minute"))

    async def __call__(self, sensor: str) -> str:
        await asyncio.sleep(0.001)  # a real service
        return f"{sensor} has answered"

    def counted(self, sensor: str, time: int) -> None:
        """An answer has left: it is counted, once."""
        end = time - time % MINUTE + MINUTE - 1
        self.timers.current_key = sensor
        self.timers.register_event_time_timer(end)
        self._at(sensor, end)
        self._count.update((self._count.value() or 0) + 1)

    def minute_is_over(self, timer: Timer) -> None:
        """The watermark has reached the end of a minute."""
        self._at(timer.key, timer.timestamp)
        self.timers.collect(Record(f"{timer.key}: {self._count.value()} readings", timer.timestamp))
        self._count.clear()

    def _at(self, sensor: object, end: int) -> None:
        assert isinstance(sensor, str)
        self.backend.set_current_key(sensor)
        self.backend.set_current_namespace(end)


async def part(directory: Path, number: int, most: int | None) -> bool:
    """One process: restore, take at most `most` outputs, write them, save. Returns whether the input has ended."""
    function = Counting()
    position, snapshot = 0, None
    if number:
        position, snapshot = pickle.loads((directory / f"{number}.pickle").read_bytes())
        restore_checkpoint(directory / f"{number}", function.backend, function.timers)
    function.states()
    source = Readings(position)
    operator = AsyncWaitOperator(function, capacity=4, buffer=8, timers=function.timers)
    written: list[Any] = []
    async for output in operator.process(source, restore=snapshot):
        written.append(output)
        if isinstance(output, Record) and output.value.endswith("answered"):
            function.counted(output.value.split()[0], output.timestamp or 0)
        if most is not None and len(written) == most:
            break
    else:
        most = None
    # Together, between two outputs: the outputs, and all that the next process needs.
    (directory / f"{number}.outputs").write_bytes(pickle.dumps(written))
    checkpoint(directory / f"{number + 1}", function.backend, function.timers)
    (directory / f"{number + 1}.pickle").write_bytes(pickle.dumps((source.position, operator.snapshot())))
    return most is None


def process(directory: Path, number: int, most: int | None) -> None:
    """Runs a part in a process of its own, which is killed in the middle of it, with calls in flight."""
    ended = asyncio.run(_killed_in(directory, number, most))
    sys.exit(0 if ended else 1)


async def _killed_in(directory: Path, number: int, most: int | None) -> bool:
    ended = await part(directory, number, most)
    if not ended:
        os.kill(os.getpid(), KILLED)
    return ended


def outputs(directory: Path, most: int | None) -> tuple[list[Any], int]:
    """The outputs of all processes that the input needs, and the number of those that were killed."""
    spawn = multiprocessing.get_context("spawn")
    number = 0
    while True:
        child = spawn.Process(target=process, args=(directory, number, most))
        child.start()
        child.join()
        number += 1
        if child.exitcode == 0:
            break
        if child.exitcode != -KILLED:
            raise RuntimeError(f"process {number} ended with status {child.exitcode}")
    files = [directory / f"{one}.outputs" for one in range(number)]
    return [output for file in files for output in pickle.loads(file.read_bytes())], number - 1


def main() -> None:
    """Runs it twice, with and without kills, and compares."""
    with tempfile.TemporaryDirectory() as name:
        for run in ("whole", "killed"):
            (Path(name) / run).mkdir()
        whole, _ = outputs(Path(name) / "whole", None)
        stopped, kills = outputs(Path(name) / "killed", OUTPUTS_A_PROCESS)
    counts = sorted(
        (output.timestamp or 0, output.value)
        for output in stopped
        if isinstance(output, Record) and output.value.endswith("readings")
    )
    print(f"{len(whole)} outputs of a run that nothing has stopped")
    print(f"{len(stopped)} outputs of {kills + 1} processes, {kills} of them killed")
    print(f"the same outputs, each once: {Counter(stopped) == Counter(whole)}")
    print("counts of sensors, minute by minute:")
    for start in range(0, len(counts), 3):
        print(f"    {', '.join(count for _, count in counts[start : start + 3])}")


if __name__ == "__main__":
    main()
