"""Keys that a cache keeps on the heap cost later collections of garbage nothing."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from asyncio_operator import Cache
from asyncio_operator.arrow.table_rows import TableRows
from asyncio_operator.lookup.cache import LookupCache
from asyncio_operator.lookup.cache_directories import UNUSED, Caches
from asyncio_operator.lookup.spared import LEAST

KEYS = 2 * LEAST


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def fill(cache: LookupCache, first: int = 0, count: int = KEYS) -> None:
    table = pa.table({"number": range(count)})
    for place in range(count):
        cache.put(first + place, TableRows(table, place, 1))


def answers_looked_at() -> int:
    """The answers in columns that a collection of garbage looks at."""
    return sum(type(one) is TableRows for one in gc.get_objects())


async def task(caches: Caches, first: int | None = None, owner: str = "owner", options: Cache | None = None) -> None:
    cache = await caches.lease(owner, options or Cache(max_rows=KEYS))
    if first is not None:
        fill(cache, first)
    caches.release(owner, options or Cache(max_rows=KEYS))
    caches.spare()


async def test_a_task_leaves_its_cached_answers_to_no_later_collection() -> None:
    caches = Caches()
    await task(caches, 0)
    assert answers_looked_at() == 0
    cache = await caches.lease("owner", Cache(max_rows=KEYS))
    found = cache.get(KEYS - 1)
    assert type(found) is TableRows
    assert found.answer() == {"number": KEYS - 1}


async def test_answers_that_replace_others_are_left_alone_too() -> None:
    caches = Caches()
    for first in range(0, 3 * KEYS, KEYS):
        await task(caches, first)
        assert answers_looked_at() == 0


async def test_tasks_that_add_nothing_freeze_nothing() -> None:
    caches = Caches()
    await task(caches, 0)
    frozen = gc.get_freeze_count()
    later: list[list[int]] = [[] for _ in range(1000)]
    for _ in range(20):
        await task(caches)
    assert gc.get_freeze_count() == frozen
    assert len(later) == 1000


async def test_garbage_is_found_also_if_it_was_in_use_when_answers_were_put_aside() -> None:
    class Knot:
        def __init__(self) -> None:
            self.itself = self

    def knots() -> int:
        gc.unfreeze()
        return sum(type(one) is Knot for one in gc.get_objects())

    caches = Caches()
    Knot()
    during = Knot()
    await task(caches, 0)
    del during
    assert answers_looked_at() == 0
    Knot()
    gc.collect()
    # A later one is found at once, and one that was frozen when the cache has replaced its keys.
    await task(caches, KEYS)
    assert answers_looked_at() == 0
    assert knots() == 0


async def test_a_cache_that_is_closed_takes_nothing_with_it() -> None:
    caches = Caches()
    await task(caches, 0)
    for other in range(UNUSED):
        await task(caches, owner=f"other {other}")
    # It is closed in a thread, and the next look thaws.
    for _ in range(100):
        await asyncio.sleep(0.01)
        await task(caches, owner="last")
        if not gc.get_freeze_count():
            break
    assert gc.get_freeze_count() == 0


async def test_a_cache_on_disk_or_with_few_keys_freezes_nothing(tmp_path: Path) -> None:
    caches, few = Caches(), Cache(max_rows=LEAST - 1)
    await task(caches, 0, options=few)
    await task(caches, None, options=Cache(max_rows=KEYS, store="rocksdb", directory=tmp_path))
    assert gc.get_freeze_count() == 0
