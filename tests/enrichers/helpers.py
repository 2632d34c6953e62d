"""What the tests of enrichers share: open one, ask it, and take the error that it gives."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from asyncio_operator import Enricher, EnricherError
from asyncio_operator.testing import FakeService
from enrichers.http import HttpEnricher

E = TypeVar("E", bound=Enricher)


@asynccontextmanager
async def opened(enricher: E) -> AsyncIterator[E]:
    await enricher.open()
    try:
        yield enricher
    finally:
        await enricher.close()


def asked(service: FakeService, url: str = "/rows/{key}", **options: Any) -> AbstractAsyncContextManager[HttpEnricher]:
    """An open enricher that asks a service, of one column unless a schema is given."""
    return opened(HttpEnricher(service.url + url, **({"schema": "a int"} | options)))


def asked_in_batches(service: FakeService, **options: Any) -> AbstractAsyncContextManager[HttpEnricher]:
    return asked(service, **({"batch_url": service.url + "/rows?keys={keys}"} | options))


@asynccontextmanager
async def hanging_up_after(sent: bytes) -> AsyncIterator[str]:
    """The URL of a server that reads the head of a request, sends these bytes and closes the connection."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def in_sqlite(path: Path, *statements: str, rows: Sequence[Any] = ()) -> str:
    """The URL of a database in a file, in which these statements were executed, the last one for each of the rows."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in statements[:-1] if rows else statements:
            connection.execute(statement)
        if rows:
            connection.executemany(statements[-1], rows)
        connection.commit()
    return f"sqlite+aiosqlite:///{path}"


async def failure(enricher: Enricher, *keys: Any) -> EnricherError:
    """The error of a lookup of one key, or of several, in which no secret stands, its causes included."""
    with pytest.raises(EnricherError) as caught:
        await (enricher.lookup(keys[0]) if len(keys) == 1 else enricher.lookup_many(keys))
    assert "s3cret" not in told(caught.value)
    return caught.value


async def cancelled_at_any_turn(enricher: Enricher, row: Callable[[int], Any], rounds: int = 100) -> None:
    """Lookups of the keys from 0 to 49, some cancelled after any number of turns of the loop: each gets its own row."""
    for turns in range(rounds):
        lookups = [asyncio.ensure_future(enricher.lookup(number)) for number in range(6)]
        for _ in range(turns % 30):
            await asyncio.sleep(0)
        for lookup in lookups[turns % 3 :: 2]:
            lookup.cancel()
        for number, answer in enumerate(await asyncio.gather(*lookups, return_exceptions=True)):
            assert isinstance(answer, asyncio.CancelledError) or answer == row(number)
    found = await asyncio.wait_for(asyncio.gather(*map(enricher.lookup, range(50))), 10)
    assert found == [row(number) for number in range(50)], "no connection of the pool is lost"


async def refused(enricher: Enricher, keys: Sequence[Any]) -> EnricherError:
    """The same where asking again would not help."""
    error = await failure(enricher, *keys)
    assert error.retryable is False
    return error


def told(error: BaseException) -> str:
    """Everything that a log would show of an error."""
    return "".join(traceback.format_exception(error))


def everything_of(error: BaseException) -> str:
    """What the most talkative of tools would log: tracebacks with the variables of every frame but those of tests."""
    told: traceback.TracebackException | None = traceback.TracebackException.from_exception(error, capture_locals=True)
    texts = [repr(error)]
    while told is not None:
        told.stack[:] = [frame for frame in told.stack if "/tests/" not in frame.filename]
        texts += told.format(chain=False)
        told = told.__cause__ or told.__context__
    return "".join(texts)
