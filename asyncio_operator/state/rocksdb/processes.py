"""To which process an open directory belongs: the one that locked and opened it, and no forked child of it.

RocksDB's own lock comes late, after its files were read, so two that open one directory at once could read what the
other is about to write. `DirectoryLock` is taken before anything is read. It is a lock on the directory itself, which
makes no file; where the file system has none, RocksDB's lock alone remains.

A forked child has a copy of RocksDB's memory without its threads: a write there overwrites what the parent writes, and
closing waits for threads that do not exist. So in a child every open object is marked (`leave_to_parent`), and what is
native in it is kept for ever (`keep`), because freeing it would be closing it. A database that is opened in the child
waits for the same threads when it is closed, and one that is only read breaks the end of the child. So a child of a
process that has used RocksDB opens none.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import ModuleType
from typing import Protocol
from weakref import WeakSet

from asyncio_operator.errors import StateError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

FOREIGN_PROCESS = (
    "belongs to the process that opened it, and this process is a forked child of that one: "
    'use it in that process alone, or start the child with multiprocessing.get_context("spawn") and its own directory'
)


NO_THREADS = (
    "cannot be opened in a forked child of a process that has used RocksDB, because RocksDB's threads are not in the "
    'child: start the child with multiprocessing.get_context("spawn"), or open nothing on RocksDB before the fork'
)


class OfProcess(Protocol):
    """Something open that a forked child must not use."""

    def leave_to_parent(self) -> None:
        """Called in a forked child: from here on every use is a StateError, and nothing native is touched."""


_open: WeakSet[OfProcess] = WeakSet()
_used = False
_without_threads = False


def belongs_here(thing: OfProcess) -> None:
    """Has a forked child of this process call ``thing.leave_to_parent()``, unless it is gone by then."""
    global _used
    _used = True
    _open.add(thing)


def check_process(what: str) -> None:
    """Raises StateError in a forked child of a process that has used RocksDB; `what` is what was to be opened."""
    if _without_threads:
        raise StateError(f"{what} {NO_THREADS}")


def keep(thing: object) -> None:
    """Keeps an object, and all that it refers to, until the process ends without being finalised."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _after_fork() -> None:
    global _without_threads
    _without_threads = _used
    for thing in list(_open):
        thing.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)


class DirectoryLock:
    """A lock on an existing directory, until `release`, or until this object or the process is gone.

    Raises:
        BlockingIOError: it is locked, here or in another process.
        OSError: the directory cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        self._file = _locked(directory)

    def release(self) -> None:
        """Unlocks the directory; called again it does nothing."""
        if self._file is not None and fcntl is not None:
            # Closing alone would leave the lock to a child that has a copy of the file.
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self.leave()

    def leave(self) -> None:
        """Lets go of the lock without unlocking, as a forked child has to."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self.leave()


def _locked(directory: Path) -> int | None:
    if fcntl is None:
        return None
    while True:
        file = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.stat(directory)):
                return file
            # It was removed and made again before it was locked.
        except (BlockingIOError, FileNotFoundError):
            os.close(file)
            raise
        except OSError:
            os.close(file)
            return None
        os.close(file)
