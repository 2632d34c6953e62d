"""The elements of one key group of a queue in the database of a state backend, the smallest of them in memory.

A row is the key group, as in the addresses of `layout`, and the serialised element; its value is empty. A change is
written at once, so queue and state are of one moment in each snapshot, and after a crash. `cache_size` elements are in
memory at most.

The laws of the cache: every element outside is larger than those inside; it is empty only if the set is; if it is
`complete`, no element is outside. Before its last element is taken out it reads on from there: so no read passes the
deletions of polled elements, and a read that fails changes nothing.
Source: Flink's ``RocksDBCachingPriorityQueueSet``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeVar

from asyncio_operator.errors import StateError, describe, describe_error
from asyncio_operator.state.codec import checked
from asyncio_operator.state.keys import Key
from asyncio_operator.state.rocksdb.database import Database
from asyncio_operator.state.rocksdb.records import prefix_end
from asyncio_operator.state.rocksdb.view import Row
from asyncio_operator.state.serializers import Serializer

T = TypeVar("T")
CLEAR_BATCH = 1000
"""Elements that `clear` deletes in one batch."""


class GroupQueue(Generic[T]):
    """A set of elements in order, for a `KeyGroupPartitionedPriorityQueue`.

    Args:
        database: of the backend.
        name: the column family.
        prefix: the bytes of the key group.
        serializer: of elements, whose order is that of the bytes.
        cache_size: elements in memory at most, from 1.
    """

    def __init__(self, database: Database, name: str, prefix: bytes, serializer: Serializer, cache_size: int) -> None:
        self._database, self._name = database, name
        self._prefix, self._end = prefix, prefix_end(prefix)
        self._serialize, self._deserialize = checked(serializer), serializer.deserialize
        self._limit = cache_size
        self._cache: list[bytes] = []
        # The element that was deserialised last, for `peek`, and the row that it was made from.
        self._head: tuple[bytes, T] | None = None
        self._size: int | None = None  # Counted when it is first asked for.
        self._complete = False
        self._read(prefix)

    def add_to(self, group: int, key: Key, element: T) -> bool:
        """True if the element is the new head; False if an equal one is inside."""
        row = self._row(element)
        if self._contains(row):
            return False
        self._write(row, present=True)
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
            self._take(place)
        else:
            self._write(row, present=False)
        return place == 0

    def poll(self) -> T | None:
        """The smallest element, taken out, or None."""
        element = self.peek()
        if element is not None:
            self._take(0)
        return element

    def peek(self) -> T | None:
        """The smallest element, or None. It is deserialised once."""
        self._check_open()
        if not self._cache:
            return None
        row = self._cache[0]
        if self._head is None or self._head[0] is not row:
            self._head = (row, self._element(row))
        return self._head[1]

    def head(self) -> bytes:
        """The bytes of the smallest element, by which the set is ranked."""
        return self._cache[0][len(self._prefix) :]

    def clear(self) -> None:
        """Takes every element out, in batches."""
        rows = self._scan()
        try:
            while chunk := list(islice(rows, CLEAR_BATCH)):
                batch = self._database.new_batch()
                for row, _ in chunk:
                    batch.delete(row, self._database.handles[self._name])
                self._database.commit(batch)
        finally:
            # If a batch fails, the set is what is left on disk.
            self._cache, self._size = [], None
            self._read(self._prefix)

    def is_empty(self) -> bool:
        """Whether nothing is inside."""
        return not self._cache

    def __len__(self) -> int:
        if self._size is None:
            self._size = sum(1 for _ in self._scan())
        return self._size

    def __iter__(self) -> Iterator[T]:
        return (self._element(row) for row, _ in self._scan())

    def _contains(self, row: bytes) -> bool:
        self._check_open()
        if self._complete or row <= self._cache[-1]:
            place = bisect_left(self._cache, row)
            return place < len(self._cache) and self._cache[place] == row
        try:
            return self._database.family(self._name).get(row) is not None
        except Exception as error:
            raise self._database.error(error, self._name) from error

    def _write(self, row: bytes, present: bool) -> None:
        family = self._database.family(self._name)
        try:
            if present:
                family.put(row, b"")
            else:
                family.delete(row)
        except Exception as error:
            raise self._database.error(error, self._name) from error
        if self._size is not None:
            self._size += 1 if present else -1

    def _take(self, place: int) -> None:
        """Takes a row of the cache out."""
        row = self._cache[place]
        if len(self._cache) == 1 and not self._complete:
            self._read(row + b"\x00")
        self._write(row, present=False)
        del self._cache[place]

    def _read(self, start: bytes) -> None:
        """Reads the smallest elements from `start` on into the cache."""
        self._check_open()
        found = self._database.head(self._name, start, self._end, self._limit)
        self._cache += [row for row, _ in found]
        self._complete = len(found) < self._limit

    def _scan(self) -> Iterator[Row]:
        self._check_open()
        return self._database.scan(self._name, self._prefix, self._end)

    def _row(self, element: T) -> bytes:
        try:
            return self._prefix + self._serialize(element)
        except StateError:
            raise
        except Exception as error:
            raise StateError(
                f"{describe(element)} cannot be put into a queue of {self._database.path}: {describe_error(error)}"
            ) from error

    def _element(self, row: bytes) -> T:
        try:
            element: T = self._deserialize(row[len(self._prefix) :])
            return element
        except Exception as error:
            raise StateError(
                f"a queue of {self._database.path} holds {describe(row)}, which is not an element: {error}"
            ) from error

    def _check_open(self) -> None:
        if self._database.closed:
            raise StateError(f"the RocksDB directory {self._database.path} {self._database.why_closed}")

    def _check(self) -> None:
        """Every invariant of the structure, for tests."""
        rows = [row for row, _ in self._scan()]
        assert len(self._cache) <= self._limit
        assert self._cache == rows[: len(self._cache)]
        assert bool(self._cache) == bool(rows)
        assert not self._complete or self._cache == rows
        assert self._size in (None, len(rows))


def groups_with_elements(database: Database, name: str, width: int) -> Iterator[int]:
    """The key groups of a queue that have elements: one look for each."""
    start: bytes | None = b""
    while start is not None and (rows := database.head(name, start, None, 1)):
        prefix = rows[0][0][:width]
        yield int.from_bytes(prefix, "big")
        start = prefix_end(prefix)
