"""Priority queues on RocksDB: elements as rows in order, the smallest of them in memory.

A row is a prefix and the serialised element, and the order is that of the bytes. `StateQueue` is in the database of a
state backend, as a `GroupQueue` for each key group: a change is written at once, so that queue and state are of one
moment in each snapshot, and after a crash.

The laws of the cache: every element outside is larger than those inside; it is empty only if the set is; if it is
`complete`, no element is outside. Before its last element is taken out it reads on from there: so no read passes the
deletions of polled elements, and a read that fails changes nothing.

`RocksDBCachingPriorityQueueSet` has a directory of its own, format version 2, with three column families:

    "default"   "queue" -> {"format": 2, "serializer": name, "max_parallelism": int, "start": int, "end": int}
                "size" -> int; written with every change, so that opening does not count
    "elements"  the serialised element -> its key group, 2 bytes: the order, for polling
    "groups"    key group, 2 bytes, big-endian, and the serialised element -> nothing: for one key group's subset

At most `cache_size` elements are in memory. Half of them, rounded up, is the cache. The other half is changes that are
not yet on disk. They are written as one batch when there are more of them, and before the disk is read. With a cache
size of 1 every change is written at once.
Source: Flink's ``RocksDBCachingPriorityQueueSet``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

from asyncio_operator.checks import must_be, positive_int
from asyncio_operator.errors import StateError, describe, describe_error
from asyncio_operator.state.backend import Queue
from asyncio_operator.state.entries import Batch
from asyncio_operator.state.heap_queue import HeapPriorityQueue
from asyncio_operator.state.key_groups import KeyGroupRange, check_group, check_key_groups, group_of, group_prefix
from asyncio_operator.state.keys import Key
from asyncio_operator.state.priority_queue import PriorityQueue, PriorityQueueSet, check_function
from asyncio_operator.state.rocksdb.database import Database
from asyncio_operator.state.rocksdb.state_directory import prefix_end, prefixes
from asyncio_operator.state.rocksdb_options import RocksDBOptions
from asyncio_operator.state.serializers import BUILTIN, Serializer, check_serializer, checked
from asyncio_operator.state.snapshot import Row

T = TypeVar("T")
CLEAR_BATCH = 1000  # Elements that `clear` deletes in one batch.

QUEUE_FORMAT = 2
_HEADER, _SIZE = b"queue", b"size"


class GroupQueue(PriorityQueue[T]):
    """A set of elements: the rows of a column family that begin with `prefix`, in the order of their bytes."""

    def __init__(self, database: Database, family: str, prefix: bytes, serializer: Serializer, cache_size: int) -> None:
        self._database, self._family, self._prefix, self._end = database, family, prefix, prefix_end(prefix)
        self._serialize, self._serializer = checked(serializer), serializer
        self._limit = cache_size
        self._size: int | None = None  # Counted when it is first asked for.
        self._cache: list[bytes] = []
        # The element that was deserialised last, for `peek`, and the row that it was made from.
        self._head: tuple[bytes, T] | None = None
        self._complete = False
        self._read(prefix)

    def add(self, element: T) -> bool:
        """True if the element is the new head; False if an equal one is inside.

        Raises:
            StateError: the key is None or outside the range, the serialiser refuses the element, or the set is closed.
        """
        row = self._row(element)
        if self._contains(row):
            return False
        self._change(row, element, present=True)
        if self._complete or row < self._cache[-1]:
            insort(self._cache, row)
            if len(self._cache) > self._limit:
                self._cache.pop()
                self._complete = False
        return self._cache[0] is row

    def remove(self, element: T) -> bool:
        """True if the head was an equal element, which is removed wherever it is."""
        row = self._row(element)
        if not self._contains(row):
            return False
        place = bisect_left(self._cache, row)
        if place < len(self._cache):
            self._take(place, element)
        else:
            self._change(row, element, present=False)
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
            self._check_open()
        if not self._cache:
            return None
        row = self._cache[0]
        if self._head is None or self._head[0] is not row:
            self._head = (row, self._element(row[len(self._prefix) :]))
        return self._head[1]

    def head(self) -> bytes:
        """The bytes of the smallest element, by which the set is ranked."""
        return self._cache[0][len(self._prefix) :]

    def clear(self) -> None:
        """Takes every element out, in batches."""
        self._check_open()
        rows = self._scan()
        try:
            while chunk := list(islice(rows, CLEAR_BATCH)):
                self._remove_all(chunk)
        finally:
            # If a batch fails, the set is what is left on disk.
            self._cache = []
            self._read(self._prefix)

    def is_empty(self) -> bool:
        """Whether nothing is inside."""
        return not self._cache

    def __len__(self) -> int:
        if self._size is None:
            self._size = sum(1 for _ in self._scan())
        return self._size

    def __iter__(self) -> Iterator[T]:
        self._check_open()
        return self._elements(self._scan())

    def _holds(self, row: bytes) -> bool:
        """Whether there is such a row."""
        return self._database.get(self._family, row) is not None

    def _change(self, row: bytes, element: T, present: bool) -> None:
        """Adds or removes the row of an element."""
        family = self._database.family(self._family)
        self._database.write(self._family, *((family.put, row, b"") if present else (family.delete, row)))
        if self._size is not None:
            self._size += 1 if present else -1

    def _remove_all(self, rows: list[Row]) -> None:
        """Removes rows of a scan, as one batch."""
        batch = self._database.new_batch()
        for row, _ in rows:
            batch.delete(row, self._database.handles[self._family])
        self._database.commit(batch)
        self._size = None

    def _first(self, start: bytes, count: int) -> list[bytes]:
        """The first rows from `start` on."""
        return [row for row, _ in self._database.head(self._family, start, self._end, count)]

    def _scan(self) -> Iterator[Row]:
        """All rows, in order, with their values, as they are now."""
        return self._database.scan(self._family, self._prefix, self._end)

    def _check_open(self) -> None:
        if self._database.closed:
            raise StateError(f"the RocksDB directory {self._database.path} {self._database.why_closed}")

    def _element(self, data: bytes) -> T:
        try:
            element: T = self._serializer.deserialize(data)
            return element
        except Exception as error:
            raise StateError(
                f"a queue of {self._database.path} holds {describe(data)}, which is not an element: {error}"
            ) from error

    def _elements(self, rows: Iterator[Row]) -> Iterator[T]:
        for row, _ in rows:
            self._check_open()
            yield self._element(row[len(self._prefix) :])

    def _contains(self, row: bytes) -> bool:
        self._check_open()
        if self._complete or row <= self._cache[-1]:
            place = bisect_left(self._cache, row)
            return place < len(self._cache) and self._cache[place] == row
        return self._holds(row)

    def _take(self, place: int, element: T) -> None:
        """Takes an element of the cache out."""
        row = self._cache[place]
        if len(self._cache) == 1 and not self._complete:
            self._read(row + b"\x00")
        self._change(row, element, present=False)
        del self._cache[place]

    def _read(self, start: bytes) -> None:
        """Reads the smallest elements from `start` on into the cache."""
        self._check_open()
        found = self._first(start, self._limit)
        self._cache += found
        self._complete = len(found) < self._limit

    def _row(self, element: T) -> bytes:
        try:
            return self._prefix + self._serialize(element)
        except StateError:
            raise
        except Exception as error:
            raise StateError(
                f"{describe(element)} cannot be put into a queue of {self._database.path}: {describe_error(error)}"
            ) from error


class StateQueue(PriorityQueueSet[T]):
    """A queue in a column family of a state backend: the queues of its key groups, ranked by their heads."""

    def __init__(
        self, database: Database, family: str, about: Queue, key_groups: KeyGroupRange, max_parallelism: int
    ) -> None:
        check_function("key", about.key)
        self._key_of = check_function("key_of", about.key_of)
        self._database, self._family, self._about = database, family, about
        self._key_groups, self._max_parallelism = key_groups, max_parallelism
        self._queues: dict[int, GroupQueue[T]] = {}
        self._ranked: HeapPriorityQueue[GroupQueue[T]] = HeapPriorityQueue(GroupQueue.head)
        database.family(family)
        self.open()

    def open(self) -> None:
        """Reads the heads of all key groups that have elements."""
        width = len(group_prefix(0, self._max_parallelism))
        self._queues.clear()
        self._ranked.clear()
        for prefix in prefixes(self._database, self._family, lambda row: width):
            self._ranked.add(self._queue_of(int.from_bytes(prefix, "big")))

    def add(self, element: T) -> bool:
        """True if the element is the new head; False if an equal one is inside."""
        queue = self._queue_of(group_of(self._key_of(element), self._key_groups, self._max_parallelism))
        return queue.add(element) and self._rank(queue)

    def poll(self) -> T | None:
        first = self._ranked.peek()
        if first is None:
            return None
        element = first.poll()
        self._rank(first)
        return element

    def peek(self) -> T | None:
        first = self._ranked.peek()
        return None if first is None else first.peek()

    def remove(self, element: T) -> bool:
        """Removes an element, or an equal copy of it. True if it was the head."""
        queue = self._queues.get(group_of(self._key_of(element), self._key_groups, self._max_parallelism))
        if queue is None or not queue.remove(element):
            return False
        was_first = self._ranked.peek() is queue
        self._rank(queue)
        return was_first

    def clear(self) -> None:
        for queue in self._queues.values():
            queue.clear()
            self._rank(queue)

    def subset_for_key_group(self, group: int) -> list[T]:
        """The elements of a key group, smallest first."""
        check_group(group, self._key_groups)
        return list(self._queues.get(group, ()))

    def is_empty(self) -> bool:
        return self._ranked.is_empty()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable([iter(queue) for queue in self._queues.values()])

    def _queue_of(self, group: int) -> GroupQueue[T]:
        if group not in self._queues:
            prefix, about = group_prefix(group, self._max_parallelism), self._about
            made = GroupQueue[T](self._database, self._family, prefix, about.serializer, about.cache_size)
            self._queues[group] = made
        return self._queues[group]

    def _rank(self, changed: GroupQueue[T]) -> bool:
        """Gives a queue, whose head has changed, its new rank; True if it is the first."""
        self._ranked.remove(changed)
        return not changed.is_empty() and self._ranked.add(changed)


class RocksDBCachingPriorityQueueSet(GroupQueue[T], PriorityQueueSet[T]):
    """A set in a RocksDB directory of its own. Opened again, it has the elements that it had when it was closed.

    Args:
        directory: created if it is missing.
        key_of: the key of an element, which has to lie in the range.
        key_groups: the range.
        max_parallelism: the number of key groups there are.
        serializer: of elements. Its bytes must sort as the elements do, and equal elements must have equal bytes. Those
            of the built-in serialiser do not; those of `KeySerializer` do, for tuples (priority, ...) of key types.
        cache_size: elements in memory at most, from 1.
        options: limits of memory, log and threads; None is the defaults.

    It belongs to the process that opened it. In a forked child every use but `len` is a StateError, and `close` does
    nothing.

    Raises:
        ConfigurationError: the range, the maximum parallelism, the serialiser, the cache size or the options are wrong.
        StateError: the directory is locked, damaged, foreign, or was written for other arguments.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        key_of: Callable[[T], Key],
        key_groups: KeyGroupRange,
        max_parallelism: int,
        serializer: Serializer,
        cache_size: int = 128,
        options: RocksDBOptions | None = None,
    ) -> None:
        check_key_groups(key_groups, max_parallelism)
        positive_int("cache_size", cache_size)
        if check_serializer("serializer", serializer).name == BUILTIN.name:
            allowed = "one whose bytes sort as the elements do, such as KeySerializer() with tuples as elements"
            raise must_be("serializer", serializer, allowed)
        self._key_of = check_function("key_of", key_of)
        self._key_groups = key_groups
        self._max_parallelism = max_parallelism
        self._header = {
            "format": QUEUE_FORMAT,
            "serializer": serializer.name,
            "max_parallelism": max_parallelism,
            "start": key_groups.start,
            "end": key_groups.end,
        }
        # By row: its key group, and whether it is to be on disk. On disk it is the other way round, so a change that
        # undoes one in here cancels it.
        self._pending: dict[bytes, tuple[bytes, bool]] = {}
        self._most_pending = cache_size // 2
        # The key groups of the rows that were read last: hashing a key takes a fifth of a poll.
        self._groups: dict[bytes, bytes] = {}
        database = Database(directory, look=self._stored_size, options=options)
        try:
            for name in ("elements", "groups"):
                database.family(name)
            size = self._stored_size(database)
            if size is None:
                size, batch = 0, database.new_batch()
                batch.put(_HEADER, BUILTIN.serialize(self._header), database.handles["default"])
                _stage_size(batch, database, size)
                database.commit(batch)
            self._count = size
            super().__init__(database, "elements", b"", serializer, cache_size - cache_size // 2)
        except BaseException:
            database.close()
            raise

    def remove(self, element: T) -> bool:
        """Removes an element, or an equal copy of it. True if it was the head."""
        # It raises for a key outside the range.
        group_of(self._key_of(element), self._key_groups, self._max_parallelism)
        return super().remove(element)

    def subset_for_key_group(self, group: int) -> list[T]:
        """The elements of a key group, smallest first: one scan of that group."""
        check_group(group, self._key_groups)
        self.flush()
        rows = self._database.scan("groups", group.to_bytes(2, "big"), (group + 1).to_bytes(2, "big"))
        return [self._element(row[2:]) for row, _ in rows]

    def flush(self) -> None:
        """Writes the changes that are not yet on disk, as one batch."""
        self._check_open()
        if not self._pending:
            return
        batch, handles = self._database.new_batch(), self._database.handles
        for row, (group, present) in self._pending.items():
            if present:
                batch.put(row, group, handles["elements"])
                batch.put(group + row, b"", handles["groups"])
            else:
                batch.delete(row, handles["elements"])
                batch.delete(group + row, handles["groups"])
        _stage_size(batch, self._database, self._count)
        self._database.commit(batch)
        self._pending.clear()

    def close(self) -> None:
        """Writes the changes that are left, then closes and unlocks the directory, whatever happens.

        Called again it does nothing.

        Raises:
            StateError: the changes could not be written (a full disk, damage).
        """
        if self._database.closed:
            return
        try:
            self.flush()
        finally:
            self._database.close()

    def __len__(self) -> int:
        return self._count

    def _holds(self, row: bytes) -> bool:
        pending = self._pending.get(row)
        return super()._holds(row) if pending is None else pending[1]

    def _change(self, row: bytes, element: T, present: bool) -> None:
        """Keeps a change for the next batch. A change that undoes another one cancels it."""
        group, step = self._groups.get(row), 1 if present else -1
        if group is None:
            group = group_of(self._key_of(element), self._key_groups, self._max_parallelism).to_bytes(2, "big")
        self._count += step
        if self._pending.pop(row, None) is None:
            self._pending[row] = group, present
            if len(self._pending) > self._most_pending:
                try:
                    self.flush()
                except BaseException:
                    del self._pending[row]
                    self._count -= step
                    raise

    def _remove_all(self, rows: list[Row]) -> None:
        batch, handles = self._database.new_batch(), self._database.handles
        for row, group in rows:
            batch.delete(row, handles["elements"])
            batch.delete(group + row, handles["groups"])
        _stage_size(batch, self._database, self._count - len(rows))
        self._database.commit(batch)
        self._count -= len(rows)

    def _first(self, start: bytes, count: int) -> list[bytes]:
        self.flush()
        self._groups = dict(self._database.head("elements", start, None, count))
        return list(self._groups)

    def _scan(self) -> Iterator[Row]:
        self.flush()
        return super()._scan()

    def _stored_size(self, database: Database) -> int | None:
        """The size of this queue in a directory; None if that is empty; StateError for all else."""
        try:
            data, size = (database.family("default").get(key) for key in (_HEADER, _SIZE))
            families = database.names - {"elements", "groups"}
            if data is None and families == {"default"} and not database.head("default", b"", None, 1):
                return None
            found = None if data is None else BUILTIN.deserialize(data)
            if found == self._header:
                return int(BUILTIN.deserialize(size or b""))
        except Exception as error:
            raise database.error(error) from error
        what = "no priority queue" if found is None else f"a queue of {found}"
        raise StateError(
            f"the RocksDB directory {database.path} holds {what}, not one of {self._header}: take another directory"
        )


def _stage_size(batch: Batch, database: Database, size: int) -> None:
    batch.put(_SIZE, BUILTIN.serialize(size), database.handles["default"])
