"""The requests that a journal makes of an object store, by kind, against the server of S3 of the tests.

PUT and LIST cost about twelve times as much as GET and HEAD where stores bill for requests. What Spark itself reads is
not counted, because its client of S3, hadoop-aws, is not part of PySpark.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
from aiohttp import web
from pyspark.sql import SparkSession

from asyncio_operator import Journal
from asyncio_operator.arrow.column_answers import in_order
from asyncio_operator.journal.answers import AnswerBatch
from asyncio_operator.journal.compaction import Compactor
from asyncio_operator.journal.files import Seen, list_journal
from asyncio_operator.journal.format import Description
from asyncio_operator.journal.identity import open_journal, wanted_description
from asyncio_operator.journal.later_answers import JournalReader
from asyncio_operator.journal.storage import Place, open_place
from asyncio_operator.journal.writer import JournalWriter
from asyncio_operator.spark import enrich
from asyncio_operator.spark.journal import contents_of
from benchmarks import Row, Rows
from enrichers import FunctionEnricher
from examples.stage import local_spark, workspace
from tests.object_store import KEY_ID, SECRET, ObjectStore

FILES = 100

IN_A_FILE = 1_000

KEYS = 2_000

LATENCY = 0.05

CAPACITY = 10
"""In each of two tasks: 200 answers a second."""

FLUSHES = (0.5, 5.0)


class CountingStore(ObjectStore):
    """Counts requests by kind. A GET of a bucket is a LIST."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: Counter[str] = Counter()

    async def carry_out(self, request: web.Request, body: bytes) -> web.Response:
        is_list = request.method == "GET" and "list-type" in request.query
        self.kinds["LIST" if is_list else request.method] += 1
        return await super().carry_out(request, body)

    @contextmanager
    def counted(self, kinds: Counter[str]) -> Iterator[None]:
        """Add the requests of a block to `kinds`."""
        self.kinds.clear()
        yield
        kinds.update(self.kinds)


async def _ask(key: int) -> Mapping[str, int]:
    await asyncio.sleep(LATENCY)
    return {"v": key}


def journal_requests() -> Rows:
    """Requests of writing, looking for later files, starting again, and compaction; and of whole jobs."""
    os.environ.update(AWS_ACCESS_KEY_ID=KEY_ID, AWS_SECRET_ACCESS_KEY=SECRET)
    with CountingStore() as store, workspace("benchmark") as directory, local_spark(directory) as spark:
        place = open_place(Journal(store.url("answers")).location)
        wanted = wanted_description("x", pa.schema([("id", pa.int64())]), pa.schema([("v", pa.int64())]))
        description = open_journal(place, wanted)
        yield from _of_files(store, spark, place, description)
        for flush_every in FLUSHES:
            yield _of_job(store, spark, flush_every)


def _of_files(store: CountingStore, spark: SparkSession, place: Place, description: Description) -> Rows:
    location, keys = Journal(store.url("answers")).location, pa.array(range(0, FILES * IN_A_FILE, 7))
    writing, looking, reading, starting, compacting, deleting = (Counter[str]() for _ in range(6))
    with store.counted(writing):
        _write(place, description)
    seen = Seen.of(entry.name for entry in list_journal(place).files)
    reader = JournalReader(place, description, since=seen)
    with store.counted(looking):
        reader.read(keys[:0])
    reader = JournalReader(place, description)
    reader.read(keys[:0])
    with store.counted(reading):
        assert (reader.read(keys).counts >= 0).all()
    with store.counted(starting):
        assert len(contents_of(spark, location, description).live) == FILES
    with store.counted(compacting):
        compactor = Compactor(place, description)
        inputs = compactor.inputs()
        name, _ = compactor.write(pa.concat_tables([table for one in inputs for table in compactor.read(one)]))
        assert name is not None
        compactor.commit([name], inputs)
    with store.counted(deleting):
        assert Compactor(place, description).delete_replaced(0.0) == FILES
    yield _row("write a file", writing, FILES)
    yield _row("look for later files, each second of a task", looking, 1)
    yield _row("read the answers of later files of others, for each", reading, FILES)
    yield _row("start again with 100 files, on the driver, for each", starting, FILES)
    yield _row("compact 100 files (without Spark), for each", compacting, FILES)
    yield _row("delete replaced files, for each", deleting, FILES)


def _write(place: Place, description: Description) -> None:
    writer = JournalWriter(place, description, flush_every=0.0, drive=JournalWriter.write_due)
    for first in range(0, FILES * IN_A_FILE, IN_A_FILE):
        numbers = np.arange(first, first + IN_A_FILE)
        batch = AnswerBatch(pa.array(numbers), in_order(pa.table({"v": numbers})), time.time())
        writer.append([batch], len(numbers), numbers.nbytes)
    writer.close()


def _of_job(store: CountingStore, spark: SparkSession, flush_every: float) -> Row:
    """Two tasks, each of five seconds."""
    journal = Journal(store.url(f"job-{flush_every}"), identity="x", flush_every=flush_every)
    kinds: Counter[str] = Counter()
    with store.counted(kinds):
        job = enrich(
            spark.range(0, KEYS, 1, 2), FunctionEnricher(_ask, "v long"), on="id", capacity=CAPACITY, journal=journal
        )
        assert job.count() == KEYS
    return _row(f"a job of two tasks, flush_every={flush_every:g}, for 1,000 answers", kinds, KEYS // 1000)


def _row(what: str, kinds: Mapping[str, int], count: int) -> Row:
    each = ", ".join(f"{number / count:.3g} {kind}" for kind, number in sorted(kinds.items()))
    total = sum(kinds.values())
    return "S17", f"requests: {what}", each, f"{total} in all", total / count, ""
