"""L2, L12, A4: keys that stay in Arrow are shared and remembered as Python keys are, without an object for each."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator import Cache, Enricher
from asyncio_operator.arrow import column_memory
from asyncio_operator.arrow.answer_tables import AnswerTables
from asyncio_operator.arrow.column_answers import ColumnAnswers, joined
from asyncio_operator.arrow.key_index import ArrowKeys
from asyncio_operator.lookup import memory as module
from asyncio_operator.lookup.key_batch import IN_COLUMNS, PENDING, Ascent, Failure, KeyBatch
from asyncio_operator.lookup.memory import Memory
from asyncio_operator.testing import ManualClock
from tests.lookup.helpers import CHECK, look_up
from tests.operator.helpers import virtual

SECONDS = 60


class Alike(ArrowKeys):
    """Keys that all have the same hash."""

    def __init__(self, array: pa.Array) -> None:
        super().__init__(array)
        self.hashes = np.full(len(array), 7, np.uint64)


def answers_of(keys: list[int], time: int = 0) -> ColumnAnswers:
    """For each key as many rows as its remainder by 3, with the key, the time, and the number of the row."""
    counts = np.array([key % 3 for key in keys], np.int64)
    rows = [(key, time, number) for key in keys for number in range(key % 3)]
    columns = [pa.array([row[i] for row in rows], pa.int64()) for i in range(3)]
    return ColumnAnswers(pa.table(columns, names=["key", "time", "number"]), np.cumsum(counts) - counts, counts)


def plain(answers: Any) -> list[Any]:
    return [PENDING if one is PENDING else None if one is None else one.answer() for one in answers]


class InColumns(Enricher):
    """Has a row for every key."""

    max_batch = 10
    asked = 0

    def schema(self) -> pa.Schema:
        return pa.schema([("x", pa.int64())])

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        self.asked += len(keys)
        return pa.table({"key": keys, "x": keys})


def batch_of(keys: list[int], kind: type[ArrowKeys] = ArrowKeys) -> KeyBatch:
    ascending = all(one < other for one, other in pairwise(keys))
    return KeyBatch(kind(pa.array(keys, pa.int64())), len(keys), None, ascending)


def asked_for(memory: Memory, batch: KeyBatch) -> list[int]:
    """The positions of the keys that are not remembered. Those of the others get their outcomes."""
    if (found := memory.recall(batch)) is None:
        return list(range(len(batch.keys)))
    batch.outcomes, left = found
    return left


STEPS = st.lists(
    st.tuples(st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True), st.integers(0, 40)), max_size=12
)


@given(STEPS, st.sampled_from([ArrowKeys, Alike]), st.integers(1, 5))
def test_L12_answers_in_columns_are_remembered_as_long_as_others(
    steps: list[tuple[list[int], int]], kind: type[ArrowKeys], at_once: int
) -> None:
    clock = ManualClock()
    memory = Memory(SECONDS, clock)
    ascent = Ascent()
    known: dict[int, int] = {}
    for keys, pause in steps:
        batch, now = batch_of(keys, kind), int(clock())
        ascent.add(batch)
        left = asked_for(memory, batch)
        found = plain(batch.found())
        for i, key in enumerate(keys):
            if i in left:
                assert found[i] is PENDING
                # Of keys with one number, one is remembered.
                assert kind is Alike or now - known.get(key, -SECONDS) >= SECONDS
            else:
                assert now - known[key] < SECONDS
                assert found[i] == plain(answers_of([key], known[key]))[0]
        for start in range(0, len(left), at_once):
            some = left[start : start + at_once]
            learnt = [keys[i] for i in some]
            memory.learn(kind(pa.array(learnt, pa.int64())), answers_of(learnt, now))
            batch.store(some, answers_of(learnt, now))
            known |= dict.fromkeys(learnt, now)
        assert plain(batch.found()) == [plain(answers_of([key], known[key]))[0] for key in keys]
        clock.advance(pause)


def test_L12_the_memory_of_answers_in_columns_is_bounded_in_keys_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    for limits in ({"MOST_IN_COLUMNS": 100}, {"MOST_BYTES": 4_000}):
        with monkeypatch.context() as patch:
            for name, value in ({"BLOCK_IN_COLUMNS": 10} | limits).items():
                patch.setattr(module, name, value)
            memory = Memory(SECONDS, ManualClock())
            memory.recall(batch_of([1, 0]))
            for start in range(0, 10_000, 10):
                keys = list(range(start, start + 10))
                memory.learn(ArrowKeys(pa.array(keys)), answers_of(keys))
                if start % 1_000 == 990:
                    memory.recall(batch_of([1, 0]))
            batch = batch_of(list(reversed(range(10_000))))
            asked = asked_for(memory, batch)
            remembered = 10_000 - len(asked)
            assert remembered == 100 if "MOST_IN_COLUMNS" in limits else 20 <= remembered <= 200
            assert asked == list(range(remembered, 10_000))


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True), max_size=30), st.integers(1, 12))
def test_L12_the_keys_of_answers_in_columns_that_came_last_are_remembered(steps: list[list[int]], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"MOST_IN_COLUMNS": most, "BLOCK_IN_COLUMNS": 3}.items():
            patch.setattr(module, name, value)
        patch.setattr(column_memory, "LEAST", 0)
        memory, last = Memory(SECONDS, ManualClock()), list[int]()
        for keys in steps:
            batch = KeyBatch(ArrowKeys(pa.array(keys, pa.int64())), len(keys))
            asked = [keys[i] for i in asked_for(memory, batch)]
            assert asked == [key for key in keys if key not in last]
            memory.learn(ArrowKeys(pa.array(asked, pa.int64())), answers_of(asked))
            last = [*last, *asked][-most:]


@pytest.mark.parametrize("limit", ["MOST_IN_COLUMNS", "MOST_BYTES"])
@settings(max_examples=30)
@given(sizes=st.lists(st.integers(10, 30), min_size=20, max_size=30))
def test_L13_a_memory_behind_a_cache_has_what_one_without_a_cache_has(limit: str, sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"BLOCK": 4, "BLOCK_IN_COLUMNS": 25, limit: 4_000 if limit == "MOST_BYTES" else 100}.items():
            patch.setattr(module, name, value)
        alone, behind = Memory(SECONDS, ManualClock()), Memory(SECONDS, ManualClock(), in_columns=True)
        alone.recall(batch_of([1, 0]))
        first, left = 0, set[int]()
        for size in sizes:
            keys = list(range(first, first + size))
            alone.learn(ArrowKeys(pa.array(keys, pa.int64())), answers_of(keys))
            behind.learn(keys, answers_of(keys))
            first += size
            every = list(reversed(range(first)))
            left = set(asked_for(alone, batch_of(every)))
            assert left >= set(asked_for(behind, KeyBatch(every, len(every))))
        assert left


@virtual
async def test_L13_a_cache_costs_no_calls_of_an_enricher_that_answers_in_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"MOST_KEYS": 10, "BLOCK": 4, "BLOCK_IN_COLUMNS": 40}.items():
        monkeypatch.setattr(module, name, value)
    keys = [key * 7 % 50 for key in range(50)]
    for cache in (None, Cache(max_rows=1)):
        enricher = InColumns()
        tables = AnswerTables(None, enricher.schema())
        batches = [batch_of(keys) if cache is None else KeyBatch(keys, 50) for _ in range(2)]
        check = None if cache is None else CHECK
        done = await look_up(enricher, batches, every=1.0, remember=60.0, cache=cache, tables=tables, check=check)
        assert (enricher.asked, done.figures.calls) == (50, 5)


def test_L12_a_key_whose_call_was_in_trouble_is_remembered_beside_those_in_columns() -> None:
    memory = Memory(SECONDS, ManualClock())
    memory.recall(batch_of([4, 5]))
    memory.learn(ArrowKeys(pa.array([4, 5])), answers_of([4, 5]))
    # Its flight has a Python key.
    memory.learn([7], [answers_of([7])[0]])
    memory.learn([8, 9], answers_of([8, 9]))
    batch = batch_of([9, 7, 6, 5])
    assert asked_for(memory, batch) == [2]
    assert plain(batch.found()) == [None, {"key": 7, "time": 0, "number": 0}, PENDING, answers_of([5])[0].answer()]


@pytest.mark.parametrize("kind", [ArrowKeys, Alike])
def test_L2_batches_share_the_keys_that_are_equal_whatever_their_numbers(kind: type[ArrowKeys]) -> None:
    earlier, later = batch_of([3, 1, 2], kind), batch_of([5, 2, 9, 3], kind)
    positions = [i for i, name in enumerate(later.names) if name in earlier.places]
    shared = later.shared_with(earlier, positions)
    assert {(1, 2), (3, 0)} >= {*shared}
    assert kind is Alike or len(shared) == 2


def test_A4_outcomes_that_are_not_all_in_columns_are_read_one_by_one() -> None:
    batch = batch_of([4, 5, 6, 7, 8])
    batch.store(range(1, 3), answers_of([5, 6]))
    batch.store([4, 0], answers_of([8, 4]))
    assert batch.outcomes == [IN_COLUMNS, IN_COLUMNS, IN_COLUMNS, PENDING, IN_COLUMNS]
    assert isinstance(batch.found([4, 1, 2]), ColumnAnswers)
    assert plain(batch.found([4, 1, 2])) == plain(answers_of([8, 5, 6]))
    batch.outcomes[3] = failure = Failure(ValueError(), None)
    found = batch.found()
    assert found[3] is failure
    assert plain([*found[:3], found[4]]) == plain(answers_of([4, 5, 6, 8]))


def test_A4_few_rows_of_a_large_table_are_taken_out_of_it() -> None:
    large = answers_of(list(range(1_000)))
    pieces = [(range(2), large.at([8, 3])), ([3, 2], large.at([5, 4]))]
    few = joined(pieces, 5)
    assert few.table.num_rows == 5
    assert plain(few) == [*plain(answers_of([8, 3, 4, 5])), None]
