"""A compaction of a journal in the simulated world: its steps, between which tasks read and write."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from asyncio_operator.journal.compaction import TRIES, Compactor, is_compact
from asyncio_operator.journal.format import Description
from asyncio_operator.journal.storage import Place
from asyncio_operator_proof.simulation.scenario import Compaction
from asyncio_operator_proof.simulation.world import EPOCH, World


class SimulatedCompaction:
    """A process that compacts a journal, in the steps in which Spark does.

    Args:
        new_id: of the files of one compaction.
        note: called with what has happened.
    """

    def __init__(
        self,
        compaction: Compaction,
        place: Place,
        description: Description,
        world: World,
        new_id: Callable[[], str],
        note: Callable[[str], object],
    ) -> None:
        self._about = compaction
        self._place = place
        self._description = description
        self._world = world
        self._new_id = new_id
        self._note = note
        self._tries = 0
        self._steps = 0

    def begin(self) -> None:
        """List the files, and read them later."""
        self._note("compaction_begins")
        self._tries += 1
        clock = lambda: EPOCH + self._world.now  # noqa: E731
        compactor = Compactor(self._place, self._description, clock=clock, new_id=self._new_id)
        compactor.delete_replaced(self._about.grace)
        inputs = list(compactor.inputs())
        if not is_compact(inputs):
            self._then(lambda: self._write(compactor, inputs))

    def _write(self, compactor: Compactor, inputs: list[str]) -> None:
        table = pa.concat_tables([table for name in inputs for table in compactor.read(name)])
        name, _ = compactor.write(table)
        self._then(lambda: self._end(compactor, [] if name is None else [name], inputs))

    def _end(self, compactor: Compactor, written: list[str], replaced: list[str]) -> None:
        compactor.commit(written, replaced)
        self._note("compaction_ends")
        if not self._about.grace:
            compactor.delete_replaced(0.0)

    def _then(self, step: Callable[[], None]) -> None:
        self._steps += 1
        if self._steps != self._about.ends:
            self._world.at(self._world.now + self._about.takes, lambda: self._try(step))

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except FileNotFoundError:
            # Another compaction has deleted a file.
            if self._tries < TRIES:
                self.begin()
