"""Queues of both kinds for timer services, closed at the end of the test."""

from __future__ import annotations

import itertools

import pytest

from asyncio_operator.state import KeyGroupRange
from asyncio_operator.timers import HeapQueues, RocksDBQueues


@pytest.fixture(params=["heap", "rocksdb-1", "rocksdb-128"])
def make_queues(request, tmp_path):
    """Makes queues for timers of one kind; without arguments for all 128 key groups."""
    made, numbers = [], itertools.count()

    def make(key_groups=KeyGroupRange(0, 127), max_parallelism=128):  # noqa: B008 - frozen
        if request.param == "heap":
            return HeapQueues(key_groups, max_parallelism)
        cache_size = int(request.param.removeprefix("rocksdb-"))
        queues = RocksDBQueues(tmp_path / str(next(numbers)), key_groups, max_parallelism, cache_size)
        made.append(queues)
        return queues

    yield make
    for queues in made:
        queues.close()
