"""Law X7 on the socket alone: a task sees that Spark is gone although nothing tells it. Here a thread plays the JVM.

A task that has read as much as it may leaves the rest in its socket. When Spark then closes its end, the end of the
stream is stuck behind what was not read, and stays there: only what the task writes meets with an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.spark.worker import links as worker
from asyncio_operator.spark.worker.links import ChainTask, EnrichTask
from asyncio_operator.spark.worker.task_frame import outputs_of
from tests.spark.worker.tasks import task_of


@pytest.fixture(params=["tcp", "unix"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The worker's end of a connection, and Spark's."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        listener = socket.socket(socket.AF_INET if request.param == "tcp" else socket.AF_UNIX)
        stack.enter_context(listener)
        listener.bind(("127.0.0.1", 0) if request.param == "tcp" else str(Path(directory) / "socket"))
        listener.listen()
        jvm = socket.socket(listener.family)
        jvm.connect(listener.getsockname())
        mine = stack.enter_context(listener.accept()[0])
        with jvm:
            yield mine, jvm


def fill(connection: socket.socket) -> None:
    """Send until nothing more fits, on either side."""
    connection.settimeout(0.1)
    with contextlib.suppress(TimeoutError):
        while True:
            connection.send(bytes(65536))


def take(connection: socket.socket) -> None:
    """Take all that has come: closed with something left in it, a socket would tell the other side at once."""
    if connection.fileno() >= 0:
        with contextlib.suppress(TimeoutError):
            while connection.recv(65536):
                pass


def endless() -> Iterator[pa.RecordBatch]:
    for start in range(0, 10**9, 10):
        yield pa.RecordBatch.from_pydict({"id": range(start, start + 10)})


def serve(mine: socket.socket, task: EnrichTask, jvm: socket.socket, rows: int) -> None:
    """What PySpark does with a task; Spark closes its end when it has a number of rows."""
    outfile, writer, written = mine.makefile("wb", 65536), None, 0
    output = iter(ChainTask([task])(endless()))
    try:
        while True:
            if written >= rows:
                outfile.flush()
                take(jvm)
                jvm.close()
            batch = next(output)
            writer = writer or pa.ipc.new_stream(outfile, batch.schema)
            writer.write_batch(batch)
            written += batch.num_rows
    finally:
        output.close()  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            outfile.close()


@pytest.mark.parametrize("answered", [0, 3])
@pytest.mark.parametrize("ordered", [True, False])
def test_X7_a_task_ends_when_spark_is_gone_although_unread_input_hides_it(
    ends: tuple[socket.socket, socket.socket], ordered: bool, answered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "outputs_of", partial(outputs_of, watch=0.02))
    mine, jvm = ends
    running = 0

    async def look_up(key: int) -> Any:
        nonlocal running
        if key >= answered:
            running += 1
            try:
                await asyncio.Event().wait()
            finally:
                running -= 1
        return {"x": key}

    fill(jvm)
    with pytest.raises(ConnectionError):
        serve(mine, task_of("x", look_up, ordered=ordered, buffer=20, capacity=10), jvm, answered)
    assert running == 0
    assert loop_thread().loop.is_running()
