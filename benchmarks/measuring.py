"""The functions that several benchmarks share."""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import psutil
import uvloop

from asyncio_operator import Journal
from examples.stage import cause

if TYPE_CHECKING:
    import pyarrow as pa
    from aiohttp import web
    from pyspark.sql import DataFrame

    Respond = Callable[[web.BaseRequest], Awaitable[web.Response]]

Pair = tuple[str, str, float]
"""Two figures, as texts, and their ratio."""

TURNS = 5

IN_A_FILE = 1_000_000
"""Answers of a file of `fill_journal`."""


def worker_loop() -> asyncio.Runner:
    """A runner with the loop of a Python worker."""
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


@contextmanager
def http_server(respond: Respond) -> Iterator[str]:
    """The URL of an HTTP server in its own process. `respond` must be a function of a module."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, respond), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.terminate()
        process.join()


def _serve(ready: Connection, respond: Respond) -> None:
    from aiohttp import web

    async def main() -> None:
        runner = web.ServerRunner(web.Server(respond))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        ready.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    with worker_loop() as runner:
        runner.run(main())


def seconds_of(frame: DataFrame) -> float:
    """The seconds to compute every column of every row, into Spark's sink ``noop``.

    Raises:
        RuntimeError: the job failed.
    """
    started = time.perf_counter()
    try:
        frame.write.format("noop").mode("overwrite").save()
    except Exception as error:
        raise RuntimeError(cause(error)) from error
    return time.perf_counter() - started


def passed(batches: Iterator[Any]) -> Iterator[Any]:
    """Returns batches unchanged, for `mapInArrow`: measures Spark's own way through Python and back."""
    yield from batches


async def peak_memory(key: int) -> dict[str, float] | None:
    """A lookup that returns, for some keys, the peak memory of its process in MB as the column "peak". Linux only."""
    if key % 1000:
        return None
    return {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000}


def fill_journal(journal: Journal, answers: pa.Schema, known: int) -> int:
    """Write answers for the keys from 0 on without Spark, as a compaction would leave them. Returns their bytes.

    Args:
        answers: a text, an int and a double.
        known: the number of keys.
    """
    import numpy as np
    import pyarrow as pa

    from asyncio_operator.arrow.column_answers import in_order
    from asyncio_operator.journal.answers import AnswerBatch
    from asyncio_operator.journal.files import list_journal
    from asyncio_operator.journal.identity import open_journal, wanted_description
    from asyncio_operator.journal.storage import open_place
    from asyncio_operator.journal.writer import JournalWriter

    place = open_place(journal.location)
    keys = pa.schema([("id", pa.int64())])
    description = open_journal(place, wanted_description(journal.identity or "benchmark", keys, answers))
    writer = JournalWriter(place, description, flush_every=0.0, drive=JournalWriter.write_due)
    for first in range(0, known, IN_A_FILE):
        numbers = np.arange(first, min(known, first + IN_A_FILE))
        titles = [f"product number {key:,}" for key in numbers.tolist()]
        rows = pa.table([titles, (numbers % 5).astype(np.int32), numbers / 7], schema=description.answers)
        batch = AnswerBatch(pa.array(numbers), in_order(rows), time.time())
        writer.append([batch], len(numbers), rows.nbytes)
    writer.close()
    return sum(entry.size for entry in list_journal(place).live)


def in_turns(ours: DataFrame, theirs: DataFrame) -> tuple[Pair, Pair]:
    """The median times, and CPU of the workers, after a turn that does not count."""
    turns = [[_measured(side) for side in (ours, theirs)] for _ in range(1 + TURNS)][1:]
    seconds, cpu = ([statistics.median(turn[side][i] for turn in turns) for side in range(2)] for i in range(2))
    return pair(*seconds), pair(*cpu)


def _measured(side: DataFrame) -> tuple[float, float]:
    before = _worker_seconds()
    seconds = seconds_of(side)
    return seconds, _worker_seconds() - before


def pair(ours: float, theirs: float) -> Pair:
    """Two times, as texts, and their ratio."""
    return f"{ours:.2f} s", f"{theirs:.2f} s", ours / theirs


def _worker_seconds() -> float:
    """The CPU that the Python workers of Spark have used, those included that have ended."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "pyspark.daemon" in process.cmdline():
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total
