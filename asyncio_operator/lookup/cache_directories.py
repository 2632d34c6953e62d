"""Opens caches: in memory, or in a locked directory on disk.

The directory of a `Cache` holds numbered directories, one for each worker that used it at the same time as others. A
worker locks the first free one that holds answers of its own specification, and uses these answers. If there is none,
it takes the first free one and clears it. A lock ends with the process, even if the process crashes.

Law L7: two workers never share a directory. A directory that is damaged, or was written for another specification or
by another version, is not trusted: it is cleared, and this is logged.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from asyncio_operator.checks import check_directory
from asyncio_operator.clock import Clock
from asyncio_operator.errors import ConfigurationError, StateError, describe_error
from asyncio_operator.fingerprint import fingerprint
from asyncio_operator.lookup.cache import DAMAGED, SPECIFICATION, LookupCache
from asyncio_operator.lookup.order import OrderOnDisk
from asyncio_operator.policies.cache import Cache
from asyncio_operator.policies.rocksdb import RocksDBOptions
from asyncio_operator.state.heap_backend import HeapStateBackend

if TYPE_CHECKING:
    from asyncio_operator.state.rocksdb.backend import RocksDBStateBackend

FORMAT: Final = 2
"""Of what a cache writes to disk."""

OpenState = Callable[[Path], "RocksDBStateBackend"]

logger = logging.getLogger("asyncio_operator")

_locked: set[Path] = set()
"""Directories that this process has locked. A lock of the system does not stop the same process from locking again."""

_locking = threading.Lock()
"""Held while a directory is locked: several threads may open caches at the same time."""


def cache_owner(enricher: str, schema: Iterable[Any]) -> str:
    """The owner of answers: the fingerprint of an enricher, with the columns that it has now."""
    return fingerprint((enricher, [(field.name, str(field.type)) for field in schema]))


def cache_name(owner: str, options: Cache) -> str:
    """The name of a cache. Caches with equal names may share answers. `owner` is the result of `cache_owner`.

    The limits of RocksDB decide nothing about answers, so caches with other limits may share them.
    """
    return f"{FORMAT} {fingerprint((owner, replace(options, rocksdb=None)))}"


def open_cache(options: Cache, owner: str, clock: Clock | None = None) -> LookupCache:
    """Opens the cache of an owner (see `cache_owner`). It blocks while it uses the disk.

    Raises:
        ConfigurationError: the directory cannot be used.
    """
    if options.store == "heap":
        return LookupCache(options, HeapStateBackend(max_parallelism=1, clock=clock))
    name = cache_name(owner, options)
    open_state = partial(_open_state, options=options.rocksdb, clock=clock)
    place = _lease(check_directory(str(options.directory)), name, open_state)
    try:
        # Damage may show only when the order, or an answer, is read.
        renew = partial(place.renew, name, open_state)
        try:
            return LookupCache(options, place.backend, OrderOnDisk, place.release, renew)
        except StateError:
            return LookupCache(options, renew(), OrderOnDisk, place.release)
    except BaseException:
        place.release()
        raise


def _lease(directory: Path, specification: str, open_state: OpenState) -> Place:
    """Locks a place: a free one that holds answers of the specification, else the first free one, cleared."""
    from asyncio_operator.state.rocksdb.backend import RocksDBStateBackend

    try:
        RocksDBStateBackend.check_process()  # Otherwise no place could be opened, and each would be cleared.
        directory.mkdir(parents=True, exist_ok=True)
        for path in _existing(directory):
            # Locked before it is read: another worker may be about to clear it.
            if (place := _locked_place(path)) is not None:
                if place.holds(specification, open_state):
                    return place
                place.unlock()
        place = next(place for number in count() if (place := _locked_place(directory / str(number))) is not None)
        # Another worker may have released it meanwhile, so its answers may be the right ones after all.
        if not place.holds(specification, open_state):
            place.clear(specification, open_state)
    except (OSError, StateError) as error:
        raise ConfigurationError(
            f"the directory {str(directory)!r} of a cache cannot be used: {describe_error(error)}; give a directory on "
            "a local disk that the workers may write to"
        ) from error
    return place


class Place:
    """A locked directory and, once open, the state in it. `lock` is the open file that holds the lock.

    Attributes:
        problem: why its answers cannot be used, if they cannot.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.backend: RocksDBStateBackend
        self.problem = ""
        self._lock = lock
        _locked.add(path)

    def holds(self, specification: str, open_state: OpenState) -> bool:
        """Whether the directory holds answers of the specification. If so, opens them."""
        if not self.path.exists():
            return False
        try:
            backend = open_state(self.path)
        except StateError as error:
            self.problem = _problem_of(error)
            return False
        try:
            # The specification is kept as state, which needs a key: any one does.
            backend.set_current_key("")
            stored = backend.value_state(SPECIFICATION).value()
            if stored == specification:
                self.backend = backend
                return True
            same_format = str(stored).partition(" ")[0] == str(FORMAT)
            self.problem = "it was written " + ("for another specification" if same_format else "by another version")
        except StateError as error:
            self.problem = _problem_of(error)
        backend.close()
        return False

    def clear(self, specification: str, open_state: OpenState) -> None:
        """Remove all files, and open an empty state for answers of the specification."""
        try:
            if self.path.exists():
                logger.warning("the cache directory %s is cleared: %s", self.path, self.problem)
                shutil.rmtree(self.path)
            self.backend = open_state(self.path)
            self.backend.set_current_key("")
            self.backend.value_state(SPECIFICATION).update(specification)
        except BaseException:
            self.unlock()
            raise

    def renew(self, specification: str, open_state: OpenState) -> RocksDBStateBackend:
        """Close a damaged state, `clear` the directory, and return the empty state."""
        with suppress(StateError):
            self.backend.close()
        self.problem = "it is damaged"
        self.clear(specification, open_state)
        return self.backend

    def release(self) -> None:
        """Close the state and unlock the directory. The files stay. Errors, as on a full disk, are logged."""
        try:
            self.backend.close()
        except StateError as error:
            logger.warning("closing the cache in %s failed: %s", self.path, describe_error(error))
        finally:
            self.unlock()

    def unlock(self) -> None:
        with _locking:
            if self.path in _locked:
                os.close(self._lock)
                _locked.discard(self.path)


def _problem_of(error: StateError) -> str:
    return "it is damaged" if DAMAGED in str(error) else f"it cannot be read: {describe_error(error)}"


def _open_state(path: Path, options: RocksDBOptions | None, clock: Clock | None) -> RocksDBStateBackend:
    from asyncio_operator.state.rocksdb.backend import RocksDBStateBackend

    return RocksDBStateBackend(path, max_parallelism=1, clock=clock, options=options)


def _existing(directory: Path) -> Iterator[Path]:
    names = sorted(int(path.name) for path in directory.iterdir() if path.is_dir() and path.name.isdecimal())
    return (directory / str(number) for number in names)


def _locked_place(path: Path) -> Place | None:
    """Locks the place; None if another worker holds it. The lock is on a file beside it and ends with the process."""
    with _locking:
        return None if path in _locked else _lock(path)


def _lock(path: Path) -> Place | None:
    import fcntl

    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    # A lock on a file beside the directory, which stays when the directory is removed and made again.
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(lock)
        return None
    except BaseException:
        os.close(lock)
        raise
    return Place(path, lock)


def _after_fork() -> None:
    """The parent keeps the locks of the system. A thread that held `_locking` does not exist in the child."""
    global _locking
    _locking = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
