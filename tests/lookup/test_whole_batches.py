"""Enrichers in memory: all keys of a batch of rows are one call, or several of the size that is allowed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest

from asyncio_operator import Batching, Enricher
from asyncio_operator.arrow.answer_tables import AnswerTables
from asyncio_operator.arrow.key_index import ArrowKeys
from asyncio_operator.engine.timing import TURN
from asyncio_operator.lookup.key_batch import KeyBatch
from asyncio_operator.lookup.options import LookupOptions, batching_of
from asyncio_operator.lookup.pipeline import in_arrow
from tests.lookup.helpers import look_up, outcomes_of
from tests.operator.helpers import virtual
from tests.operator.meter import Meter, metered


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


def tables_of(enricher: InMemory) -> AnswerTables:
    return AnswerTables(enricher.key_schema(), enricher.schema())


async def run(enricher: InMemory, batching: Batching | None) -> None:
    """Ask for the keys 0 to 7."""
    batch = KeyBatch(ArrowKeys(pa.array(range(8))), rows=8)
    await look_up(enricher, [batch], batching=batching, tables=tables_of(enricher), fail=True)


@pytest.mark.parametrize(
    ("max_batch", "batching", "sizes"),
    [
        (1, None, [1] * 8),
        (3, None, [3, 3, 2]),
        (100, None, [8]),
        (3, Batching(100), [3, 3, 2]),
        (100, Batching(5), [5, 3]),
        (100, Batching(1), [1] * 8),
    ],
)
@virtual
async def test_B1_an_enricher_in_memory_is_asked_for_at_most_max_size_and_max_batch_keys(
    max_batch: int, batching: Batching | None, sizes: list[int]
) -> None:
    enricher = InMemory(max_batch)
    await run(enricher, batching)
    assert [len(keys) for keys in enricher.asked] == sizes
    assert [key for keys in enricher.asked for key in keys] == [*range(8)]


class Busy(InMemory):
    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        time.sleep(TURN)  # noqa: ASYNC251  # it computes
        return await super().lookup_columns(keys)


async def test_R2_other_code_has_its_turn_between_the_parts_of_a_batch() -> None:
    """A deadline elsewhere on the loop would pass unseen otherwise."""
    enricher, beats = Busy(1), list[int]()

    async def beat() -> None:
        while True:
            await asyncio.sleep(0)
            beats.append(len(enricher.asked))

    beating = asyncio.ensure_future(beat())
    await run(enricher, None)
    beating.cancel()
    await asyncio.wait([beating])
    assert {*range(1, 9)} <= {*beats}


class OneByOne(InMemory):
    """Fails for several keys, as one of them might be to blame."""

    def key_schema(self) -> pa.Schema:
        return pa.schema([("key", pa.timestamp("us"))])

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        numbers = keys.cast(pa.int64())
        self.asked.append(numbers.to_pylist())
        if len(keys) > 1:
            raise ValueError("one of these")
        return pa.table({"key": keys, "x": numbers})


@virtual
async def test_B4_A4_keys_that_python_cannot_hold_are_asked_for_in_the_halves_of_a_failed_batch() -> None:
    far = 10**18
    enricher = OneByOne(100)
    batch = KeyBatch(ArrowKeys(pa.array([1, 2, far], pa.timestamp("us"))), rows=3)
    await look_up(enricher, [batch], tables=tables_of(enricher))
    assert enricher.asked == [[1, 2, far], [1], [2, far], [2], [far]]
    assert outcomes_of(batch) == [{"x": 1}, {"x": 2}, {"x": far}]


class Far(OneByOne):
    in_memory = False

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        return pa.table({"key": keys, "x": keys.cast(pa.int64())})


@virtual
async def test_A4_G1_keys_stay_in_arrow_under_a_rate_limit_of_the_job() -> None:
    meter, far = cast("Any", Meter(keys=2)), 10**18
    enricher = Far(2)
    options = LookupOptions(batching=batching_of(enricher, None), budget=metered(meter))
    assert in_arrow(options, enricher, traced=False)
    batch = KeyBatch(ArrowKeys(pa.array([1, 2, far], pa.timestamp("us"))), rows=3)
    await look_up(enricher, [batch], budget=options.budget, tables=tables_of(enricher), meter=meter, fail=True)
    assert [answer.answer() for answer in batch.found(None)] == [{"x": 1}, {"x": 2}, {"x": far}]
    assert [(start, weights["keys"]) for start, weights in meter.starts] == [(0, 2), (10, 1)]


class Weighed(Far):
    def weigh(self, keys: Sequence[Any]) -> Mapping[str, float]:
        return {"tokens": len(keys)}


def test_A4_G4_keys_that_are_weighed_have_objects() -> None:
    options = LookupOptions(batching=Batching(2), budget=metered(Meter()))
    assert not in_arrow(options, Weighed(2), traced=False)
