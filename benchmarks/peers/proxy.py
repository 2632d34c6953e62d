"""A TCP proxy that puts a distance between a client and its server.

Law: data passes in order and unchanged. Answers come `delay` seconds later, at full bandwidth, so a round trip takes
that much longer. The proxy listens on the loopback and runs on its own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

CHUNK = 65_536


@contextlib.contextmanager
def distant(path: str, delay: float) -> Iterator[int]:
    """A port at which the server that listens at the Unix socket `path` is `delay` seconds away."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy", daemon=True)
    thread.start()

    def do(step: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(step, loop).result(30)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_unix_connection(path)
            await asyncio.gather(_pass(reader, far_writer, 0.0), _pass(far_reader, writer, delay))

    server = do(asyncio.start_server(serve, "127.0.0.1", 0))
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        do(_end(server))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """Pass on all data in order, each piece `delay` seconds after its arrival, then close."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            if delay:
                # Timers of one delay fire in the order in which they were set.
                loop.call_later(delay, writer.write, data)
            else:
                writer.write(data)
    loop.call_later(delay, ended.set_result, None)
    await ended
    writer.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
