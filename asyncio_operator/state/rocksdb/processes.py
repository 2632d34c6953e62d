"""An open directory belongs to the process that locked and opened it, and to no forked child of that process.

RocksDB takes its own lock late, after it has read files. So two backends that open one directory at the same time could
read what the other is about to write. `DirectoryLock` is taken before any file is read. It is a lock on the directory
itself, and makes no file. On a file system without such locks only RocksDB's own lock remains.

A forked child has a copy of RocksDB's memory without its threads: a write in the child would overwrite writes of the
parent, and closing would wait for threads that do not exist. So in a child every open object is marked
(`leave_to_parent`), and its native objects are kept for ever (`keep`), because freeing them would close them. A
database that is opened in the child would wait for the same threads when it is closed, and a read-only one would crash
the end of the child. So a child of a process that has used RocksDB opens none.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakSet

from asyncio_operator.errors import StateError
from asyncio_operator.loop.forks import forget_in_child

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

FOREIGN_PROCESS = (
    "belongs to the process that opened it, and this process is a forked child of that one: "
    "open it after the fork, in one process alone, or start the child with "
    'multiprocessing.get_context("spawn"), and give it a snapshot or a directory of its own'
)


NO_THREADS = (
    "cannot be opened in a forked child of a process that has used RocksDB, because RocksDB's threads are not in the "
    'child: start the child with multiprocessing.get_context("spawn"), or open nothing on RocksDB before the fork'
)


_open: WeakSet[Any] = WeakSet()
"""Open objects that a forked child must not use. It calls `leave_to_parent` of each: from then on every use is a
StateError, and no native object is touched."""
_used = False
_without_threads = False


def belongs_here(thing: Any) -> None:
    """Registers an object whose `leave_to_parent` a forked child of this process calls, if the object still exists."""
    global _used
    _used = True
    _open.add(thing)


def check_process(what: str) -> None:
    """Raises StateError in a forked child of a process that has used RocksDB; `what` names the directory to open."""
    if _without_threads:
        raise StateError(f"{what} {NO_THREADS}")


def keep(thing: object) -> None:
    """Keeps an object, and all that it refers to, until the process ends. It is never finalised."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _after_fork() -> None:
    global _without_threads
    _without_threads = _used
    if _used:
        # The child ends with what Python does at its end, and without what C++ does after that: RocksDB waits there
        # for its threads, and reads the memory of threads that are not in a child: with many it crashes. Only glibc
        # has `on_exit`, which gives the status of the process.
        library = ctypes.CDLL(None)
        if hasattr(library, "on_exit"):
            library.on_exit(library._exit, None)
    for thing in list(_open):
        thing.leave_to_parent()


forget_in_child(_after_fork)


class DirectoryLock:
    """A lock on a directory, which is made if it is missing. It is held until `release`, or until this object or the
    process ends. BlockingIOError if it is locked, here or in another process; OSError if it cannot be made or read."""

    def __init__(self, directory: Path) -> None:
        self._file: int | None = None
        while self._file is None:
            if not directory.exists():
                directory.mkdir(parents=True, exist_ok=True)
            if fcntl is None:
                break
            with suppress(FileNotFoundError):  # It was removed meanwhile.
                file = os.open(directory, os.O_RDONLY)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # Otherwise it was removed and made again before it was locked: this is a lock on the old one.
                    if os.path.samestat(os.fstat(file), os.stat(directory)):
                        self._file = file
                except (BlockingIOError, FileNotFoundError):
                    raise
                except OSError:
                    break
                finally:
                    if self._file is None:
                        os.close(file)
        # Before RocksDB opens the directory, which takes time, and another thread may fork.
        belongs_here(self)

    def release(self) -> None:
        """Unlocks the directory; called again it does nothing."""
        if self._file is not None and fcntl is not None:
            # Closing alone would leave the lock to a child that has a copy of the file.
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self.leave_to_parent()

    def leave_to_parent(self) -> None:
        """Closes the file without unlocking, as a forked child has to."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self.leave_to_parent()
