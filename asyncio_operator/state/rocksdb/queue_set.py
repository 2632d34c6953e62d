"""A priority-queue set on disk, with its smallest elements in a cache in memory. Format version 2.

A directory of its own, with three column families:

    "default"   "queue" -> {"format": 2, "serializer": name, "max_parallelism": int, "start": int, "end": int}
                "size" -> int; written with every change, so that opening does not count. (Not in format 1, which is
                counted once, and becomes format 2.)
    "elements"  the serialised element -> its key group, 2 bytes: the order, for polling
    "groups"    key group, 2 bytes, big-endian, and the serialised element -> nothing: for one key group's subset

The order is that of the bytes. At most `cache_size` elements are in memory. Half of them, rounded up, is the cache,
with the smallest elements. The other half is changes that are not yet on disk. They are written as one batch when there
are more of them, and before the disk is read. With a cache size of 1 every change is written at once.

The laws of the cache: every element outside is larger than those inside; if it is `complete`, no element is outside.
The hint is a lower bound of all elements: polling raises it to the polled element, adding a smaller element lowers it.
A refill starts there, so it passes no deletions of polled elements, and misses no element.
Source: Flink's ``RocksDBCachingPriorityQueueSet``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

from asyncio_operator.errors import ConfigurationError, StateError, describe, describe_error
from asyncio_operator.state.codec import checked
from asyncio_operator.state.key_groups import KeyGroupRange, check_group, check_key_groups, group_of
from asyncio_operator.state.keys import Key
from asyncio_operator.state.priority_queue import PriorityQueueSet, check_function
from asyncio_operator.state.rocksdb.database import Database
from asyncio_operator.state.rocksdb.processes import belongs_here
from asyncio_operator.state.rocksdb.view import Row
from asyncio_operator.state.rocksdb_options import RocksDBOptions
from asyncio_operator.state.serializers import BUILTIN, Serializer, check_serializer
from asyncio_operator.state.table import Batch

T = TypeVar("T")
QUEUE_FORMAT = 2
CLEAR_BATCH = 1000
"""Elements that `clear` deletes in one batch."""
_HEADER, _SIZE = b"queue", b"size"


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
        if type(cache_size) is not int or cache_size < 1:
            raise ConfigurationError(f"cache_size={describe(cache_size)}: an int from 1 is needed")
        self._serializer = check_serializer("serializer", serializer)
        if self._serializer.name == BUILTIN.name:
            raise ConfigurationError(
                f"serializer={describe(serializer)}: the built-in serialiser's bytes do not sort as the elements do, "
                "and the queue's order is that of the bytes: take KeySerializer() with tuples as elements, or one of "
                "your own"
            )
        self._serialize = checked(self._serializer)
        self._key_of = check_function("key_of", key_of)
        self._key_groups = key_groups
        self._max_parallelism = max_parallelism
        self._pending_limit = cache_size // 2
        self._cache_limit = cache_size - self._pending_limit
        self._cache: list[tuple[bytes, bytes]] = []
        # By element: its key group, and whether it is to be on disk. On disk it is the other way round, so a change
        # that undoes one in here cancels it.
        self._pending: dict[bytes, tuple[bytes, bool]] = {}
        # The element that was deserialised last, for `peek`, and the bytes that it was made from.
        self._head: tuple[bytes, T] | None = None
        self._hint = b""
        self._header = {
            "format": QUEUE_FORMAT,
            "serializer": self._serializer.name,
            "max_parallelism": max_parallelism,
            "start": key_groups.start,
            "end": key_groups.end,
        }
        self._database = Database(directory, look=self._stored_size, options=options)
        try:
            self._elements = self._database.family("elements")
            self._database.family("groups")
            self._size = self._claim()
        except BaseException:
            self._database.close()
            raise
        self._complete = self._size == 0
        belongs_here(self)

    def add(self, element: T) -> bool:
        """False if an equal element is inside, or the head surely has not changed.

        Raises:
            StateError: the key is None or outside the range, the serialiser refuses the element, or the set is closed.
        """
        data = self._bytes(element)
        group = self._group(element)
        if self._contains(data):
            return False
        self._size += 1
        self._hint = min(self._hint, data)
        # The cache holds the smallest elements. One that is larger than all of them belongs outside, unless it is known
        # that nothing is outside.
        cached = self._complete or (bool(self._cache) and data < self._cache[-1][0])
        if cached:
            insort(self._cache, (data, group))
            if len(self._cache) > self._cache_limit:
                self._cache.pop()
                self._complete = False
        self._write(data, group, present=True)
        # With an empty cache and elements on disk the head is not known: "may have changed" is the safe answer.
        return not self._cache or self._cache[0][0] == data

    def poll(self) -> T | None:
        """The smallest element, taken out, or None."""
        if not self._cache and not self._fill():
            return None
        data, group = self._cache.pop(0)
        # No element is smaller now, so the next refill may begin here, behind the deletions.
        self._hint = data
        self._drop(data, group)
        head, self._head = self._head, None
        return head[1] if head is not None and head[0] is data else self._element(data)

    def peek(self) -> T | None:
        """The smallest element, or None. It is deserialised once, for any number of calls and the `poll` after them."""
        if not self._cache and not self._fill():
            return None
        data = self._cache[0][0]
        if self._head is None or self._head[0] is not data:
            self._head = (data, self._element(data))
        return self._head[1]

    def remove(self, element: T) -> bool:
        """Removes an element, or an equal copy of it. False if it is absent, or the head surely has not changed."""
        data = self._bytes(element)
        group = self._group(element)
        if not self._contains(data):
            return False
        place = bisect_left(self._cache, (data, group))
        unsure = not self._cache
        if place < len(self._cache) and self._cache[place][0] == data:
            del self._cache[place]
        self._drop(data, group)
        return unsure or place == 0

    def clear(self) -> None:
        """Takes every element out, in batches."""
        self.flush()
        handles = self._database.handles
        rows = self._database.scan("elements", b"", None)
        while chunk := list(islice(rows, CLEAR_BATCH)):
            batch = self._database.new_batch()
            for data, group in chunk:
                batch.delete(data, handles["elements"])
                batch.delete(group + data, handles["groups"])
            self._stage_size(batch, self._size - len(chunk))
            self._database.commit(batch)
            self._size -= len(chunk)
            # With every batch: if a later one fails, the set is what is left on disk.
            self._cache, self._complete = [], False
        self._cache, self._complete, self._hint = [], True, b""

    def subset_for_key_group(self, group: int) -> list[T]:
        """The elements of a key group, smallest first: one scan of that group."""
        check_group(group, self._key_groups)
        self.flush()
        rows = self._database.scan("groups", group.to_bytes(2, "big"), (group + 1).to_bytes(2, "big"))
        return [self._element(row[2:]) for row, _ in rows]

    def flush(self) -> None:
        """Writes the changes that are not yet on disk, as one batch."""
        if not self._pending:
            self._check_open()
            return
        batch = self._database.new_batch()
        handles = self._database.handles
        for data, (group, present) in self._pending.items():
            if present:
                batch.put(data, group, handles["elements"])
                batch.put(group + data, b"", handles["groups"])
            else:
                batch.delete(data, handles["elements"])
                batch.delete(group + data, handles["groups"])
        self._stage_size(batch, self._size)
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
            self._cache.clear()
            self._database.close()

    def leave_to_parent(self) -> None:
        """In a forked child: every use is a StateError from here on, and `close` does nothing."""
        self._database.leave_to_parent()
        self._pending.clear()
        self._cache.clear()
        self._complete = False

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[T]:
        self.flush()
        return self._iterate(self._database.scan("elements", b"", None))

    def _iterate(self, rows: Iterator[Row]) -> Iterator[T]:
        for data, _ in rows:
            self._check_open()
            yield self._element(data)

    def _contains(self, data: bytes) -> bool:
        self._check_open()
        pending = self._pending.get(data)
        if pending is not None:
            return pending[1]
        if self._complete or (self._cache and data <= self._cache[-1][0]):
            place = bisect_left(self._cache, (data, b""))
            return place < len(self._cache) and self._cache[place][0] == data
        try:
            return self._elements.get(data) is not None
        except Exception as error:
            raise self._database.error(error, "elements") from error

    def _drop(self, data: bytes, group: bytes) -> None:
        self._size -= 1
        self._complete = self._size == len(self._cache)
        self._write(data, group, present=False)

    def _write(self, data: bytes, group: bytes, present: bool) -> None:
        """Keeps a change for the next batch. A change that undoes another one cancels it."""
        if self._pending.pop(data, None) is None:
            self._pending[data] = (group, present)
            if len(self._pending) > self._pending_limit:
                self.flush()

    def _fill(self) -> bool:
        """Reads the smallest elements into the empty cache; False if there are none."""
        self._check_open()
        if self._size:
            self.flush()
            self._cache = self._database.head("elements", self._hint, None, self._cache_limit)
            self._complete = self._size == len(self._cache)
        return bool(self._cache)

    def _bytes(self, element: T) -> bytes:
        try:
            return self._serialize(element)
        except StateError:
            raise
        except Exception as error:
            raise StateError(
                f"{describe(element)} cannot be put into the queue {self._database.path}: {describe_error(error)}"
            ) from error

    def _element(self, data: bytes) -> T:
        try:
            element: T = self._serializer.deserialize(data)
            return element
        except Exception as error:
            raise StateError(
                f"the queue {self._database.path} holds {describe(data)}, which is not an element: {error}"
            ) from error

    def _group(self, element: T) -> bytes:
        return group_of(self._key_of(element), self._key_groups, self._max_parallelism).to_bytes(2, "big")

    def _claim(self) -> int:
        """The size. A directory that is new, or of format 1, gets the header of this format."""
        size = self._stored_size(self._database)
        if size is None:
            size = sum(1 for _ in self._database.scan("elements", b"", None))
            batch = self._database.new_batch()
            batch.put(_HEADER, BUILTIN.serialize(self._header), self._database.handles["default"])
            self._stage_size(batch, size)
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

    def _stage_size(self, batch: Batch, size: int) -> None:
        batch.put(_SIZE, BUILTIN.serialize(size), self._database.handles["default"])

    def _check_open(self) -> None:
        if self._database.closed:
            raise StateError(f"the queue {self._database.path} {self._database.why_closed}")

    def _check(self) -> None:
        """Every invariant of the structure, for tests."""
        assert len(self._cache) <= self._cache_limit
        assert len(self._pending) <= self._pending_limit
        assert self._cache == sorted(self._cache)
        self.flush()
        rows = list(self._database.scan("elements", b"", None))
        assert len(rows) == self._size == self._stored_size(self._database)
        assert self._cache == rows[: len(self._cache)]
        assert self._complete == (len(self._cache) == len(rows))
        assert not rows or self._hint <= rows[0][0]
        assert sorted(group + data for data, group in rows) == [
            row for row, _ in self._database.scan("groups", b"", None)
        ]
