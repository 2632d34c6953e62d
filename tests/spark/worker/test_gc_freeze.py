"""What a worker keeps, such as the keys of caches on the heap, costs later collections of garbage nothing.

Each test runs in a process without pytest: here every collection would look at all modules of tests, for a second.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pytest

from asyncio_operator import Cache
from asyncio_operator.arrow.column_answers import ColumnAnswers
from asyncio_operator.lookup.cache import LookupCache
from asyncio_operator.lookup.cache_directories import UNUSED, lent_cache, new_caches, open_caches
from asyncio_operator.spark.worker.task_frame import LEAST, Frozen

KEYS = 2 * LEAST


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as made:
        yield made


def alone(test: Callable[[], Awaitable[None]]) -> Callable[[ProcessPoolExecutor], None]:
    """Runs a test in that process, with nothing put aside."""

    def run(pool: ProcessPoolExecutor) -> None:
        pool.submit(_run, test.__name__).result(60)

    run.__name__ = test.__name__
    run.test = test  # type: ignore[attr-defined]
    return run


def _run(name: str) -> None:
    gc.unfreeze()
    asyncio.run(globals()[name].test())


def fill(cache: LookupCache, first: int = 0, count: int = KEYS) -> None:
    table = pa.table({"number": range(count)})
    for place in range(count):
        cache.put(first + place, ColumnAnswers(table, place, 1))


def answers_looked_at() -> int:
    """The answers in columns that a collection of garbage looks at."""
    return sum(type(one) is ColumnAnswers for one in gc.get_objects())


class Process:
    """What tasks share, and what is frozen for it."""

    def __init__(self) -> None:
        self.caches = new_caches()
        self.frozen = Frozen()


async def task(process: Process, first: int | None = None, owner: str = "owner", options: Cache | None = None) -> None:
    async with lent_cache(process.caches, owner, options or Cache(max_rows=KEYS)) as cache:
        if first is not None:
            assert isinstance(cache, LookupCache)
            fill(cache, first)
    process.frozen.look(sum(len(one) for one in open_caches(process.caches) if one.in_memory))


@alone
async def test_a_task_leaves_its_cached_answers_to_no_later_collection() -> None:
    process = Process()
    await task(process, 0)
    assert answers_looked_at() == 0
    async with lent_cache(process.caches, "owner", Cache(max_rows=KEYS)) as cache:
        assert isinstance(cache, LookupCache)
        found = cache.get(KEYS - 1)
    assert type(found) is ColumnAnswers
    assert found.answer() == {"number": KEYS - 1}


@alone
async def test_answers_that_replace_others_are_left_alone_too() -> None:
    process = Process()
    for first in range(0, 3 * KEYS, KEYS):
        await task(process, first)
        assert answers_looked_at() == 0


@alone
async def test_tasks_that_add_nothing_put_nothing_aside() -> None:
    process = Process()
    await task(process, 0)
    later: list[int] = []
    for _ in range(20):
        await task(process)
    assert any(one is later for one in gc.get_objects())


class Knot:
    """It refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


@alone
async def test_garbage_is_found_also_if_it_was_in_use_when_everything_was_put_aside() -> None:
    process = Process()
    before, during = weakref.ref(Knot()), Knot()
    await task(process, 0)
    assert before() is None
    after, held = weakref.ref(Knot()), weakref.ref(during)
    del during
    gc.collect()
    assert after() is None
    assert held() is not None
    # When the cache has replaced its keys, everything is looked at again.
    await task(process, KEYS)
    assert held() is None


@alone
async def test_when_a_cache_is_closed_everything_is_looked_at_again() -> None:
    process = Process()
    during = Knot()
    await task(process, 0)
    held = weakref.ref(during)
    del during
    # It is closed in a thread.
    for other in range(UNUSED):
        await task(process, owner=f"other {other}")
    async with asyncio.timeout(10):
        while held() is not None:
            await asyncio.sleep(0.01)
            await task(process, owner="last")


@alone
async def test_caches_on_disk_or_with_few_keys_need_no_further_collection() -> None:
    process, few = Process(), Cache(max_rows=LEAST // 2)
    await task(process)
    later = Knot()
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(3):
            await task(process, 0, options=few)
            await task(process, None, options=Cache(max_rows=KEYS, store="rocksdb", directory=Path(directory)))
    # It is not put aside.
    assert any(one is later for one in gc.get_objects())


@alone
async def test_the_first_task_leaves_what_the_process_has_loaded_to_no_later_collection() -> None:
    await task(Process())
    assert not any(one is pa for one in gc.get_objects())
