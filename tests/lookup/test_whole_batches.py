"""Enrichers in memory: all keys of a batch of rows are one call, or several of the size that is allowed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from asyncio_operator import Batching, Enricher
from asyncio_operator.arrow.answer_tables import AnswerTables
from asyncio_operator.arrow.key_arrays import ArrowKeys
from asyncio_operator.lookup.key_batch import KeyBatch
from asyncio_operator.lookup.options import LookupOptions, batching_of
from asyncio_operator.lookup.pipeline import LookupPipeline
from tests.lookup.helpers import Source
from tests.operator.helpers import virtual


class InMemory(Enricher):
    """A table in memory that has all keys, and records what it is asked for."""

    in_memory = True

    def __init__(self, max_batch: int) -> None:
        self.max_batch = max_batch
        self.asked: list[list[int]] = []

    def schema(self) -> pa.Schema:
        return pa.schema([("x", pa.int64())])

    def key_schema(self) -> pa.Schema:
        return pa.schema([("key", pa.int64())])

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        self.asked.append(keys.to_pylist())
        return pa.table({"key": keys, "x": keys})


@pytest.mark.parametrize(
    ("max_batch", "batching", "sizes"),
    [
        (1, None, [1] * 8),
        (3, None, [2] * 4),
        (100, None, [8]),
        (3, Batching(100), [2] * 4),
        (100, Batching(5), [4, 4]),
        (100, Batching(1), [1] * 8),
    ],
)
@virtual
async def test_B1_an_enricher_in_memory_is_asked_for_at_most_max_size_and_max_batch_keys(
    max_batch: int, batching: Batching | None, sizes: list[int]
) -> None:
    enricher, batch = InMemory(max_batch), KeyBatch(ArrowKeys(pa.array(range(8))), rows=8)
    options = LookupOptions(batching=batching_of(enricher, batching))
    tables = AnswerTables(enricher.key_schema(), enricher.schema())
    pipeline = LookupPipeline(enricher, Source([batch]), lambda *_: None, options, tables=tables)
    await pipeline.run()
    assert [len(keys) for keys in enricher.asked] == sizes
    assert [key for keys in enricher.asked for key in keys] == [*range(8)]
