"""The worker's CPU for a new key, by the way in which an enricher is asked, compared with a function without options.

Each enricher answers at once, and each answer is the CPU time of the process so far. So the time from the first call
to the last is that of the work between: keys are read and handed out, answers stored, columns built and passed to
Spark. 200,000 distinct keys in one partition. The sides run in turns, and the median of the turns is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import process_time
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from asyncio_operator import Cache, Enricher, Journal, Retry
from asyncio_operator.spark import enrich
from benchmarks import Rows
from enrichers import FunctionEnricher
from examples.stage import local_spark, workspace

KEYS = 200_000
TURNS = 7

SCHEMA = pa.schema([("cpu", pa.float64())])


class InRows(Enricher):
    """A thousand keys a call, answered with rows."""

    max_batch = 1000

    def schema(self) -> pa.Schema:
        return SCHEMA

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        return [{"cpu": process_time()}] * len(keys)


class InColumns(InRows):
    """The same, answered with a table."""

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        return pa.table({"id": keys, "cpu": pa.repeat(process_time(), len(keys))})


async def _one(key: int) -> dict[str, float]:
    return {"cpu": process_time()}


def s20() -> Rows:
    """CPU of the worker for a new key: with a retry, in batches of rows, with a cache, in columns."""
    one = FunctionEnricher(_one, "cpu double")
    sides: dict[str, tuple[str, Enricher, dict[str, Any]]] = {
        "a function without options": ("", one, {}),
        "one key a call, Retry(3)": ("<= 1.2", one, {"retry": Retry(3)}),
        "one key a call, with a cache": ("<= 2.0", one, {"cache": Cache(KEYS)}),
        "one key a call, with a journal": ("", one, {"journal": None}),
        "batches of 1,000 in rows": ("<= 1.0", InRows(), {}),
        "the same with retry and a cache": ("<= 2.0", InRows(), {"retry": Retry(3), "cache": Cache(KEYS)}),
        "batches of 1,000 in columns": ("<= 2.5", InColumns(), {}),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    with workspace("benchmark") as directory, local_spark(directory) as spark:
        for turn in range(2 + TURNS):
            for name, (_, enricher, options) in sides.items():
                # Every turn has other keys, which no cache has.
                rows = spark.range(turn * KEYS, (turn + 1) * KEYS, 1, 1)
                if "journal" in options:
                    options = {"journal": Journal(directory / f"journal-{turn}", identity="benchmark")}
                times[name].append(_microseconds(enrich(rows, enricher, on="id", **options)))
    [bare, *others] = (median(measured[2:]) for measured in times.values())
    for (name, (target, *_)), cost in zip([*sides.items()][1:], others, strict=True):
        what = f"CPU of the worker for a new key, {name} / without options"
        yield "S20", what, f"{cost:.2f} us", f"{bare:.2f} us", cost / bare, target


def _microseconds(enriched: DataFrame) -> float:
    [first, last] = enriched.agg(F.min("cpu"), F.max("cpu")).collect()[0]
    return float(last - first) / KEYS * 1e6
