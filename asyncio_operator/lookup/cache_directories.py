"""Opens caches: in memory, or in a locked directory on disk.

The directory of a `Cache` holds numbered directories, one for each worker that used it at the same time as others. A
worker locks the first free one that holds answers of its own specification, and uses these answers. If there is none,
it takes the first free one and clears it. A lock ends with the process, even if the process crashes.

A task gives its cache back with its answers, for the next task of the process (`engine.lent`).

Law L7: two workers never share a directory. A directory that is damaged, or was written for another specification or
by another version, is not trusted: it is cleared, and this is logged.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from asyncio_operator import state
from asyncio_operator.checks import check_directory
from asyncio_operator.clock import Clock, wall
from asyncio_operator.engine.lent import Lent
from asyncio_operator.engine.timing import clock_of, start_task
from asyncio_operator.errors import ConfigurationError, StateError, describe_error, shown_address
from asyncio_operator.fingerprint import fingerprint
from asyncio_operator.lazy import member
from asyncio_operator.lookup.cache import AnyCache, LookupCache
from asyncio_operator.loop.forks import forget_in_child
from asyncio_operator.policies.cache import Cache
from asyncio_operator.state.descriptors import ValueStateDescriptor
from asyncio_operator.state.entries import Batch
from asyncio_operator.state.layout import Stored

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncio_operator.state.rocksdb.rocksdb_backend import RocksDBStateBackend

REDIS = "asyncio_operator.services.redis_values"

FORMAT: Final = 3  # Of what a cache writes to disk.
DAMAGED: Final = " is damaged: "  # In the message of an error about a damaged directory.

SPECIFICATION = ValueStateDescriptor("specification")
"""The state of a cache on disk that names the specification of its answers."""

UNUSED = 16  # Unused caches that a process keeps: more than one query has, and a limit for a notebook with hundreds.

OpenState = Callable[[Path], "RocksDBStateBackend"]

logger = logging.getLogger("asyncio_operator.cache")

_locked: set[Path] = set()
"""Directories that this process has locked. A lock of the system does not stop the same process from locking again."""

_locking = threading.Lock()  # Held while a directory is locked: several threads may open caches at the same time.


def cache_owner(enricher: str, schema: Iterable[Any]) -> str:
    """The owner of answers: the fingerprint of an enricher, with the columns that it has now."""
    return fingerprint((enricher, [(field.name, str(field.type)) for field in schema]))


def cache_name(owner: str, options: Cache) -> str:
    """The name of a cache. Caches with equal names may share answers. `owner` is the result of `cache_owner`.

    The limits of RocksDB decide nothing about answers, so caches with other limits may share them.
    """
    return f"{FORMAT} {fingerprint((owner, replace(options, rocksdb=None)))}"


def open_cache(
    options: Cache, owner: str, clock: Clock | None = None, schema: pa.Schema | None = None, in_columns: bool = False
) -> LookupCache:
    """Opens the cache of an owner (see `cache_owner`). It blocks while it uses the disk.

    Args:
        schema: the columns of the answers. A store that workers share needs it.
        in_columns: one in memory keeps answers in columns (`lookup.column_places`).

    Raises:
        ConfigurationError: the directory cannot be used, or a library is not installed.
    """
    if options.is_shared:
        assert schema is not None
        # Loaded here: few processes need it.
        from asyncio_operator.lookup.shared_cache import Format, SharedCache
        from asyncio_operator.lookup.shared_store import ADDRESS, SharedStore

        memory = open_cache(replace(options, store="heap"), owner, clock, schema, in_columns)
        # It connects when it is asked.
        client = partial(member(REDIS, "RedisValues"), options.store, connect_timeout=ADDRESS)
        store = SharedStore(shown_address(options.store), client)
        memory.known = (SharedCache(options, memory, store, Format(owner, schema)),)
        return memory
    if options.store == "heap" and in_columns:
        return member("asyncio_operator.lookup.column_places", "ColumnCache")(options, clock, schema)  # type: ignore[no-any-return]
    if options.store == "heap":
        return LookupCache(options, state.HeapStateBackend(max_parallelism=1, clock=clock))
    name = cache_name(owner, options)
    open_state = partial(state.RocksDBStateBackend, max_parallelism=1, clock=clock, options=options.rocksdb)
    place = _lease(check_directory(str(options.directory)), name, open_state)
    try:
        return CacheOnDisk(options, place)
    except BaseException:
        place.release()
        raise


Caches = Lent[str, asyncio.Task[AnyCache]]  # By their names.


def new_caches() -> Caches:
    """The caches of a process, whose answers the next task finds."""
    return Lent(most=UNUSED, seconds=inf, end=_close_opened)


@asynccontextmanager
async def lent_cache(
    caches: Caches, owner: str, options: Cache, schema: pa.Schema | None = None, clock: Clock | None = None
) -> AsyncIterator[AnyCache]:
    """The cache of an owner, while it is entered. The arguments are those of `open_cache`, for answers in columns.

    Raises:
        ConfigurationError: the cache cannot be opened.
    """
    name = cache_name(owner, options)
    make: Callable[[], AnyCache] = partial(open_cache, options, owner, clock, schema, in_columns=True)
    # In a thread: a disk may be slow, and all tasks of this process share this loop.
    opening = caches.borrow(name, lambda: start_task(asyncio.to_thread(make)))
    is_open = False
    try:
        # Shielded: other tasks may wait for the same opening when this one is cancelled.
        cache = await asyncio.shield(opening)
        is_open = True
        yield cache
    finally:
        caches.give_back(name, opening, keep=is_open)


def _is_open(opening: asyncio.Task[AnyCache]) -> bool:
    return opening.done() and not opening.cancelled() and opening.exception() is None


async def _close_opened(opening: asyncio.Task[AnyCache]) -> None:
    """Close a cache, in a thread because it writes to the disk."""
    await asyncio.wait([opening])
    if _is_open(opening):
        await asyncio.to_thread(opening.result().close)


caches = new_caches()  # Of this process.


def _lease(directory: Path, specification: str, open_state: OpenState) -> Place:
    """Locks a place: a free one that holds answers of the specification, else the first free one, cleared."""
    try:
        # Otherwise no place could be opened, and each would be cleared.
        state.RocksDBStateBackend.check_process()
        directory.mkdir(parents=True, exist_ok=True)
        names = [int(path.name) for path in directory.iterdir() if path.is_dir() and path.name.isdecimal()]
        for path in [directory / str(name) for name in sorted(names)]:
            # Locked before it is read: another worker may be about to clear it.
            if (lock := _lock(path)) is not None:
                place = Place(path, lock, specification, open_state)
                if place.holds():
                    return place
                place.unlock()
        paths = (directory / str(number) for number in count())
        path, lock = next((path, lock) for path in paths if (lock := _lock(path)) is not None)
        place = Place(path, lock, specification, open_state)
        # Another worker may have released it meanwhile, so its answers may be the right ones after all.
        if not place.holds():
            place.clear()
    except (OSError, StateError) as error:
        raise ConfigurationError(
            f"the directory {str(directory)!r} of a cache cannot be used: {describe_error(error)}; give a directory on "
            "a local disk that the workers may write to"
        ) from error
    return place


class Place:
    """A locked directory for answers of a specification and, once open, the state in it.

    Args:
        lock: the open file that holds the lock.
    """

    def __init__(self, path: Path, lock: int, specification: str, open_state: OpenState) -> None:
        self.path = path
        self.backend: RocksDBStateBackend
        self._lock = lock
        self._specification = specification
        self._open_state = open_state
        # Why its answers cannot be used, if they cannot.
        self._problem = ""

    def holds(self) -> bool:
        """Whether the directory holds answers of the specification. If so, opens them."""
        if not self.path.exists():
            return False
        backend = None
        try:
            self.backend = backend = self._open_state(self.path)
            # The specification is kept as state, which needs a key: any one does.
            self.backend.set_current_key("")
            stored = self.backend.value_state(SPECIFICATION).value()
            if stored == self._specification:
                logger.info("the answers in the cache directory %s are used again", self.path)
                return True
            same_format = str(stored).partition(" ")[0] == str(FORMAT)
            self._problem = "it was written " + ("for another specification" if same_format else "by another version")
        except StateError as error:
            self._problem = _problem_of(error)
        if backend is not None:
            backend.close()
        return False

    def clear(self) -> None:
        """Remove all files, and open an empty state for answers of the specification."""
        try:
            if self.path.exists():
                logger.warning("the cache directory %s is cleared: %s", self.path, self._problem)
                shutil.rmtree(self.path)
            self.backend = self._open_state(self.path)
            self.backend.set_current_key("")
            self.backend.value_state(SPECIFICATION).update(self._specification)
        except BaseException:
            self.unlock()
            raise

    def renew(self) -> RocksDBStateBackend:
        """Close a damaged state, `clear` the directory, and return the empty state."""
        with suppress(StateError):
            self.backend.close()
        self._problem = "it is damaged"
        self.clear()
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


class CacheOnDisk(LookupCache):
    """The answers of one specification, in a place. Each change is one batch. If they turn out to be damaged, which may
    show only when the order, or an answer, is read, the place is cleared."""

    def __init__(self, options: Cache, place: Place) -> None:
        self._place = place
        self._renewed = False
        try:
            super().__init__(options, place.backend)
        except StateError:
            self._renewed = True
            super().__init__(options, place.renew())

    def _take_order(self) -> None:
        self._order = self._place.backend.order_of_use()
        self._slot = self._backend.slot_of
        self._count_use = self._order.use

    def __len__(self) -> int:
        return len(self._order)

    def _put(self, slot: bytes, stored: Stored | None, used: Stored | None) -> None:
        self._order.put(slot, self._staged(slot, stored, used))

    def _remove(self, slot: bytes) -> None:
        self._order.remove(slot, self._staged(slot, None, None))

    def _staged(self, slot: bytes, stored: Stored | None, used: Stored | None) -> Batch:
        batch = self._backend.new_batch()
        self._written.table.stage(batch, slot, [(b"", stored)], clear=False)
        if self._used is not None:
            self._used.table.stage(batch, slot, [(b"", used)], clear=False)
        return batch

    def _oldest(self) -> bytes | None:
        return self._order.oldest()

    def _shrink(self, most: int) -> None:
        while len(self) > most and (slot := self._oldest()) is not None:
            self._remove(slot)

    def close(self) -> None:
        if self._backend.closed:
            return
        try:
            self._order.flush()
        except StateError as error:
            logger.warning(
                "the cache could not write which answers were used last, so it may drop others first: %s",
                describe_error(error),
            )
        self._place.release()

    def _fail(self, what: str, key: Any, error: Exception) -> None:
        # Once: a disk that damages it again is not worth another attempt.
        if not self._renewed and DAMAGED in str(self._written.table.error(error)):
            self._renewed = True
            try:
                self._attach(self._place.renew())
                return
            except Exception as failure:
                error = failure
        super()._fail(what, key, error)


def _problem_of(error: StateError) -> str:
    return "it is damaged" if DAMAGED in str(error) else f"it cannot be read: {describe_error(error)}"


def _lock(path: Path) -> int | None:
    """Locks a directory; None if another worker holds it. The lock ends with the process. It is on a file beside the
    directory, which stays when the directory is removed and made again."""
    import fcntl

    with _locking:
        if path in _locked:
            return None
        lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if isinstance(error, BlockingIOError | PermissionError):
                return None
            raise
        _locked.add(path)
        return lock


def _after_fork() -> None:
    """The parent keeps the locks of the system. A thread that held `_locking` does not exist in the child."""
    global _locking
    _locking = threading.Lock()


forget_in_child(_after_fork)


# -- the cache of a `Lookup`, which no other shares


async def open_own_cache(
    options: Cache, owner: str, clock: Callable[[], float] | None, schema: pa.Schema | None
) -> LookupCache:
    """Opens the cache of a `Lookup`, in a thread. The arguments are those of `open_cache`."""
    # A cache on disk needs the time of day. Start from it and add the loop's time, which tests can set.
    now = clock_of(asyncio.get_running_loop())
    offset = round(wall() - now(), 3)  # Whole milliseconds: ages are those of the loop's time.
    stamps = clock or (lambda: now() + offset)
    opening = asyncio.ensure_future(asyncio.to_thread(open_cache, options, owner, stamps, schema))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(lambda opening: opening.result().close() if _is_open(opening) else None)
        raise
