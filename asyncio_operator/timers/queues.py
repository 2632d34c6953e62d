"""Timers, their bytes, and the sets that hold them: a factory makes one priority-queue set for each kind of timer.

A factory is any object with `key_groups` and `max_parallelism` that can be called with a name.

The bytes of a timer are its timestamp + 2**63, 8 bytes big-endian, then its key and its namespace as `state.keys`
writes them. They sort by timestamp, also if it is negative, and two timers have the same bytes only if they are equal.
"""

from __future__ import annotations

import struct
from contextlib import ExitStack
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from asyncio_operator import state
from asyncio_operator.checks import check_directory, must_be, of_kind, positive_int
from asyncio_operator.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncio_operator.errors import StateError, describe
from asyncio_operator.state.backend import StateBackend
from asyncio_operator.state.heap_set import HeapPriorityQueueSet
from asyncio_operator.state.key_groups import KeyGroupRange, resolve_key_groups
from asyncio_operator.state.keys import Key, deserialize_key, serialize_key
from asyncio_operator.state.layout import serialize_namespace
from asyncio_operator.state.priority_queue import PriorityQueueSet
from asyncio_operator.state.rocksdb_options import RocksDBOptions

if TYPE_CHECKING:
    from asyncio_operator.state.rocksdb import RocksDBCachingPriorityQueueSet

_pack = struct.Struct(">Q").pack
_unpack = struct.Struct(">Q").unpack_from


class Timer(NamedTuple):
    """When (milliseconds since the epoch), for which key, in which namespace; None is the default namespace.

    Two timers are equal if their timestamps are and their keys and namespaces are the same key: 1, True and 1.0 are
    three.
    """

    timestamp: int
    key: Key
    namespace: Key | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Timer):
            return NotImplemented
        # As tuples (1, 1), (1, True) and (1, 1.0) are equal, and as timers they are three.
        if _PLAIN.issuperset((type(self[1]), type(self[2]), type(other[1]), type(other[2]))):
            return tuple.__eq__(self, other)
        return serialize_timer(self) == serialize_timer(other)

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __hash__(self) -> int:
        if type(self[1]) in _PLAIN and type(self[2]) in _PLAIN:
            return _tuple_hash(self)
        return hash(serialize_timer(self))


_tuple_hash = tuple.__hash__
_PLAIN = frozenset({int, str, bytes, type(None)})  # Types whose equality in Python is the equality of keys.


def serialize_timer(timer: Timer) -> bytes:
    """The bytes of a timer; StateError if its timestamp is not an int of 64 bits, or its key or namespace no key."""
    timestamp, key, namespace = timer
    check_timestamp(timestamp)
    return _pack(timestamp - MIN_TIMESTAMP) + serialize_key(key) + serialize_namespace(namespace)


def deserialize_timer(data: bytes) -> Timer:
    """The inverse of `serialize_timer`; StateError for other bytes."""
    key, position = deserialize_key(data, 8)
    namespace, end = deserialize_key(data, position)
    if end != len(data):
        raise StateError(f"damaged timer {describe(data)}: restore a snapshot")
    return Timer(_unpack(data)[0] + MIN_TIMESTAMP, key, namespace)


class All:
    """The type of `ALL`."""

    def __repr__(self) -> str:
        return "ALL"


ALL: Final = All()
"""All namespaces. (None is the default namespace.)"""


def check_timestamp(timestamp: int) -> None:
    """Raises StateError unless the timestamp is an int of 64 bits."""
    if type(timestamp) is not int or not MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP:
        raise StateError(
            f"timestamp {describe(timestamp)}: an int, milliseconds since the epoch, from -2**63 to 2**63 - 1 is needed"
        )


class TimerSerializer:
    """The serialiser of timers, for queues on disk."""

    name = "timer-1"
    serialize = staticmethod(serialize_timer)
    deserialize = staticmethod(deserialize_timer)


class TimerQueues(Protocol):
    """A factory of priority-queue sets for timers."""

    @property
    def key_groups(self) -> KeyGroupRange: ...

    @property
    def max_parallelism(self) -> int: ...

    def __call__(self, name: str, /) -> PriorityQueueSet[Timer]: ...


class HeapQueues:
    """Sets in memory. Every call gives a new one. Without `key_groups` they take all of them.

    Raises:
        ConfigurationError: the range and the maximum parallelism do not fit.
    """

    def __init__(self, key_groups: KeyGroupRange | None = None, max_parallelism: int = 128) -> None:
        self.key_groups = resolve_key_groups(key_groups, max_parallelism)
        self.max_parallelism = max_parallelism

    def __call__(self, name: str) -> PriorityQueueSet[Timer]:
        """A new set."""
        return HeapPriorityQueueSet(timestamp_of, key_of, self.key_groups, self.max_parallelism)


class RocksDBQueues:
    """Sets on disk, each in a directory below `directory` with the name of the set. They keep their timers when closed.

    Args:
        directory: created if it is missing.
        key_groups: the range; None is all of them.
        max_parallelism: the number of key groups there are.
        cache_size: timers of each set in memory at most.
        options: limits of memory, log and threads; None is the defaults.

    Raises:
        ConfigurationError: the directory, the cache size or the options are wrong, range and maximum parallelism
            do not fit, or the package rocksdict is missing.
    """

    def __init__(
        self,
        directory: str | Path,
        key_groups: KeyGroupRange | None = None,
        max_parallelism: int = 128,
        cache_size: int = 128,
        options: RocksDBOptions | None = None,
    ) -> None:
        self.directory = check_directory(directory)
        self.key_groups = resolve_key_groups(key_groups, max_parallelism)
        self.max_parallelism = max_parallelism
        self.cache_size = positive_int("cache_size", cache_size)
        of_kind("options", options, RocksDBOptions)
        self.options = options or RocksDBOptions()
        self._sets: dict[str, RocksDBCachingPriorityQueueSet[Timer]] = {}

    def __call__(self, name: str) -> PriorityQueueSet[Timer]:
        """The set of that name. StateError if it is in use; other errors as of `RocksDBCachingPriorityQueueSet`."""
        if name in self._sets:
            raise StateError(
                f"the timers {name!r} in {self.directory} are in use by another service: "
                "close() these queues first, or give each service a directory of its own"
            )
        self._sets[name] = state.RocksDBCachingPriorityQueueSet(
            self.directory / name,
            key_of=key_of,
            key_groups=self.key_groups,
            max_parallelism=self.max_parallelism,
            serializer=TimerSerializer(),
            cache_size=self.cache_size,
            options=self.options,
        )
        return self._sets[name]

    def close(self) -> None:
        """Closes every set that it made; then another service may use these queues.

        Raises:
            StateError: a set could not write its last changes; all sets are closed.
        """
        queues = list(self._sets.values())
        self._sets.clear()
        # An ExitStack goes on after an error: all sets are closed, and the last error is raised.
        with ExitStack() as closing:
            for queue in queues:
                closing.callback(queue.close)


class BackendQueues:
    """Queues that a state backend keeps, of either kind: one snapshot or checkpoint of it holds states and timers.

    On RocksDB they are column families of the backend's database, where a change is written at once, so states and
    timers are of one moment after a crash too; the same name finds its timers again when the directory is opened.

    Args:
        backend: its key groups are those of the timers.
        cache_size: on RocksDB, timers of each queue and key group in memory at most.

    Raises:
        ConfigurationError: `backend` is none, or the cache size is wrong.
    """

    def __init__(self, backend: StateBackend, cache_size: int = 128) -> None:
        if not isinstance(backend, StateBackend):
            raise must_be("backend", backend, "a StateBackend, no class")
        self.backend = backend
        self.key_groups = backend.key_groups
        self.max_parallelism = backend.max_parallelism
        self.cache_size = positive_int("cache_size", cache_size)

    def __call__(self, name: str) -> PriorityQueueSet[Timer]:
        """The queue of that name. StateError if it is in use, or the backend is closed."""
        return self.backend.queue(
            f"timers/{name}",
            key=timestamp_of,
            key_of=key_of,
            serializer=TimerSerializer(),
            cache_size=self.cache_size,
        )


def check_queues(queues: TimerQueues) -> TimerQueues:
    """The given queues; ConfigurationError unless they can make sets for a range of key groups."""
    known = isinstance(getattr(queues, "key_groups", None), KeyGroupRange) and hasattr(queues, "max_parallelism")
    if isinstance(queues, type) or not known or not callable(queues):
        raise must_be("queues", queues, "HeapQueues(...), RocksDBQueues(...) or BackendQueues(...), not a class")
    return queues


timestamp_of, key_of = itemgetter(0), itemgetter(1)
"""The priority of a timer, and its key."""
