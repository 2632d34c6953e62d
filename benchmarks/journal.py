"""A journal: what it costs while answers come, and what it saves in the next run.

The calls wait on the loop, so that a worker gets about 10,000 answers a second, and each turn has a journal of its own.
The journal of the restart is written without Spark, as a compaction would leave it.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from pathlib import Path
from time import monotonic
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from asyncio_operator import Journal
from asyncio_operator.journal.files import list_journal
from asyncio_operator.journal.storage import open_place
from asyncio_operator.spark import enrich, read_journal
from benchmarks import Rows
from benchmarks.measuring import fill_journal, seconds_of
from enrichers import FunctionEnricher
from examples.stage import local_spark, workspace

KEYS = 60_000
LATENCY = 0.01
CAPACITY = 100
TURNS = 5

KNOWN = 10_000_000

ANSWER = "title string, stars int, price double"


async def _ask(key: int) -> dict[str, Any]:
    await asyncio.sleep(LATENCY)
    return {"title": f"product number {key:,}", "stars": key % 5, "price": key / 7}


def s17() -> Rows:
    """60,000 answers in one task, with a journal on a local disk and without. `journal_restart`, `journal_memory` and
    `journal_requests` measure more of a journal."""
    source = FunctionEnricher(_ask, ANSWER)
    with workspace("benchmark") as directory, local_spark(directory) as spark:
        numbers = itertools.count()

        def job(path: Path | None) -> DataFrame:
            journal = None if path is None else Journal(path, identity="benchmark")
            return enrich(spark.range(0, KEYS, 1, 1), source, on="id", capacity=CAPACITY, journal=journal)

        ours, theirs, paths = [], [], []
        for turn in range(TURNS + 1):
            path = directory / f"journal-{next(numbers)}"
            measured = seconds_of(job(path)), seconds_of(job(None))
            if turn:
                ours.append(measured[0])
                theirs.append(measured[1])
                paths.append(path)
        with_journal, without = statistics.median(ours), statistics.median(theirs)
        rate = f"{KEYS / with_journal:,.0f}/s"
        yield (
            "S17",
            "answers with a journal / without",
            rate,
            f"{KEYS / without:,.0f}/s",
            with_journal / without,
            "<= 1.05",
        )
        files = list_journal(open_place(Journal(paths[-1]).location)).live
        size = sum(entry.size for entry in files) / KEYS
        yield "S17", "bytes of an answer / 100", f"{size:.0f}", "100", size / 100, ""
        hourly = 3600 * len(files) / ours[-1]
        yield "S17", "files of a worker in an hour / 3,600", f"{hourly:,.0f}", "3,600", hourly / 3600, "<= 1.1"


def journal_restart() -> Rows:
    """A job that begins again when 10,000,000 keys are known."""
    source = FunctionEnricher(_ask, ANSWER)
    with workspace("benchmark") as directory, local_spark(directory) as spark:
        yield from _restart(spark, source, directory / "known")


def _restart(spark: SparkSession, source: FunctionEnricher, path: Path) -> Rows:
    journal = Journal(path, identity="benchmark")
    size = fill_journal(journal, source.schema(), KNOWN)
    rows = spark.range(0, KNOWN, 1, 2)
    assert read_journal(spark, journal).limit(1).count() == 1
    began = monotonic()
    planned = enrich(rows, source, on="id", journal=journal, mode="unordered")
    seconds = monotonic() - began + seconds_of(planned)
    began = monotonic()
    ordered = monotonic() - began + seconds_of(enrich(rows, source, on="id", journal=journal))
    called = KNOWN / 10_000 / 2
    keys = f"{KNOWN:,} known keys"
    yield "S17", f"{keys}: restart / calls at 10,000/s", f"{seconds:.0f} s", f"{called:.0f} s", seconds / called, ""
    yield "S17", f"{keys}: the same in order", f"{ordered:.0f} s", f"{called:.0f} s", ordered / called, ""
    yield "S17", f"{keys}: bytes of an answer / 100", f"{size / KNOWN:.0f}", "100", size / KNOWN / 100, ""
