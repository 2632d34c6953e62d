"""A simulated Python worker: a process of the world, and what it gives to its tasks in place of clocks and threads."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from asyncio_operator.journal.writer import JournalWriter
from asyncio_operator.quota.share import Shares
from asyncio_operator.spark.worker.process import WorkerProcess
from asyncio_operator_proof.simulation.world import Process, World

READING = 0.003
"""Seconds that work beside the loop takes, such as reading a journal."""

COPIES = 3
"""How often a directory is copied in which a file goes meanwhile: RocksDB has threads of its own."""


class Worker:
    """A Python worker.

    Args:
        number: of the worker, which its followers have too.
        life: how many workers of this number were killed before.
        place: a directory for its caches.
        seed: of what is random.
    """

    def __init__(
        self, world: World, number: int, life: int, place: Path, seed: int, clock: tuple[float, float]
    ) -> None:
        self.name = f"{number}.{life}"
        self.number = number
        self.life = life
        self.directory = place / self.name
        self.directory.mkdir()
        self.process = process = Process(world, *clock)
        self.loop = process.loop
        source = random.Random(f"worker {seed} {self.name}")
        self.shared = WorkerProcess(
            lambda: self.loop,
            Shares(new_id := lambda: f"{source.getrandbits(128):032x}"),
            wall=process.wall,
            monotonic=self.loop.time,
            start=self._beside,
            new_id=new_id,
            drive=self._drive,
        )
        self._writing: set[JournalWriter] = set()

    def _beside(self, work: Callable[[], None], _name: str) -> None:
        self.loop.call_later(READING, work)

    def _drive(self, writer: JournalWriter) -> None:
        """Let a writer write when it is due: what its thread does elsewhere."""
        left = writer.due_in()
        if writer in self._writing or left is None:
            return
        self._writing.add(writer)
        self.loop.call_later(left, self._write, writer)

    def _write(self, writer: JournalWriter) -> None:
        self._writing.discard(writer)
        writer.write_due()
        self._drive(writer)

    def take_over(self, before: Worker) -> None:
        """Begin with what a killed worker has left on the disk."""
        for attempt in range(COPIES):
            shutil.rmtree(self.directory)
            try:
                shutil.copytree(before.directory, self.directory)
                return
            except OSError:
                if attempt == COPIES - 1:
                    raise

    def end(self) -> None:
        """The simulated world is over: close what is open."""
        self.process.end()
        for opening in self.shared.caches.all():
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                opening.result().close()
