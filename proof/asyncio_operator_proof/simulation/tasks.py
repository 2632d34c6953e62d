"""A task of the simulated world: what feeds it, and what takes its rows, as coroutines in place of threads.

Between the two stands the code of a real task: channels, the frame of a run, links and hops.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from asyncio_operator.loop.channels import AHEAD, Bell, FromLoop, ToLoop
from asyncio_operator.loop.runner import LoopFrame
from asyncio_operator.policies.shutdown import TASK_END
from asyncio_operator.spark.worker.links import EnrichTask, end_with, keyed, links_of, run
from asyncio_operator.spark.worker.task_frame import READ_AHEAD
from asyncio_operator_proof.simulation.observed import ObservedLink
from asyncio_operator_proof.simulation.scenario import Task
from asyncio_operator_proof.simulation.writing import Notes, attempt_of

if TYPE_CHECKING:
    from asyncio_operator_proof.simulation.simulated_workers import Worker


class WouldWait(Exception):  # noqa: N818
    """A thread would wait here."""


class LoopBell(Bell):
    """A bell for a coroutine in place of a thread."""

    def __init__(self) -> None:
        super().__init__()
        self._rang = asyncio.Event()

    def ring(self) -> None:
        """See `Bell`."""
        self._rang.set()

    def wait(self, seconds: float | None = None) -> bool:
        """See `Bell`."""
        raise WouldWait

    async def heard(self) -> None:
        """Wait for the first ring that was not heard yet."""
        await self._rang.wait()
        self._rang.clear()


class Feeder:
    """Reads the input, as the feeder thread does. Started by the frame of the run."""

    def __init__(self, source: Iterator[Any], pause: float) -> None:
        self._source = source
        self._pause = pause
        self.channel: ToLoop
        self.bell: LoopBell
        self.running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """See `threading.Thread`."""
        self.running = asyncio.get_running_loop().create_task(self._feed())

    async def _feed(self) -> None:
        channel = self.channel
        try:
            while True:
                await asyncio.sleep(self._pause)
                batch = next(self._source, None)
                if batch is None:
                    break
                with contextlib.suppress(WouldWait):
                    channel.put(batch)
                while channel.is_full():
                    await self.bell.heard()
                if channel.closed:
                    return
        except BaseException as error:
            channel.end(error)
        else:
            channel.end()


class Attempt:
    """One attempt of a task.

    Args:
        name: of the attempt.
        tasks: what the driver has made of the lookups.
        rows: the input.

    Attributes:
        output: the rows that have left.
        error: with which it failed.
        outcome: as the event `task_ended` has it; empty while it runs.
    """

    def __init__(
        self, name: str, task: Task, worker: Worker, tasks: Sequence[EnrichTask], rows: pa.Table, notes: Notes
    ) -> None:
        self.name = name
        self.task = task
        self.worker = worker
        self.output: list[pa.RecordBatch] = []
        self.error: BaseException | None = None
        self.outcome = ""
        self._tasks = tasks
        self._rows = rows
        self._notes = notes

    async def run(self) -> None:
        """Run to the end, which is noted."""
        attempt_of.set(self.name)
        try:
            self.outcome = await self._run()
        except Exception as error:
            self.error = error
            self.outcome = "failed"
        kind = None if self.error is None else type(self.error).__name__
        self._notes.add("task_ended", task=self.name, outcome=self.outcome, error=kind)

    async def _run(self) -> str:
        links = links_of(self._tasks, self.name, self.worker.shared)
        seen = [ObservedLink(link, number, self.name, self._notes) for number, link in enumerate(links)]
        bells = LoopBell(), LoopBell()
        batches: list[pa.RecordBatch] = self._rows.to_batches(max_chunksize=self.task.batch)
        feeder = Feeder(keyed(seen, iter(batches)), self.task.pause)  # type: ignore[arg-type]
        with contextlib.ExitStack() as ending:
            end_with(ending, links)
            frame = LoopFrame(
                self.worker.loop,
                partial(run, seen),  # type: ignore[arg-type]
                patience=TASK_END,
                read_ahead=READ_AHEAD,
                ahead=AHEAD,
                bells=bells,
            )
            feeder.channel, feeder.bell = frame.source, bells[0]
            try:
                with frame:
                    frame.start(feeder.start)
                    closed = await self._take(seen[-1], frame.sink, bells[1])
            finally:
                await self._ended(frame.sink, bells[1])
            frame.sink.raise_error()
        return "closed" if closed else "finished"

    async def _take(self, last: ObservedLink, sink: FromLoop, bell: LoopBell) -> bool:
        """Take the output, as the task's main thread does. Whether it was closed early."""
        elements, left = iter(sink), 0
        while True:
            while not sink.is_ready():
                await bell.heard()
            element = next(elements, None)
            if element is None:
                return False
            for output, keys, done in last.leaving(*element):
                for batch in output:
                    self.output.append(batch)
                    left += batch.num_rows
                    if self.task.slow:
                        await asyncio.sleep(self.task.slow)
                    if self.task.closed_after is not None and left > self.task.closed_after:
                        return True
                self.worker.loop.call_soon_threadsafe(last.emitted, keys, done)

    async def _ended(self, sink: FromLoop, bell: LoopBell) -> None:
        """Wait for the end of the run, as long as a task does."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TASK_END):
                while not sink.ended:
                    await bell.heard()
