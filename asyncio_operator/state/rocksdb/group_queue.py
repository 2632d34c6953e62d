"""A priority queue on RocksDB: elements as rows in order, the smallest of them in memory.

A row is a prefix and the serialised element. `GroupQueue` knows the order, and where the rows are stored is in its
`QueueRows`: those of one key group in the database of a state backend, where a change is written at once, so that queue
and state are of one moment in each snapshot, and after a crash; or those of `queue_set`.

The laws of the cache: every element outside is larger than those inside; it is empty only if the set is; if it is
`complete`, no element is outside. Before its last element is taken out it reads on from there: so no read passes the
deletions of polled elements, and a read that fails changes nothing.
Source: Flink's ``RocksDBCachingPriorityQueueSet``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

from asyncio_operator.errors import StateError, describe, describe_error
from asyncio_operator.state.keys import Key
from asyncio_operator.state.rocksdb.database import Database
from asyncio_operator.state.rocksdb.records import prefix_end
from asyncio_operator.state.rocksdb.view import Row
from asyncio_operator.state.serializers import Serializer, checked

T = TypeVar("T")
CLEAR_BATCH = 1000
"""Elements that `clear` deletes in one batch."""


class QueueRows:
    """The rows of a column family that begin with a prefix. A change is written at once."""

    def __init__(self, database: Database, name: str, prefix: bytes) -> None:
        self.database, self.name, self.prefix = database, name, prefix
        self._end = prefix_end(prefix)
        self._size: int | None = None  # Counted when it is first asked for.

    def holds(self, row: bytes) -> bool:
        """Whether there is such a row."""
        return self.database.get(self.name, row) is not None

    def change(self, row: bytes, element: Any, present: bool) -> None:
        """Adds or removes the row of an element."""
        self.database.put(self.name, row, b"" if present else None)
        if self._size is not None:
            self._size += 1 if present else -1

    def remove_all(self, rows: list[Row]) -> None:
        """Removes rows of a scan, as one batch."""
        batch = self.database.new_batch()
        for row, _ in rows:
            batch.delete(row, self.database.handles[self.name])
        self.database.commit(batch)
        self._size = None

    def head(self, start: bytes, count: int) -> list[bytes]:
        """The first rows from `start` on."""
        return [row for row, _ in self.database.head(self.name, start, self._end, count)]

    def scan(self) -> Iterator[Row]:
        """All rows, in order, with their values, as they are now."""
        return self.database.scan(self.name, self.prefix, self._end)

    def check_open(self) -> None:
        """Raises StateError if the database is closed."""
        if self.database.closed:
            raise StateError(f"the RocksDB directory {self.database.path} {self.database.why_closed}")

    def __len__(self) -> int:
        if self._size is None:
            self._size = sum(1 for _ in self.scan())
        return self._size


class GroupQueue(Generic[T]):
    """A set of elements in order, which a `KeyGroupPartitionedPriorityQueue` can have for a key group.

    Args:
        rows: where the elements are stored.
        serializer: of elements, whose order is that of the bytes.
        cache_size: elements in memory at most, from 1.
    """

    def __init__(self, rows: QueueRows, serializer: Serializer, cache_size: int) -> None:
        self._rows, self._prefix, self._database = rows, rows.prefix, rows.database
        self._serialize, self._serializer = checked(serializer), serializer
        self._limit = cache_size
        self._cache: list[bytes] = []
        # The element that was deserialised last, for `peek`, and the row that it was made from.
        self._head: tuple[bytes, T] | None = None
        self._complete = False
        self._read(self._prefix)

    def add_to(self, group: int, key: Key, element: T) -> bool:
        """True if the element is the new head; False if an equal one is inside."""
        row = self._row(element)
        if self._contains(row):
            return False
        self._rows.change(row, element, present=True)
        if self._complete or row < self._cache[-1]:
            insort(self._cache, row)
            if len(self._cache) > self._limit:
                self._cache.pop()
                self._complete = False
        return self._cache[0] is row

    def remove_from(self, group: int, key: Key, element: T) -> bool:
        """True if the head was an equal element, which is removed wherever it is."""
        row = self._row(element)
        if not self._contains(row):
            return False
        place = bisect_left(self._cache, row)
        if place < len(self._cache):
            self._take(place, element)
        else:
            self._rows.change(row, element, present=False)
        return place == 0

    def poll(self) -> T | None:
        """The smallest element, taken out, or None."""
        element = self.peek()
        if element is not None:
            self._take(0, element)
        return element

    def peek(self) -> T | None:
        """The smallest element, or None. It is deserialised once, for any number of calls and the `poll` after them."""
        if self._database.closed:
            self._rows.check_open()
        if not self._cache:
            return None
        row = self._cache[0]
        if self._head is None or self._head[0] is not row:
            self._head = (row, self.element_of(row[len(self._prefix) :]))
        return self._head[1]

    def head(self) -> bytes:
        """The bytes of the smallest element, by which the set is ranked."""
        return self._cache[0][len(self._prefix) :]

    def clear(self) -> None:
        """Takes every element out, in batches."""
        self._rows.check_open()
        rows = self._rows.scan()
        try:
            while chunk := list(islice(rows, CLEAR_BATCH)):
                self._rows.remove_all(chunk)
        finally:
            # If a batch fails, the set is what is left on disk.
            self._cache = []
            self._read(self._prefix)

    def is_empty(self) -> bool:
        """Whether nothing is inside."""
        return not self._cache

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[T]:
        self._rows.check_open()
        return self._elements(self._rows.scan())

    def element_of(self, data: bytes) -> T:
        """The element of these bytes."""
        try:
            element: T = self._serializer.deserialize(data)
            return element
        except Exception as error:
            raise StateError(
                f"a queue of {self._rows.database.path} holds {describe(data)}, which is not an element: {error}"
            ) from error

    def _elements(self, rows: Iterator[Row]) -> Iterator[T]:
        for row, _ in rows:
            self._rows.check_open()
            yield self.element_of(row[len(self._prefix) :])

    def _contains(self, row: bytes) -> bool:
        self._rows.check_open()
        if self._complete or row <= self._cache[-1]:
            place = bisect_left(self._cache, row)
            return place < len(self._cache) and self._cache[place] == row
        return self._rows.holds(row)

    def _take(self, place: int, element: T) -> None:
        """Takes an element of the cache out."""
        row = self._cache[place]
        if len(self._cache) == 1 and not self._complete:
            self._read(row + b"\x00")
        self._rows.change(row, element, present=False)
        del self._cache[place]

    def _read(self, start: bytes) -> None:
        """Reads the smallest elements from `start` on into the cache."""
        self._rows.check_open()
        found = self._rows.head(start, self._limit)
        self._cache += found
        self._complete = len(found) < self._limit

    def _row(self, element: T) -> bytes:
        try:
            return self._prefix + self._serialize(element)
        except StateError:
            raise
        except Exception as error:
            raise StateError(
                f"{describe(element)} cannot be put into a queue of {self._rows.database.path}: {describe_error(error)}"
            ) from error

    def _check(self) -> None:
        """Every invariant of the structure, for tests."""
        rows = [row for row, _ in self._rows.scan()]
        assert len(self._cache) <= self._limit
        assert self._cache == rows[: len(self._cache)]
        assert bool(self._cache) == bool(rows)
        assert not self._complete or self._cache == rows
        assert len(self._rows) == len(rows)


def groups_with_elements(database: Database, name: str, width: int) -> Iterator[int]:
    """The key groups of a queue that have elements: one look for each."""
    start: bytes | None = b""
    while start is not None and (rows := database.head(name, start, None, 1)):
        prefix = rows[0][0][:width]
        yield int.from_bytes(prefix, "big")
        start = prefix_end(prefix)
