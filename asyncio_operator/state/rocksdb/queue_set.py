"""A priority-queue set on disk, with its smallest elements in a cache in memory. Format version 2.

A directory of its own, with three column families:

    "default"   "queue" -> {"format": 2, "serializer": name, "max_parallelism": int, "start": int, "end": int}
                "size" -> int; written with every change, so that opening does not count. (Not in format 1, which is
                counted once, and becomes format 2.)
    "elements"  the serialised element -> its key group, 2 bytes: the order, for polling
    "groups"    key group, 2 bytes, big-endian, and the serialised element -> nothing: for one key group's subset

The order is that of the bytes. At most `cache_size` elements are in memory. Half of them, rounded up, is the cache,
with the smallest elements (`group_queue`). The other half is changes that are not yet on disk. They are written as one
batch when there are more of them, and before the disk is read. With a cache size of 1 every change is written at once.
Source: Flink's ``RocksDBCachingPriorityQueueSet``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from asyncio_operator.checks import positive_int
from asyncio_operator.errors import ConfigurationError, StateError, describe
from asyncio_operator.state.entries import Batch
from asyncio_operator.state.key_groups import KeyGroupRange, check_group, check_key_groups, group_of
from asyncio_operator.state.keys import Key
from asyncio_operator.state.priority_queue import PriorityQueueSet, check_function
from asyncio_operator.state.rocksdb.database import Database
from asyncio_operator.state.rocksdb.group_queue import GroupQueue, QueueRows
from asyncio_operator.state.rocksdb.processes import belongs_here
from asyncio_operator.state.rocksdb.view import Row
from asyncio_operator.state.rocksdb_options import RocksDBOptions
from asyncio_operator.state.serializers import BUILTIN, Serializer, check_serializer

T = TypeVar("T")
QUEUE_FORMAT = 2
_HEADER, _SIZE = b"queue", b"size"


class _PendingRows(QueueRows):
    """The rows of both families. At most `limit` changes wait to be written.

    Args:
        group: gives the key group of an element, 2 bytes.
        size: the number of rows.
    """

    def __init__(self, database: Database, group: Callable[[Any], bytes], limit: int, size: int) -> None:
        super().__init__(database, "elements", b"")
        self._group, self._limit, self._count = group, limit, size
        # By row: its key group, and whether it is to be on disk. On disk it is the other way round, so a change that
        # undoes one in here cancels it.
        self._pending: dict[bytes, tuple[bytes, bool]] = {}
        # The key groups of the rows that were read last: hashing a key takes a fifth of a poll.
        self._groups: dict[bytes, bytes] = {}

    def holds(self, row: bytes) -> bool:
        pending = self._pending.get(row)
        return super().holds(row) if pending is None else pending[1]

    def change(self, row: bytes, element: Any, present: bool) -> None:
        """Keeps a change for the next batch. A change that undoes another one cancels it."""
        group, step = self._groups.get(row) or self._group(element), 1 if present else -1
        self._count += step
        if self._pending.pop(row, None) is None:
            self._pending[row] = group, present
            if len(self._pending) > self._limit:
                try:
                    self.flush()
                except BaseException:
                    del self._pending[row]
                    self._count -= step
                    raise

    def flush(self) -> None:
        """Writes the changes that are not yet on disk, as one batch."""
        self.check_open()
        if not self._pending:
            return
        batch, handles = self.database.new_batch(), self.database.handles
        for row, (group, present) in self._pending.items():
            if present:
                batch.put(row, group, handles["elements"])
                batch.put(group + row, b"", handles["groups"])
            else:
                batch.delete(row, handles["elements"])
                batch.delete(group + row, handles["groups"])
        stage_size(batch, self.database, self._count)
        self.database.commit(batch)
        self._pending.clear()

    def remove_all(self, rows: list[Row]) -> None:
        batch, handles = self.database.new_batch(), self.database.handles
        for row, group in rows:
            batch.delete(row, handles["elements"])
            batch.delete(group + row, handles["groups"])
        stage_size(batch, self.database, self._count - len(rows))
        self.database.commit(batch)
        self._count -= len(rows)

    def head(self, start: bytes, count: int) -> list[bytes]:
        self.flush()
        self._groups = dict(self.database.head(self.name, start, None, count))
        return list(self._groups)

    def scan(self) -> Iterator[Row]:
        self.flush()
        return super().scan()

    def __len__(self) -> int:
        return self._count


def stage_size(batch: Batch, database: Database, size: int) -> None:
    """Adds the number of elements to a batch."""
    batch.put(_SIZE, BUILTIN.serialize(size), database.handles["default"])


class RocksDBCachingPriorityQueueSet(PriorityQueueSet[T]):
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
        self._serializer = check_serializer("serializer", serializer)
        if self._serializer.name == BUILTIN.name:
            raise ConfigurationError(
                f"serializer={describe(serializer)}: the built-in serialiser's bytes do not sort as the elements do, "
                "and the queue's order is that of the bytes: take KeySerializer() with tuples as elements, or one of "
                "your own"
            )
        self._key_of = check_function("key_of", key_of)
        self._key_groups = key_groups
        self._max_parallelism = max_parallelism
        self._header = {
            "format": QUEUE_FORMAT,
            "serializer": self._serializer.name,
            "max_parallelism": max_parallelism,
            "start": key_groups.start,
            "end": key_groups.end,
        }
        self._database = Database(directory, look=self._stored_size, options=options)
        try:
            for name in ("elements", "groups"):
                self._database.family(name)
            self._rows = _PendingRows(self._database, self._group, cache_size // 2, self._claim())
            self._order: GroupQueue[T] = GroupQueue(self._rows, self._serializer, cache_size - cache_size // 2)
        except BaseException:
            self._database.close()
            raise
        belongs_here(self)

    def add(self, element: T) -> bool:
        """True if the element is the new head; False if an equal one is inside.

        Raises:
            StateError: the key is None or outside the range, the serialiser refuses the element, or the set is closed.
        """
        return self._order.add_to(0, None, element)

    def poll(self) -> T | None:
        """The smallest element, taken out, or None."""
        return self._order.poll()

    def peek(self) -> T | None:
        """The smallest element, or None. It is deserialised once, for any number of calls and the `poll` after them."""
        return self._order.peek()

    def remove(self, element: T) -> bool:
        """Removes an element, or an equal copy of it. True if it was the head."""
        self._group(element)  # It raises for a key outside the range.
        return self._order.remove_from(0, None, element)

    def clear(self) -> None:
        """Takes every element out, in batches."""
        self._order.clear()

    def subset_for_key_group(self, group: int) -> list[T]:
        """The elements of a key group, smallest first: one scan of that group."""
        check_group(group, self._key_groups)
        self.flush()
        rows = self._database.scan("groups", group.to_bytes(2, "big"), (group + 1).to_bytes(2, "big"))
        return [self._order.element_of(row[2:]) for row, _ in rows]

    def flush(self) -> None:
        """Writes the changes that are not yet on disk, as one batch."""
        self._rows.flush()

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

    def leave_to_parent(self) -> None:
        """In a forked child: every use is a StateError from here on, and `close` does nothing."""
        self._database.leave_to_parent()

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[T]:
        return iter(self._order)

    def _group(self, element: T) -> bytes:
        return group_of(self._key_of(element), self._key_groups, self._max_parallelism).to_bytes(2, "big")

    def _claim(self) -> int:
        """The size. A directory that is new, or of format 1, gets the header of this format."""
        size = self._stored_size(self._database)
        if size is None:
            size = sum(1 for _ in self._database.scan("elements", b"", None))
            batch = self._database.new_batch()
            batch.put(_HEADER, BUILTIN.serialize(self._header), self._database.handles["default"])
            stage_size(batch, self._database, size)
            self._database.commit(batch)
        return size

    def _stored_size(self, database: Database) -> int | None:
        """The size of this queue in a directory; None if that is empty, or of format 1.

        Raises:
            StateError: it holds something else.
        """
        try:
            data, size = (database.family("default").get(key) for key in (_HEADER, _SIZE))
            families = database.names() - {"elements", "groups"}
            if data is None and families == {"default"} and not database.head("default", b"", None, 1):
                return None
            found = None if data is None else BUILTIN.deserialize(data)
            if found == {**self._header, "format": 1}:
                return None
            if found == self._header:
                return int(BUILTIN.deserialize(size or b""))
        except Exception as error:
            raise database.error(error) from error
        what = "no priority queue" if found is None else f"a queue of {found}"
        raise StateError(
            f"the RocksDB directory {database.path} holds {what}, not one of {self._header}: take another directory"
        )

    def _check(self) -> None:
        """Every invariant of the structure, for tests."""
        assert len(self._rows._pending) <= self._rows._limit
        self._order._check()
        assert len(self) == self._stored_size(self._database)
        groups = [row for row, _ in self._database.scan("groups", b"", None)]
        assert groups == sorted(group + row for row, group in self._rows.scan())
