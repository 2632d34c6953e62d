"""Keyed state in memory.

Values of the built-in serialiser are kept as objects. They are copied when they are stored and when they are read, so a
caller never holds the stored object; a flat container is looked through only when it is stored (`serializers.Flat`).
Values of other serialisers are kept as bytes. Either way a value that a snapshot cannot hold is refused when it is
stored, and both backends give the same results.

State that came with a snapshot and was not requested yet is kept as bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from asyncio_operator.clock import Clock
from asyncio_operator.errors import ConfigurationError, StateError, describe
from asyncio_operator.state.backend import Queue, StateBackend
from asyncio_operator.state.descriptors import QUEUE, StateMeta
from asyncio_operator.state.entries import Batch, Table
from asyncio_operator.state.heap_set import HeapPriorityQueueSet
from asyncio_operator.state.heap_table import HeapCodec, HeapTable, HeapValueTable, new_table
from asyncio_operator.state.key_groups import KeyGroupRange
from asyncio_operator.state.layout import Stored, parse_slot, retimed
from asyncio_operator.state.priority_queue import PriorityQueueSet
from asyncio_operator.state.serializers import Serializer
from asyncio_operator.state.snapshot import HeapSnapshot, Row, StateSnapshot, merge_states, merged_rows, pack_rows
from asyncio_operator.state.ttl_config import CleanupFullSnapshot


class HeapStateBackend(StateBackend):
    """Keyed state in memory; arguments and errors as of `StateBackend`."""

    def __init__(
        self,
        *,
        key_groups: KeyGroupRange | None = None,
        max_parallelism: int = 128,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(key_groups, max_parallelism, clock)
        self._tables: dict[str, HeapTable | HeapValueTable] = {}
        self._serializers: dict[str, Serializer] = {}
        self._sequence = 0

    def table(self, name: str) -> Table:
        return self._tables[name]

    def open_table(self, name: str, meta: StateMeta, serializer: Serializer) -> Table:
        table = new_table(meta, meta.ttl)
        codec = table.codec = HeapCodec(serializer, meta.ttl)
        # Restored bytes become values now: only the first request brings the serialiser that can read them.
        if name in self._tables:
            had = self.metas[name].ttl
            try:
                for slot, sub, data in self._tables[name].entries():
                    table.put(slot, sub, codec.from_bytes(retimed(data, had, meta.ttl)))
            except Exception as error:
                raise StateError(f"state {name!r} cannot be read: {type(error).__name__}: {error}") from error
        self._tables[name] = table
        return table

    def open_queue(self, name: str, meta: StateMeta, about: Queue) -> PriorityQueueSet[Any]:
        queue: PriorityQueueSet[Any] = HeapPriorityQueueSet(
            about.key, about.key_of, self.key_groups, self.max_parallelism
        )
        self._serializers[name] = about.serializer
        self._fill(name, queue)
        return queue

    def drop_table(self, name: str) -> None:
        del self._tables[name]

    def new_batch(self) -> Batch:
        return []

    def commit(self, batch: Batch) -> None:
        for table, slot, changes, clear in batch:
            if clear:
                table.empty(slot)
            for sub, stored in changes:
                if stored is None:
                    table.delete(slot, sub)
                else:
                    table.put(slot, sub, stored)

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def snapshot(self, directory: str | Path | None = None) -> HeapSnapshot:
        """The rows of every state, serialised now: a copy of all data, in time proportional to it.

        Raises:
            ConfigurationError: a directory is given, because the copy is in memory.
            StateError: the backend is closed.
        """
        if directory is not None:
            raise ConfigurationError(
                f"directory={describe(directory)}: a snapshot of a heap backend is in memory; "
                "checkpoint(path, backend) writes it to a directory"
            )
        self.settle()
        clean = {cells.name: cells.cleaned for cells in self.ttl_cells(CleanupFullSnapshot)}
        groups = {name: self._rows_by_group(name, clean.get(name)) for name in self._tables}
        groups |= {name: self._elements_by_group(name) for name in self._queues}
        return HeapSnapshot(self.max_parallelism, self.key_groups, self._sequence + 1, dict(self.metas), groups)

    def load(self, snapshots: list[StateSnapshot]) -> None:
        states = self.with_queues(merge_states(snapshots, self.max_parallelism))
        tables = {}
        for name, meta in states.items():
            tables[name] = table = new_table(meta, timed=False)
            for snapshot in snapshots:
                for address, data in merged_rows(snapshot, name, meta, self.key_groups):
                    length = len(address) if meta.kind == QUEUE else parse_slot(address, self.group_width)[2]
                    table.put(address[:length], address[length:], data)
        self._tables.update(tables)
        self.metas = states
        self._sequence = max([snapshot.sequence for snapshot in snapshots], default=0)
        for name, queue in self._queues.items():
            self._fill(name, queue)

    def close(self) -> None:
        self.mark_closed()
        self._tables.clear()

    def _rows_by_group(self, name: str, clean: Callable[[Stored], Stored | None] | None) -> dict[int, bytes]:
        table, width = self._tables[name], self.group_width
        to_bytes = table.codec.to_bytes
        groups: dict[int, list[Row]] = {}
        for slot, sub, stored in table.entries():
            if clean is not None and (stored := clean(stored)) is None:
                continue
            groups.setdefault(int.from_bytes(slot[:width], "big"), []).append((slot + sub, to_bytes(stored)))
        return {group: pack_rows(rows) for group, rows in groups.items()}

    def _fill(self, name: str, queue: PriorityQueueSet[Any]) -> None:
        """Gives a queue the elements that were restored for it."""
        restored = self._tables.pop(name, None)
        rows = restored.slots() if restored is not None else ()
        queue.add_all(self._serializers[name].deserialize(row[self.group_width :]) for row in rows)

    def _elements_by_group(self, name: str) -> dict[int, bytes]:
        serialize, queue = self._serializers[name].serialize, self._queues[name]
        return {
            group: pack_rows((prefix + serialize(element), b"") for element in elements)
            for group, prefix in self._prefixes.items()
            if (elements := queue.subset_for_key_group(group))
        }

    def __repr__(self) -> str:
        return f"<HeapStateBackend, key groups {self.key_groups} of {self.max_parallelism}, {len(self.metas)} states>"
