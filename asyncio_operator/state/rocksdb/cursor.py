"""An iterator over a range of a column family that tells its end from a failure.

rocksdict's own ``items()`` ends silently where a table file is damaged. A `Cursor` asks the iterator for its status
whenever it has no more rows. It raises what rocksdict raises; `Database` maps that.

An error that is kept keeps the frames it passed, and all that is in them. So no frame from which one comes has the
native iterator, only the cursor, and `close` lets the iterator go whoever has the cursor.
"""

from __future__ import annotations

from rocksdict import DbClosedError, Rdict, RdictIter, ReadOptions

from asyncio_operator.state.rocksdb.processes import keep

Row = tuple[bytes, bytes]


class Cursor:
    """Rows with ``start <= key < end``, as they are when it is made.

    Args:
        start: None stands nowhere until `seek`.
        steps: deleted entries it passes from one row to the next at most; 0 is any number.

    Attributes:
        crowded: whether it has stopped because there were more, with rows perhaps left behind them.
    """

    __slots__ = ("__weakref__", "_iterator", "_options", "crowded", "steps")

    def __init__(self, family: Rdict, start: bytes | None, end: bytes | None, steps: int = 0) -> None:
        options = ReadOptions()
        if end is not None:
            options.set_iterate_upper_bound(end)
        if steps:
            options.set_max_skippable_internal_keys(steps)
        # The bound lives in the options, and RocksDB does not copy it.
        self._options = options
        self._iterator: RdictIter | None = family.iter(options)
        if start is not None:
            self._iterator.seek(start)
        self.steps = steps
        self.crowded = False

    def take(self, count: int) -> list[Row]:
        """The next `count` rows; fewer at the end, or if it is crowded."""
        rows = self._read(count)
        if len(rows) < count:
            self._check()
        return rows

    def last(self) -> Row | None:
        """The last row, if there is one; behind it there is nothing left to take."""
        self._open().seek_to_last()
        rows = self._read(1)
        if not rows:
            self._check()
        return rows[0] if rows else None

    def seek(self, start: bytes) -> None:
        """Goes to the first row from `start` on."""
        self._open().seek(start)

    def close(self) -> None:
        """Lets the iterator go, which holds the directory's lock."""
        self._iterator = None

    def leave_to_parent(self) -> None:
        """In a forked child: as `close`, but the iterator is kept for ever, because freeing it would touch RocksDB."""
        keep(self._iterator)
        self._iterator = None

    def _open(self) -> RdictIter:
        if self._iterator is None:
            raise DbClosedError
        return self._iterator

    def _read(self, count: int) -> list[Row]:
        iterator = self._open()
        key, value, step = iterator.key, iterator.value, iterator.next
        rows: list[Row] = []
        for _ in range(count):
            found = key()
            if found is None:
                break
            rows.append((found, value()))
            step()
        return rows

    def _check(self) -> None:
        try:
            self._open().status()
        except Exception as error:
            if not str(error).startswith("Result incomplete"):
                raise
            self.crowded = True
