"""Reading a directory of RocksDB safely: a view of one that must not change, and an iterator that reports failures.

Opening a directory writes to it, even read-only: rocksdict writes its configuration, RocksDB its log. So a directory
that must not change is opened through a view, a temporary directory of symbolic links to its files. The name of a view
contains the number of its process. If a killed process leaves its view, the first view that is made a day later removes
it.

rocksdict's own ``items()`` ends without an error at a damaged table file. So a `Cursor` asks the iterator for its
status when it has no more rows. It raises the errors of rocksdict, and `Database` maps them. An error that is kept also
keeps the frames that it passed. So no such frame has the native iterator, only the cursor, and `close` releases the
iterator even while other code holds the cursor.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from rocksdict import DbClosedError, Rdict, RdictIter, ReadOptions

from asyncio_operator.checks import milliseconds
from asyncio_operator.errors import StateError
from asyncio_operator.state.rocksdb.processes import keep
from asyncio_operator.state.snapshot import Row


class Cursor:
    """Rows with ``start <= key < end``, as they are when it is made. Without `start`, call `seek` before reading.

    Between two rows it passes `steps` deleted entries at most, or any number for 0. If there were more it is `crowded`,
    and there may be rows behind them.
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
            try:
                self._open().status()
            except Exception as error:
                if not str(error).startswith("Result incomplete"):
                    raise
                self.crowded = True
        return rows

    def last(self) -> Row | None:
        """The last row, if there is one. After that `take` returns no rows."""
        self._open().seek_to_last()
        rows = self.take(1)
        return rows[0] if rows else None

    def seek(self, start: bytes) -> None:
        """Goes to the first row from `start` on."""
        self._open().seek(start)

    def close(self) -> None:
        """Releases the iterator, which holds the directory's lock."""
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
        # Not a part of `take`, whose frame the error of a status keeps.
        iterator = self._open()
        key, value, step = iterator.key, iterator.value, iterator.next
        rows: list[Row] = []
        while len(rows) < count and (found := key()) is not None:
            rows.append((found, value()))
            step()
        return rows


LEFT_FOR = 86_400
"""Seconds until the view of a dead process is removed: in another container a process that seems dead may live."""

_PREFIX = "asyncio-operator-view-"
_CONFIGURATION = "rocksdict-config.json"
_WRITTEN = ("LOCK", "LOG", _CONFIGURATION)

BEGUN = "asyncio-operator-begun"
"""A file in a directory whose database is being made: without it a process that died then would leave a directory that
looks like another program's."""


def view_of(directory: Path) -> Path:
    """A new directory of links to the files of a database, which the caller removes. StateError without a temporary
    directory that can be written; OSError if `directory` cannot be read."""
    entries = [entry for entry in directory.iterdir() if entry.name not in _WRITTEN]
    view = None
    try:
        _remove_left()
        view = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        for entry in entries:
            (view / entry.name).symlink_to(entry)
    except OSError as error:
        leave(view)
        raise StateError(
            f"the RocksDB directory {directory} cannot be looked at without a temporary directory: "
            f"set TMPDIR to a directory that can be written ({error})"
        ) from error
    return view


def leave(view: Path | None) -> None:
    """Removes a view, if there is one."""
    if view is not None:
        shutil.rmtree(view, ignore_errors=True)


def is_database(directory: Path) -> bool:
    """Whether there is a database of this format already; False if there is nothing yet. StateError if it is another
    program's, or holds something else; OSError if it cannot be read."""
    if not directory.exists():
        return False
    # The root of a volume has a `lost+found` by itself.
    if directory.is_dir() and all(entry.name == "lost+found" and entry.is_dir() for entry in directory.iterdir()):
        return False
    if not (directory / "CURRENT").is_file():
        if (directory / BEGUN).is_file():
            return False
        raise StateError(
            f"{directory} is not a RocksDB directory and not empty: take another directory. If it held state, it is "
            "damaged because it has no file CURRENT: restore a snapshot into another directory"
        )
    try:
        is_foreign = json.loads((directory / _CONFIGURATION).read_bytes()).get("raw_mode") is False
    except (OSError, ValueError, AttributeError):
        is_foreign = False
    if is_foreign:  # Made by rocksdict in another mode than ours.
        raise StateError(f"the RocksDB directory {directory} holds another program's data: take another directory")
    return True


def _remove_left() -> None:
    today = milliseconds(None)() / 1000
    for view in Path(tempfile.gettempdir()).glob(_PREFIX + "*"):
        process = view.name.removeprefix(_PREFIX).split("-")[0]
        try:
            if today - view.stat().st_mtime <= LEFT_FOR:
                continue
            if process.isdecimal():
                os.kill(int(process), 0)
                continue  # Its process lives.
        except ProcessLookupError:
            pass
        except OSError:
            continue  # Its owner has removed it first, or is a process of another user.
        leave(view)
