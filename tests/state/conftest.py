"""Both backends, each new one in a directory of its own, closed at the end of the test."""

from __future__ import annotations

import itertools

import pytest

from asyncio_operator.state import HeapStateBackend, RocksDBStateBackend, StateBackend


@pytest.fixture(params=["heap", "rocksdb"])
def make(request, tmp_path):
    """Makes new, empty backends of one kind."""
    made, numbers = [], itertools.count()

    def make_backend(**options):
        backend: StateBackend
        if request.param == "heap":
            backend = HeapStateBackend(**options)
        else:
            backend = RocksDBStateBackend(tmp_path / f"backend-{next(numbers)}", **options)
        made.append(backend)
        return backend

    yield make_backend
    for backend in made:
        backend.close()
