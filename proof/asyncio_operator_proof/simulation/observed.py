"""A link of a task whose rows are written down as they come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from asyncio_operator.engine.contracts import Input
from asyncio_operator.lookup.key_batch import KeyBatch
from asyncio_operator.spark.worker.links import Link
from asyncio_operator_proof.history.event_format import Event
from asyncio_operator_proof.simulation.canonical import plain
from asyncio_operator_proof.simulation.simulated_service import ROW
from asyncio_operator_proof.simulation.writing import Notes


class ObservedLink:
    """A `Link`, for `links.run` and `links.keyed`.

    Args:
        number: of the lookup.
        attempt: of the task.
    """

    def __init__(self, link: Link, number: int, attempt: str, notes: Notes) -> None:
        self.name = link.name
        self.task = link.task
        self._link = link
        self._number = number
        self._attempt = attempt
        self._notes = notes
        layout = link.task.layout
        self._keys = layout.keys
        self._columns = layout.found.names
        self._status = layout.status
        self._parts: dict[int, list[Event]] = {}

    def expect(self, rows: pa.Schema) -> pa.Schema:
        """See `Link`."""
        return self._link.expect(rows)

    def emitted(self, keys: int, batch: KeyBatch | None) -> None:
        """See `Link`."""
        self._link.emitted(keys, batch)

    async def run(
        self, source: Input, deliver: Callable[[KeyBatch, int], None], failing: Callable[[], None] | None = None
    ) -> None:
        """See `Link`."""
        await self._link.run(ObservedInput(source, self._read), deliver, failing)

    def keys_of(self, batch: pa.RecordBatch) -> KeyBatch:
        """See `Link`."""
        return self._link.keys_of(batch)

    def _read(self, keys: KeyBatch) -> None:
        """The link has read a batch."""
        batch, largest = keys.payload.batch, self._notes.largest
        largest[self._number] = max(batch.num_rows, largest.get(self._number, 0))
        columns = [batch.column(place).to_pylist() for place in self._keys]
        for row, *key in zip(batch.column(ROW).to_pylist(), *columns, strict=True):
            self._notes.add(
                "row_in", task=self._attempt, lookup=self._number, row=row, key=key if len(key) > 1 else key[0]
            )

    def leaving(
        self, batch: KeyBatch, ready: int, ended: bool
    ) -> Iterator[tuple[Iterator[pa.RecordBatch], int, KeyBatch | None]]:
        """See `Link`."""
        for output, keys, left in self._link.leaving(batch, ready, ended):
            yield self._noted(output), keys, left

    def _noted(self, output: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in output:
            first = batch.num_columns - len(self._columns) - self._status
            columns = [batch.column(first + place).to_pylist() for place in range(len(self._columns))]
            statuses = batch.column(batch.num_columns - 1).to_pylist() if self._status else [{}] * batch.num_rows
            for row, status, *values in zip(batch.column(ROW).to_pylist(), statuses, *columns, strict=True):
                self._row_out(row, status, [plain(value) for value in values])
            yield batch

    def _row_out(self, row: int, status: dict[str, Any], values: list[Any]) -> None:
        parts = self._parts.setdefault(row, [])
        # Without a status column and without values it may be missing, have failed, or have been found so.
        kind = status.get("status") or ("found" if any(value is not None for value in values) else "unknown")
        answer: list[Any] | None = None if kind == "unknown" else parts[0]["answer"] if parts else []
        if answer is not None and kind == "found":
            # All parts have all rows of the answer.
            answer.append(values)
        event = self._notes.add(
            "row_out",
            task=self._attempt,
            lookup=self._number,
            row=row,
            part=len(parts),
            status=kind,
            source=status.get("source"),
            attempts=status.get("attempts"),
            error=status.get("error_type"),
            answer=answer,
        )
        parts.append(event)


class ObservedInput:
    """An `Input` whose batches are noted when they are read."""

    def __init__(self, source: Input, note: Callable[[KeyBatch], None]) -> None:
        self._source = source
        self._note = note
        self.instant = source.instant

    async def ready(self) -> bool:
        """See `Input`."""
        return await self._source.ready()

    def has_some(self) -> bool:
        """See `Input`."""
        return self._source.has_some()

    def read_ahead(self) -> list[Any]:
        """See `Input`."""
        return self._source.read_ahead()

    def __iter__(self) -> Iterator[Any]:
        for batch in self._source:
            self._note(batch)
            yield batch

    def exhausted(self) -> None:
        """See `Input`."""
        self._source.exhausted()

    async def release(self) -> None:
        """See `Input`."""
        await self._source.release()
