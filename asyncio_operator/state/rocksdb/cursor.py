"""An iterator over a range of a column family that tells its end from a failure.

rocksdict's own ``items()`` ends silently where a table file is damaged. A `Cursor` asks the iterator for its status
whenever it has no more rows. It raises what rocksdict raises; `Database` maps that.
"""

from __future__ import annotations

from rocksdict import DbClosedError, Rdict, RdictIter, ReadOptions

Row = tuple[bytes, bytes]


class Cursor:
    """Rows with ``start <= key < end``, as they are when it is made.

    Args:
        steps: deleted entries it passes from one row to the next at most; 0 is any number.

    Attributes:
        crowded: whether it has stopped because there were more, with rows perhaps left behind them.
    """

    __slots__ = ("__weakref__", "_iterator", "_options", "crowded")

    def __init__(self, family: Rdict, start: bytes, end: bytes | None, steps: int = 0) -> None:
        options = ReadOptions()
        if end is not None:
            options.set_iterate_upper_bound(end)
        if steps:
            options.set_max_skippable_internal_keys(steps)
        # The bound lives in the options, and RocksDB does not copy it.
        self._options = options
        self._iterator: RdictIter | None = family.iter(options)
        self._iterator.seek(start)
        self.crowded = False

    def take(self, count: int) -> list[Row]:
        """The next `count` rows; fewer at the end, or if it is crowded."""
        iterator = self._iterator
        if iterator is None:
            raise DbClosedError
        valid, key, value, step = iterator.valid, iterator.key, iterator.value, iterator.next
        rows: list[Row] = []
        for _ in range(count):
            if not valid():
                self._check(iterator)
                break
            rows.append((key(), value()))
            step()
        return rows

    def seek(self, start: bytes) -> None:
        """Goes to the first row from `start` on."""
        if self._iterator is None:
            raise DbClosedError
        self._iterator.seek(start)

    def close(self) -> None:
        """Lets the iterator go, which holds the directory's lock."""
        self._iterator = None

    def _check(self, iterator: RdictIter) -> None:
        try:
            iterator.status()
        except Exception as error:
            if not str(error).startswith("Result incomplete"):
                raise
            self.crowded = True
