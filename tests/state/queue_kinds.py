"""Every kind of priority queue, made alike: with pairs (priority, key) of 32 bits each as elements."""

from __future__ import annotations

from asyncio_operator.state import (
    BatchPriorityQueueSet,
    HeapPriorityQueue,
    HeapPriorityQueueSet,
    KeyGroupPartitionedPriorityQueue,
    KeyGroupRange,
    KeySerializer,
    RocksDBCachingPriorityQueueSet,
    RocksDBStateBackend,
)

ALL_GROUPS = KeyGroupRange(0, 127)
HEAP_SETS = (HeapPriorityQueueSet, KeyGroupPartitionedPriorityQueue)
CACHE_SIZES = (1, 2, 3, 128)
IN_STATE = ("state-1", "state-3")
"""Queues of a RocksDB backend: the cache size for each key group."""
ON_DISK = (int, str)
"""The types of kinds on disk, which are closed."""
SETS = (*HEAP_SETS, *CACHE_SIZES, *IN_STATE)
KINDS = (HeapPriorityQueue, *SETS, BatchPriorityQueueSet)


def name_of(kind):
    return kind if isinstance(kind, str) else f"rocksdb-{kind}" if isinstance(kind, int) else kind.__name__


class PairSerializer:
    """A pair (priority, key) of 32 bits each; its bytes sort as the pairs do."""

    name = "pair"

    def serialize(self, element):
        return (element[0] + 2**31).to_bytes(4, "big") + (element[1] + 2**31).to_bytes(4, "big")

    def deserialize(self, data):
        return int.from_bytes(data[:4], "big") - 2**31, int.from_bytes(data[4:], "big") - 2**31


def priority(element):
    return element[0]


def key_of(element):
    return element[1]


def make_queue(kind, directory, key_groups=ALL_GROUPS, max_parallelism=128):
    if isinstance(kind, int):
        return RocksDBCachingPriorityQueueSet(
            directory,
            key_of=key_of,
            key_groups=key_groups,
            max_parallelism=max_parallelism,
            serializer=PairSerializer(),
            cache_size=kind,
        )
    if isinstance(kind, str):
        backend = RocksDBStateBackend(directory, key_groups=key_groups, max_parallelism=max_parallelism)
        size = int(kind.removeprefix("state-"))
        queue = backend.queue("q", key=priority, key_of=key_of, serializer=PairSerializer(), cache_size=size)
        queue.close = backend.close  # type: ignore[attr-defined]
        return queue
    if kind in HEAP_SETS:
        return kind(priority, key_of, key_groups, max_parallelism)
    return kind(priority)


def number_queue(directory, cache_size=128):
    """A queue on disk of numbers, each of which is its own key."""
    return RocksDBCachingPriorityQueueSet(
        directory,
        key_of=lambda element: element,
        key_groups=ALL_GROUPS,
        max_parallelism=128,
        serializer=KeySerializer(),
        cache_size=cache_size,
    )


def drain(queue):
    found = []
    while (element := queue.poll()) is not None:
        found.append(element)
    return found
