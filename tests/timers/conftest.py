"""Queues of all kinds for timer services, closed at the end of the test."""

from __future__ import annotations

import itertools

import pytest

from asyncio_operator.state import KeyGroupRange, RocksDBStateBackend
from asyncio_operator.timers import BackendQueues, HeapQueues, RocksDBQueues


@pytest.fixture(params=["heap", "rocksdb-4", "state-2"])
def make_queues(request, tmp_path):
    """Makes queues for timers of one kind; without arguments for all 128 key groups."""
    made: list[RocksDBQueues | RocksDBStateBackend] = []
    numbers = itertools.count()

    def make(key_groups=KeyGroupRange(0, 127), max_parallelism=128):  # noqa: B008 - frozen
        if request.param == "heap":
            return HeapQueues(key_groups, max_parallelism)
        place, cache_size = tmp_path / str(next(numbers)), int(request.param[-1])
        if request.param.startswith("state"):
            backend = RocksDBStateBackend(place, key_groups=key_groups, max_parallelism=max_parallelism)
            made.append(backend)
            return BackendQueues(backend, cache_size)
        queues = RocksDBQueues(place, key_groups, max_parallelism, cache_size)
        made.append(queues)
        return queues

    yield make
    for each in made:
        each.close()
