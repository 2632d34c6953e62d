"""Where timers wait: a factory gives a timer service one priority-queue set per kind of timer.

A factory is called with a name and knows the range of key groups. Whatever has `key_groups`, `max_parallelism` and
such a call is one.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from asyncio_operator.errors import ConfigurationError, StateError, describe
from asyncio_operator.policies.rocksdb import RocksDBOptions, check_rocksdb
from asyncio_operator.state.directories import check_directory
from asyncio_operator.state.heap_set import HeapPriorityQueueSet
from asyncio_operator.state.key_groups import KeyGroupRange, resolve_key_groups
from asyncio_operator.state.keys import Key
from asyncio_operator.state.priority_queue import PriorityQueueSet
from asyncio_operator.timers.timer import Timer, TimerSerializer

if TYPE_CHECKING:
    from asyncio_operator.state.rocksdb import RocksDBCachingPriorityQueueSet


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
    """Sets on disk, each in a directory named after it below `directory`. They keep what they held when closed.

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
        if type(cache_size) is not int or cache_size < 1:
            raise ConfigurationError(f"cache_size={describe(cache_size)}: an int from 1 is needed")
        self.directory = check_directory(directory)
        self.key_groups = resolve_key_groups(key_groups, max_parallelism)
        self.max_parallelism = max_parallelism
        self.cache_size = cache_size
        self.options = check_rocksdb("options", options)
        self._sets: dict[str, RocksDBCachingPriorityQueueSet[Timer]] = {}

    def __call__(self, name: str) -> PriorityQueueSet[Timer]:
        """The set of that name; StateError if it was given and not closed, else as `RocksDBCachingPriorityQueueSet`."""
        from asyncio_operator import state

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
        """Closes every set that was given; another service may then use these queues.

        Raises:
            StateError: one of them could not write what was left; all are closed.
        """
        queues = list(self._sets.values())
        self._sets.clear()
        with ExitStack() as closing:
            for queue in queues:
                closing.callback(queue.close)


def check_queues(queues: TimerQueues) -> TimerQueues:
    """The queues given; ConfigurationError unless they can make sets for a range of key groups."""
    known = isinstance(getattr(queues, "key_groups", None), KeyGroupRange) and hasattr(queues, "max_parallelism")
    if isinstance(queues, type) or not known or not callable(queues):
        raise ConfigurationError(
            f"queues={describe(queues)}: HeapQueues(...) or RocksDBQueues(directory, ...) is needed (no class)"
        )
    return queues


def timestamp_of(timer: Timer) -> int:
    """The priority of a timer."""
    return timer[0]


def key_of(timer: Timer) -> Key:
    """The key of a timer."""
    return timer[1]
