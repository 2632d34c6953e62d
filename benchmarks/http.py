"""The cost of a lookup over HTTP in this process, compared with a hand-written loop of aiohttp requests.

The server runs in its own process and answers at once with a small JSON document. Both sides send the same headers,
have the same number of requests in flight over the same number of connections, and return a row with the same values.
Our side also escapes keys, limits the size of answers, checks types, and maps errors. The CPU time of this process is
measured. The sides run in turns, and the median of the turns is taken.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from statistics import median
from time import process_time
from typing import Any

import aiohttp
from aiohttp import web

from asyncio_operator import AsyncWaitOperator, Retry
from benchmarks import Rows
from benchmarks.measuring import http_server, worker_loop
from enrichers import HttpEnricher

REQUESTS = 4_000
AT_ONCE = 50
TURNS = 9

HEADERS = {"Accept": "application/json", "Authorization": "Bearer benchmark"}


def http() -> Rows:
    """CPU time per request, with 50 in flight."""
    with http_server(_respond) as url, worker_loop() as runner:
        ours, theirs = runner.run(_measured(url))
        retried, plain = runner.run(_with_retries(url))
    yield (
        "",
        "CPU of a lookup over HTTP / of a bare aiohttp request",
        f"{ours:.1f} us",
        f"{theirs:.1f} us",
        (ours / theirs),
        "<= 1.15",
    )
    yield (
        "",
        "CPU of a lookup over HTTP in a run, with a retry that never comes / without",
        f"{retried:.1f} us",
        f"{plain:.1f} us",
        (retried / plain),
        "",
    )


async def _measured(url: str) -> tuple[float, float]:
    enricher = HttpEnricher(
        url + "/products/{key}", schema="name string, price double, kind long", headers=HEADERS, per_host=AT_ONCE
    )
    await enricher.open()
    connector = aiohttp.TCPConnector(limit=0, limit_per_host=AT_ONCE)
    async with aiohttp.ClientSession(connector=connector, headers=HEADERS) as session:

        async def bare(key: int) -> Any:
            async with session.get(f"{url}/products/{key}") as response:
                return await response.json()

        assert await enricher.lookup(1) == await bare(1)
        times = [(await _timed(enricher.lookup), await _timed(bare)) for _ in range(1 + TURNS)][1:]
    await enricher.close()
    return median(ours for ours, _ in times), median(theirs for _, theirs in times)


async def _with_retries(url: str) -> tuple[float, float]:
    """The same with the default retry of the enricher, for which the engine keeps a record of each key, and without."""
    enricher = HttpEnricher(url + "/products/{key}", schema="name string, price double, kind long", headers=HEADERS)
    await enricher.open()
    times = [[await _run(enricher, retry) for retry in (HttpEnricher.default_retry, None)] for _ in range(1 + TURNS)][
        1:
    ]
    await enricher.close()
    return median(retried for retried, _ in times), median(plain for _, plain in times)


async def _run(enricher: HttpEnricher, retry: Retry | None) -> float:
    """Microseconds of CPU per lookup in a run of the operator."""
    gc.collect()
    started, rows = process_time(), 0
    operator = AsyncWaitOperator(enricher.lookup, capacity=AT_ONCE, timeout=30.0, retry=retry)
    async for _ in operator.process(range(REQUESTS)):
        rows += 1
    assert rows == REQUESTS
    return (process_time() - started) / REQUESTS * 1e6


async def _timed(call: Callable[[int], Awaitable[Any]]) -> float:
    """Microseconds of CPU per call."""
    keys = iter(range(REQUESTS))

    async def lane() -> None:
        for key in keys:
            await call(key)

    gc.collect()
    started = process_time()
    await asyncio.gather(*[lane() for _ in range(AT_ONCE)])
    return (process_time() - started) / REQUESTS * 1e6


async def _respond(_: web.BaseRequest) -> web.Response:
    return web.json_response({"name": "tea", "price": 2.5, "kind": 7})
