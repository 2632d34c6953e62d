"""Workers that share a Redis: what each is answered, what the server holds, and what it was asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator import Cache, EnricherError
from asyncio_operator.lookup import shared_cache, shared_store
from asyncio_operator.lookup.cache import LookupCache
from asyncio_operator.lookup.cache_directories import open_cache
from asyncio_operator.lookup.pipeline import LookupPipeline
from asyncio_operator.lookup.shared_cache import Format, SharedCache
from tests.lookup.helpers import CHECK, Recorded, look_up, outcomes_of
from tests.redis_service import RedisServer

SCHEMA = pa.schema([("x", pa.int64())])

Work = Callable[..., Any]


@pytest.fixture(autouse=True)
def empty(request: pytest.FixtureRequest) -> None:
    """Each test begins with an empty server."""
    if "redis_server" in request.fixturenames:
        request.getfixturevalue("redis_server").command("FLUSHALL")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy is not taken for a store that is slow."""
    for module, name in ((shared_store, "WAIT"), (shared_store, "FIRST"), (shared_cache, "FLUSH")):
        monkeypatch.setattr(module, name, 5.0)


class Worker:
    """One worker: its memory, and what it asks the store."""

    def __init__(self, url: Any, owner: str = "s", clock: Any = None, **options: Any) -> None:
        self.options = Cache(store=url, **({"expire_after_write": 60} | options))
        self.cache: LookupCache = open_cache(self.options, owner, clock, SCHEMA)
        (shared,) = self.cache.known
        assert isinstance(shared, SharedCache)
        self.shared = shared

    async def look_up(
        self, enricher: Recorded, *keys: Sequence[Any], pause: float = 0.0, **options: Any
    ) -> tuple[list[list[tuple[Any, str]]], LookupPipeline]:
        """Run batches of these keys; for each key its answer and where that came from."""
        done = await look_up(enricher, keys, every=pause, cache=self.cache, check=CHECK, **{"timed": True} | options)
        outcomes = [
            [(getattr(one, "answer", None), one.source) for one in outcomes_of(batch)] for batch in done.batches
        ]
        return outcomes, done.pipeline

    async def close(self) -> None:
        await self.shared.close()
        self.cache.close()


def with_workers(server: RedisServer, *makers: dict[str, Any]) -> Callable[[Work], None]:
    """Run a coroutine function with workers of these options."""

    def run(work: Work) -> None:
        async def main() -> None:
            workers = [Worker(**({"url": server.url} | made)) for made in makers]
            try:
                await work(*workers)
            finally:
                for worker in workers:
                    await worker.close()

        asyncio.run(main())

    return run


async def never(key: Any) -> Any:
    raise EnricherError("down", retryable=False)


def commands(server: RedisServer, name: str) -> int:
    """How often a command was run."""
    for line in server.command("INFO", "commandstats").decode().splitlines():
        if line.startswith(f"cmdstat_{name}:calls="):
            return int(line.partition("=")[2].partition(",")[0])
    return 0


def names(server: RedisServer) -> list[bytes]:
    return [part for part in server.command("KEYS", "*").split(b"\r\n") if part.startswith(b"asyncio-operator")]


def stored(server: RedisServer, key: Any, answer: Any, age: float = 0.0, owner: str = "s", px: int = 60_000) -> None:
    """Write an answer as another worker did, `age` seconds ago."""
    form = Format(owner, SCHEMA)
    name = form.name(key)
    assert name is not None
    server.command("SET", name, form.write(answer, round(1000 * (time.time() - age))), "PX", str(px))


async def until_it_answers(worker: Worker) -> None:
    """Wait until the store is asked again."""
    async with asyncio.timeout(10):
        while worker.shared._store._ahead is None:
            await worker.shared.find([0])
            await asyncio.sleep(0.01)
