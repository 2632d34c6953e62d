"""Keyed state in memory.

Values of the built-in serialiser are kept as objects. They are copied when they are stored and when they are read, so a
caller never holds the stored object; a flat container is looked through only when it is stored (`serializers.Flat`).
Values of other serialisers are kept as bytes. Either way a value that a snapshot cannot hold is refused when it is
stored, and both backends give the same results.

State that came with a snapshot and was not requested yet is kept as bytes.

The entries of a state are in a dictionary by slot, and for lists and maps in one by sub within each slot. A table of a
state with time to live (`timed`) has stamped entries, which it also keeps in a `Round`, for the clean-up.

Python cannot iterate over a dictionary bit by bit while it changes. So a list holds the entries too, and each entry
knows its place in the list. A new entry goes to the end. When an entry is removed, the last entry takes its place. A
round ends at the place where the list ended when the round began, so entries added meanwhile cannot make it endless.
Each step takes constant time. A whole round also finds a lower bound of all timestamps. It counts an entry that moves
from a place ahead of the round to a place behind it. An entry added during the round is not older than its start.

A second list holds the timestamps. In most stretches no entry has expired or has yet to begin its life, and ``min`` and
``max`` over that list find this in C.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from asyncio_operator.checks import must_be
from asyncio_operator.clock import Clock
from asyncio_operator.errors import StateError
from asyncio_operator.state.backend import Queue, StateBackend
from asyncio_operator.state.descriptors import QUEUE, CleanupFullSnapshot, StateMeta
from asyncio_operator.state.entries import Batch, Codec, Table
from asyncio_operator.state.heap_set import HeapPriorityQueueSet
from asyncio_operator.state.key_groups import KeyGroupRange
from asyncio_operator.state.layout import NOT_BEGUN, Stored, parse_slot, retimed
from asyncio_operator.state.priority_queue import PriorityQueueSet
from asyncio_operator.state.serializers import BUILTIN, NULL, BuiltinSerializer, Flat, Serializer
from asyncio_operator.state.snapshot import HeapSnapshot, Row, StateSnapshot, merged_rows, pack_rows


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
            old, had = self._tables[name], self.metas[name].ttl
            try:
                for slot, sub, stored in old.entries():
                    table.put(slot, sub, codec.from_bytes(retimed(old.codec.to_bytes(stored), had, meta.ttl)))
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
            raise must_be("directory", directory, "None: it is in memory, and checkpoint(path, backend) writes files")
        self.settle()
        cleaners = {name: lives.cleaned for name, lives in self.lives(CleanupFullSnapshot)}
        groups: dict[str, dict[int, bytes]] = {}
        for name, table in self._tables.items():
            to_bytes, clean = table.codec.to_bytes, cleaners.get(name)
            rows: dict[int, list[Row]] = {}
            for slot, sub, stored in table.entries():
                if clean is not None and (stored := clean(stored)) is None:
                    continue
                group = int.from_bytes(slot[: self.group_width], "big")
                rows.setdefault(group, []).append((slot + sub, to_bytes(stored)))
            groups[name] = {group: pack_rows(some) for group, some in rows.items()}
        for name, queue in self._queues.items():
            serialize = self._serializers[name].serialize
            groups[name] = {
                group: pack_rows((prefix + serialize(element), b"") for element in elements)
                for group, prefix in self._prefixes.items()
                if (elements := queue.subset_for_key_group(group))
            }
        return HeapSnapshot(self.max_parallelism, self.key_groups, self._sequence + 1, dict(self.metas), groups)

    def load(self, snapshots: list[StateSnapshot], states: dict[str, StateMeta]) -> None:
        tables = {}
        for name, meta in states.items():
            tables[name] = table = new_table(meta, timed=False)
            for address, data in merged_rows(snapshots, name, meta, self.key_groups):
                length = len(address) if meta.kind == QUEUE else parse_slot(address, self.group_width)[2]
                table.put(address[:length], address[length:], data)
        self._tables.update(tables)
        self._sequence = max([snapshot.sequence for snapshot in snapshots], default=0)
        for name, queue in self._queues.items():
            self._fill(name, queue)

    def close(self) -> None:
        self.mark_closed()
        self._tables.clear()

    def _fill(self, name: str, queue: PriorityQueueSet[Any]) -> None:
        """Gives a queue the elements that were restored for it."""
        restored = self._tables.pop(name, None)
        rows = restored.slots() if restored is not None else ()
        queue.add_all(self._serializers[name].deserialize(row[self.group_width :]) for row in rows)

    def __repr__(self) -> str:
        return f"<HeapStateBackend, key groups {self.key_groups} of {self.max_parallelism}, {len(self.metas)} states>"


Record = list[Any]
"""A stamped entry: ``[timestamp, value, place in the round, key in its dictionary, slot if that is another]``. Every
write makes a new record: a reader that holds a record can compare it with the entry and see whether it was replaced."""


class Round:
    """An endless round through the records of a table, each once, in no order."""

    __slots__ = ("_end", "_next", "_oldest", "_records", "_times")

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._times: list[int] = []
        # The round still has to visit places from `_next` to `_end`. `_oldest` is the lower bound of all others.
        self._next = self._end = 0
        self._oldest = 0

    def put(self, entries: dict[bytes, Record], key: bytes, record: Record) -> None:
        """Puts a new record into the table's dictionary, and into the list at the place of the old record, if any."""
        old = entries.get(key)
        entries[key] = record
        record[3] = key
        if old is None:
            record[2] = len(self._records)
            self._records.append(record)
            self._times.append(record[0])
        else:
            place = record[2] = old[2]
            self._records[place] = record
            self._times[place] = record[0]

    def remove(self, record: Record) -> None:
        """Removes a record from the list. The last record takes its place."""
        place = record[2]
        last = self._records.pop()
        time = self._times.pop()
        if last is not record:
            self._records[place] = last
            self._times[place] = time
            last[2] = place
            if place < self._next:
                self._oldest = min(self._oldest, time)

    def sweep(self, count: int, deadline: int, now: int, discard: Callable[[Record], None]) -> int | None:
        """See `Table.sweep`. `discard` removes a record from the table, which then calls `remove`."""
        times, oldest = self._times, None
        count = min(count, len(times))
        while count > 0 and times:
            last = min(self._end, len(times))
            if self._next >= last:
                # A new round. What is written during it is stamped `now` or later, so the bound begins there.
                self._next, self._oldest = 0, now
                self._end = last = len(times)
            end = min(self._next + count, last)
            count -= end - self._next
            stretch = times[self._next : end]
            lowest = min(stretch)
            # All alive: one step for the whole stretch.
            if lowest > deadline and max(stretch) < NOT_BEGUN:
                self._oldest = min(self._oldest, lowest)
                self._next = end
            else:
                for _ in range(end - self._next):
                    time = times[self._next]
                    if time == NOT_BEGUN:
                        time = times[self._next] = self._records[self._next][0] = now
                    if time <= deadline:
                        discard(self._records[self._next])
                        # The last record is now at this place. It is next, unless it was added after the round began.
                        if len(times) < self._end:
                            continue
                    else:
                        self._oldest = min(self._oldest, time)
                    self._next += 1
            if self._next >= min(self._end, len(times)):
                oldest = self._oldest
        # An empty table has no oldest entry, and later ones are stamped `now` or later.
        return oldest if times else now


_by_sub = itemgetter(0)


class HeapValueTable(Table):
    """One entry per slot, without a sub."""

    def __init__(self, timed: bool) -> None:
        self._entries: dict[bytes, Stored] = {}
        self._round = Round() if timed else None
        self.get_slot = self._entries.get
        self.put_slot = self._entries.__setitem__ if self._round is None else partial(self._round.put, self._entries)

    def in_order(self) -> OrderedDict[Any, Stored]:
        """The entries. From now on the caller orders them, and removes those that have expired."""
        entries = self._entries = OrderedDict(self._entries)
        self._round, self.get_slot, self.put_slot = None, entries.get, entries.__setitem__
        return entries

    def get(self, slot: bytes, sub: bytes) -> Stored | None:
        return self._entries.get(slot)

    def put(self, slot: bytes, sub: bytes, stored: Stored) -> None:
        self.put_slot(slot, stored)

    def delete(self, slot: bytes, sub: bytes) -> None:
        self.empty(slot)

    def empty(self, slot: bytes) -> None:
        """Removes every entry of a slot."""
        found = self._entries.pop(slot, None)
        if found is not None and self._round is not None:
            self._round.remove(found)

    def scan(self, slot: bytes) -> Iterator[tuple[bytes, Stored]]:
        return iter(self.head(slot, 1))

    def head(self, slot: bytes, count: int) -> list[tuple[bytes, Stored]]:
        stored = self._entries.get(slot)
        return [] if stored is None else [(b"", stored)]

    def sweep(self, count: int, deadline: int, now: int) -> int | None:
        assert self._round is not None
        return self._round.sweep(count, deadline, now, lambda record: self.empty(record[3]))

    def entries(self) -> Iterator[tuple[bytes, bytes, Stored]]:
        # A copy: the caller may delete entries during the iteration.
        return ((slot, b"", stored) for slot, stored in list(self._entries.items()))

    def slots(self) -> Iterator[bytes]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)


class HeapTable(Table):
    """Any number of entries per slot. A slot without entries is not kept."""

    def __init__(self, timed: bool) -> None:
        self._slots: dict[bytes, dict[bytes, Stored]] = {}
        self._round = Round() if timed else None
        self._size = 0

    def get_slot(self, slot: bytes) -> Stored | None:
        return self.get(slot, b"")

    def put_slot(self, slot: bytes, stored: Stored) -> None:
        self.put(slot, b"", stored)

    def get(self, slot: bytes, sub: bytes) -> Stored | None:
        inner = self._slots.get(slot)
        return None if inner is None else inner.get(sub)

    def put(self, slot: bytes, sub: bytes, stored: Stored) -> None:
        inner = self._slots.get(slot)
        if inner is None:
            inner = self._slots[slot] = {}
        before = len(inner)
        if self._round is None:
            inner[sub] = stored
        else:
            stored[4] = slot
            self._round.put(inner, sub, stored)
        self._size += len(inner) - before

    def delete(self, slot: bytes, sub: bytes) -> None:
        inner = self._slots.get(slot)
        found = None if inner is None else inner.pop(sub, None)
        if found is not None:
            self._size -= 1
            if not inner:
                del self._slots[slot]
            if self._round is not None:
                self._round.remove(found)

    def empty(self, slot: bytes) -> None:
        """Removes every entry of a slot."""
        inner = self._slots.pop(slot, {})
        self._size -= len(inner)
        if self._round is not None:
            for found in inner.values():
                self._round.remove(found)

    def scan(self, slot: bytes) -> Iterator[tuple[bytes, Stored]]:
        return iter(sorted(self._slots.get(slot, {}).items(), key=_by_sub))

    def head(self, slot: bytes, count: int) -> list[tuple[bytes, Stored]]:
        return list(islice(self._slots.get(slot, {}).items(), count))

    def sweep(self, count: int, deadline: int, now: int) -> int | None:
        assert self._round is not None
        return self._round.sweep(count, deadline, now, lambda record: self.delete(record[4], record[3]))

    def entries(self) -> Iterator[tuple[bytes, bytes, Stored]]:
        return ((slot, sub, stored) for slot, inner in list(self._slots.items()) for sub, stored in list(inner.items()))

    def slots(self) -> Iterator[bytes]:
        return iter(list(self._slots))

    def __len__(self) -> int:
        return self._size


class HeapCodec(Codec):
    """Keeps values as objects, copied by the built-in serialiser, or as the bytes of another one. A stamped entry is a
    `Record`, which gets its place in the round when it is put."""

    def __init__(self, serializer: Any, stamped: bool) -> None:
        super().__init__(serializer)
        self._stamped, self._serialize, self._deserialize = stamped, self.encode, self.decode
        # A subclass without a `keep` of its own may take other values, or make others of them.
        self._as_object = isinstance(serializer, BuiltinSerializer) and "keep" in vars(type(serializer))
        if self._as_object:
            self.encode, self.decode = serializer.keep, serializer.kept

    def to_bytes(self, stored: Stored) -> bytes:
        value = stored[1] if self._stamped else stored
        if self._as_object:
            value = self._serialize(value.value if type(value) is Flat else value)
        return super().stamp(stored[0], value) if self._stamped else value  # type: ignore[no-any-return]

    def from_bytes(self, data: bytes) -> Stored:
        timestamp, value = super().split(data) if self._stamped else (0, data)
        if self._as_object:
            value = NULL if (found := self._deserialize(value)) is None else found
        return self.stamp(timestamp, value) if self._stamped else value

    def stamp(self, timestamp: int, stored: Stored) -> Stored:
        return [timestamp, stored, 0, None, None]

    def split(self, stamped: Stored) -> tuple[int, Stored]:
        return stamped[0], stamped[1]


def new_table(meta: StateMeta, timed: bool) -> HeapTable | HeapValueTable:
    """An empty table for a state."""
    table = HeapTable(timed) if meta.kind in ("list", "map") else HeapValueTable(timed)
    table.codec = Codec(BUILTIN)
    return table
