"""The proxy does to connections what it says, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress

import pytest

from tests.faults.proxy import Mode, Proxy

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]

TEXT = bytes(range(256)) * 40


@pytest.fixture
async def echo() -> AsyncIterator[tuple[str, int]]:
    """Gives back what it is given; ends with its client."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()


@pytest.fixture
def proxy(echo: tuple[str, int]) -> Iterator[Proxy]:
    with Proxy(echo) as proxy:
        yield proxy
    assert not [thread for thread in threading.enumerate() if thread.name == "proxy"]


@asynccontextmanager
async def connected(proxy: Proxy) -> AsyncIterator[Pair]:
    reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def set_mode(proxy: Proxy, *mode: object, **options: object) -> None:
    await asyncio.to_thread(proxy.set, Mode(*mode, **options))  # type: ignore[arg-type]


async def echoed(pair: Pair) -> bytes:
    reader, writer = pair
    writer.write(TEXT)
    return await reader.readexactly(len(TEXT))


async def ended(pair: Pair, proxy: Proxy, kind: str) -> None:
    """Take the end of a connection that the proxy ends in this way."""
    reader, writer = pair
    if kind == "reset":
        with pytest.raises(ConnectionResetError):
            await reader.read()
    else:
        assert await reader.read() == b""
    if kind == "half_close":
        writer.write(TEXT)
        await writer.drain()
        assert proxy.open, "it goes on reading what the client sends"


async def until_closed(proxy: Proxy) -> None:
    while proxy.open:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_what_passes_is_unchanged_and_an_end_is_passed_on(proxy: Proxy) -> None:
    async with connected(proxy) as (reader, writer):
        assert await echoed((reader, writer)) == TEXT
        writer.write(TEXT)
        writer.write_eof()
        assert await reader.read() == TEXT
    await until_closed(proxy)
    assert proxy.accepted == 1


async def test_a_blackhole_holds_everything_and_gives_it_back_in_order(proxy: Proxy) -> None:
    async with connected(proxy) as old:
        await echoed(old)
        await set_mode(proxy, "blackhole")
        async with connected(proxy) as new:
            for reader, writer in (old, new):
                writer.write(TEXT)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await reader.read(1)
            await set_mode(proxy, "pass")
            assert await old[0].readexactly(len(TEXT)) == await new[0].readexactly(len(TEXT)) == TEXT


@pytest.mark.parametrize("kind", ["cut", "half_close", "reset"])
async def test_what_ends_connections_ends_old_and_new_ones(proxy: Proxy, kind: str) -> None:
    async with connected(proxy) as old:
        await echoed(old)
        await set_mode(proxy, kind)
        await ended(old, proxy, kind)
    # A reset may come before the client knows that it is connected.
    with suppress(ConnectionResetError) if kind == "reset" else nullcontext():
        async with connected(proxy) as new:
            await ended(new, proxy, kind)
    assert proxy.struck == 2
    await set_mode(proxy, "pass")
    await until_closed(proxy)
    async with connected(proxy) as pair:
        assert await echoed(pair) == TEXT


@pytest.mark.parametrize("kind", ["cut", "half_close", "reset", "blackhole"])
async def test_it_may_strike_in_the_middle_of_an_answer_and_some_connections_only(proxy: Proxy, kind: str) -> None:
    await set_mode(proxy, kind, after=700, times=2)
    for _ in range(2):
        async with connected(proxy) as (reader, writer):
            writer.write(TEXT)
            # A reset may overtake what was sent before it.
            assert kind == "reset" or await reader.readexactly(700) == TEXT[:700]
            if kind == "reset":
                with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                    await reader.readexactly(701)
            elif kind == "blackhole":
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await reader.read(1)
            else:
                assert await reader.read() == b""
    async with connected(proxy) as pair:
        assert await echoed(pair) == TEXT
    assert (proxy.accepted, proxy.struck) == (3, 2)


async def test_a_connection_that_ends_before_it_is_struck_does_not_count(proxy: Proxy) -> None:
    await set_mode(proxy, "cut", after=700, times=1)
    async with connected(proxy) as (_, writer):
        writer.write(TEXT[:10])
    await until_closed(proxy)
    async with connected(proxy) as (reader, writer):
        writer.write(TEXT)
        assert await reader.read() == TEXT[:700]
    assert (proxy.accepted, proxy.struck) == (2, 1)
