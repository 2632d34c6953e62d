"""L2, L12, A4: keys that stay in Arrow are shared and remembered as Python keys are, without an object for each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator import Cache, Enricher
from asyncio_operator.arrow import column_memory
from asyncio_operator.arrow.answer_tables import AnswerTables
from asyncio_operator.arrow.column_answers import ColumnAnswers, in_order, joined
from asyncio_operator.arrow.key_arrays import key_array
from asyncio_operator.arrow.key_index import ArrowKeys
from asyncio_operator.figures import Figures
from asyncio_operator.lookup import column_places
from asyncio_operator.lookup.answers import AnswerCheck
from asyncio_operator.lookup.column_places import ColumnCache, ColumnPlaces
from asyncio_operator.lookup.key_batch import PENDING, Ascent, Calls, KeyBatch
from asyncio_operator.testing import ManualClock
from tests.lookup.helpers import Recorded, in_a_second, in_arrow, look_up, outcomes_of
from tests.operator.helpers import virtual

SECONDS = 60

SCHEMA_OF_X = pa.schema([("x", pa.int64())])


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
        return SCHEMA_OF_X

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        self.asked += len(keys)
        return pa.table({"key": keys, "x": keys})


def batch_of(keys: list[int], kind: type[ArrowKeys] = ArrowKeys) -> KeyBatch:
    ascending = all(one < other for one, other in pairwise(keys))
    return KeyBatch(kind(pa.array(keys, pa.int64())), len(keys), None, ascending)


SCHEMA = pa.schema([("key", pa.int64()), ("time", pa.int64()), ("number", pa.int64())])


def remembering(clock: ManualClock, cache: ColumnCache | None = None) -> ColumnPlaces:
    """What a task remembers, behind a cache if there is one."""
    check = AnswerCheck(SCHEMA, in_columns=True)
    return ColumnPlaces(Figures(), check, cache=cache, remember=SECONDS, clock=clock)


def learn(places: ColumnPlaces, keys: list[int], time: int = 0, kind: type[ArrowKeys] = ArrowKeys) -> None:
    answers = answers_of(keys, time)
    places.learn(kind(pa.array(keys, pa.int64())), answers, answers)


STEPS = st.lists(
    st.tuples(st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True), st.integers(0, 40)), max_size=12
)


@given(STEPS, st.sampled_from([ArrowKeys, Alike]), st.integers(1, 5))
def test_L12_answers_in_columns_are_remembered_as_long_as_others(
    steps: list[tuple[list[int], int]], kind: type[ArrowKeys], at_once: int
) -> None:
    clock = ManualClock()
    places = remembering(clock)
    ascent = Ascent()
    known: dict[int, int] = {}
    for keys, pause in steps:
        batch, now = batch_of(keys, kind), int(clock())
        ascent.add(batch)
        left = places.recall(batch)
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
            learn(places, learnt, now, kind)
            batch.store(some, answers_of(learnt, now))
            known |= dict.fromkeys(learnt, now)
        assert plain(batch.found()) == [plain(answers_of([key], known[key]))[0] for key in keys]
        clock.advance(pause)


def limited(patch: pytest.MonkeyPatch, **limits: int) -> None:
    for name, value in limits.items():
        patch.setattr(column_memory, name, value)


def test_L12_the_memory_of_answers_in_columns_is_bounded_in_keys_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    for limits in ({"MOST_KEYS": 100}, {"MOST_BYTES": 4_000}):
        with monkeypatch.context() as patch:
            limited(patch, BLOCK=10, **limits)
            patch.setattr(column_places, "MANY", 10)
            places = remembering(ManualClock())
            places.recall(batch_of([1, 0]))
            for start in range(0, 10_000, 10):
                learn(places, list(range(start, start + 10)))
                if start % 1_000 == 990:
                    places.recall(batch_of([1, 0]))
            asked = places.recall(batch_of(list(reversed(range(10_000)))))
            remembered = 10_000 - len(asked)
            assert remembered == 100 if "MOST_KEYS" in limits else 20 <= remembered <= 200
            assert asked == list(range(remembered, 10_000))


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True), max_size=30), st.integers(1, 12))
def test_L12_the_keys_of_answers_in_columns_that_came_last_are_remembered(steps: list[list[int]], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        limited(patch, MOST_KEYS=most, BLOCK=3, LEAST=0)
        places, last = remembering(ManualClock()), list[int]()
        for keys in steps:
            asked = [keys[i] for i in places.recall(KeyBatch(ArrowKeys(pa.array(keys, pa.int64())), len(keys)))]
            assert asked == [key for key in keys if key not in last]
            learn(places, asked)
            last = [*last, *asked][-most:]


@pytest.mark.parametrize("limit", ["MOST_KEYS", "MOST_BYTES"])
@settings(max_examples=30)
@given(sizes=st.lists(st.integers(10, 30), min_size=20, max_size=30))
def test_L13_a_memory_behind_a_cache_has_what_one_without_a_cache_has(limit: str, sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        limited(patch, BLOCK=25, **{limit: 4_000 if limit == "MOST_BYTES" else 100})
        clock = ManualClock()
        alone, behind = remembering(clock), remembering(clock, ColumnCache(Cache(max_rows=1), clock))
        alone.recall(batch_of([1, 0])), behind.recall(batch_of([1, 0]))
        first, left = 0, set[int]()
        for size in sizes:
            for places in (alone, behind):
                learn(places, list(range(first, first + size)))
            first += size
            every = list(reversed(range(first)))
            left = {*alone.recall(batch_of(every))}
            assert left >= {*behind.recall(batch_of(every))}
        assert left


@virtual
async def test_L13_a_cache_costs_no_calls_of_an_enricher_that_answers_in_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limited(monkeypatch, BLOCK=40)
    keys = [key * 7 % 50 for key in range(50)]
    for cache in (None, Cache(max_rows=1)):
        enricher = InColumns()
        batches, tables = [batch_of(keys) for _ in range(2)], AnswerTables(None, enricher.schema())
        check = None if cache is None else AnswerCheck(enricher.schema(), in_columns=True)
        done = await look_up(enricher, batches, every=1.0, remember=60.0, cache=cache, tables=tables, check=check)
        assert (enricher.asked, done.figures.calls) == (50, 5)


def test_L12_a_key_whose_call_was_in_trouble_is_remembered_beside_those_in_columns() -> None:
    places = remembering(ManualClock())
    places.recall(batch_of([4, 5]))
    learn(places, [4, 5])
    # Its flight has a Python key.
    places.learn([7], [answers_of([7])[0]], [])
    places.learn([9], [None], [])
    batch = batch_of([9, 7, 6, 5])
    assert places.recall(batch) == [2]
    assert plain(batch.found()) == [None, {"key": 7, "time": 0, "number": 0}, PENDING, answers_of([5])[0].answer()]


PARTS = st.tuples(st.none() | st.integers(0, 2), st.none() | st.sampled_from(["", "a", "b"]))


def optional_keys(keys: list[tuple[int | None, str | None]], bytes_of_nulls: str) -> ArrowKeys:
    """Keys whose null texts have bytes, as those of a column that was masked."""
    numbers, texts = zip(*keys, strict=True)
    held = pa.array([bytes_of_nulls if text is None else text for text in texts])
    masked = pa.StringArray.from_buffers(
        len(held), *held.buffers()[1:], pa.array([t is not None for t in texts]).buffers()[1]
    )
    return ArrowKeys(pa.StructArray.from_arrays([pa.array(numbers, pa.int64()), masked], ["0", "1"]))


@given(
    st.lists(st.lists(PARTS, min_size=1, max_size=6, unique=True), min_size=2, max_size=5), st.sampled_from(["", "b"])
)
def test_L1_L12_the_nulls_of_optional_parts_are_values_of_their_own(
    batches: list[list[tuple[int | None, str | None]]], bytes_of_nulls: str
) -> None:
    memory, cache = remembering(ManualClock()), ColumnCache(Cache(), ManualClock())
    known: dict[Any, int] = {}
    for time, keys in enumerate(batches):
        some = optional_keys(keys, bytes_of_nulls if time % 2 else "")
        batch = KeyBatch(some, len(keys))
        assert [keys[i] for i in memory.recall(batch)] == [key for key in keys if key not in known]
        in_cache = recalled(cache, some.array)
        assert {keys[i]: answer["number"] for i, answer in in_cache.items()} == {
            k: known[k] for k in keys if k in known
        }
        assert [one["number"] for one in plain(batch.found()) if one is not PENDING] == [
            *map(known.get, filter(known.get, keys))
        ]
        numbers = [known.setdefault(key, 1 + len(known)) for key in keys]
        answers = in_order(pa.table({"key": numbers, "time": numbers, "number": numbers}))
        memory.learn(some, answers, answers)
        cache.learn(some, answers, AnswerCheck(SCHEMA, in_columns=True))


@virtual
async def test_L2_two_keys_of_one_batch_may_have_one_hash() -> None:
    batch, tables = batch_of([5, 3, 4], Alike), AnswerTables(None, SCHEMA_OF_X)
    check = AnswerCheck(SCHEMA_OF_X, in_columns=True)
    await look_up(InColumns(), [batch, batch_of([3, 4], Alike)], cache=Cache(), tables=tables, check=check)
    assert plain(batch.found()) == [{"x": 5}, {"x": 3}, {"x": 4}]


def recalled(cache: ColumnCache, keys: pa.Array) -> dict[int, Any]:
    """The positions of the keys that a cache has, and their answers."""
    pieces = cache.recall(ArrowKeys(keys))
    return {i: plain([one])[0] for places, found in pieces for i, one in zip(places.tolist(), found, strict=True)}


def test_L2_of_several_answers_for_a_key_the_one_that_came_last_is_kept() -> None:
    cache, check = ColumnCache(Cache(), ManualClock()), AnswerCheck(SCHEMA_OF_X, in_columns=True)
    for answer in (None, {"x": 1}, {"x": 2}):
        cache.learn(ArrowKeys(pa.array([1])), [answer], check)
    assert recalled(cache, pa.array([1])) == {0: {"x": 2}}


def pairs(kind: pa.DataType, *keys: Any) -> pa.Array:
    return pa.StructArray.from_arrays([pa.array(keys, kind), pa.array(keys, kind)], names=["0", "1"])


OTHER_TYPES = {
    "beyond a double": (pa.array([2.0**53]), pa.array([2**53, 2**53 + 1])),
    "a part beyond an integer": (pairs(pa.int32(), 0), pairs(pa.int64(), 0, 2**40)),
}


@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_L10_a_key_that_the_type_of_a_cache_cannot_hold_is_not_there(kind: str) -> None:
    (first, later), check = OTHER_TYPES[kind], AnswerCheck(SCHEMA_OF_X, in_columns=True)
    cache = ColumnCache(Cache(), ManualClock())
    cache.learn(ArrowKeys(first), [{"x": 0}], check)
    for x in (0, 1):
        assert recalled(cache, later) == {0: {"x": x}}
        cache.learn(ArrowKeys(later), [{"x": x + 1}, {"x": 9}], check)


@pytest.mark.parametrize(
    ("first", "key"),
    [
        ([2.0**53], 2**53 + 1),
        ([(1, 2)], (1, 2, 3)),
        ([(1, 2, 3)], (1, 2)),
        ([("a", "b")], "ab"),
        ([(1, 2)], 12),
        ([1], (1, 2)),
        (["1"], 1),
    ],
    ids=str,
)
def test_L10_an_answer_of_a_store_for_such_a_key_is_not_one_of_another_key(first: list[Any], key: Any) -> None:
    cache = ColumnCache(Cache(stale_if_error=True), ManualClock(), SCHEMA_OF_X)
    assert recalled(cache, in_arrow(*first).array) == {}
    for one in (key, *first):
        cache.put(one, {"x": 1}, 0)
        assert cache.holds(one) is (one != key)
        assert recalled(cache, in_arrow(*first).array) == ({} if one == key else {0: {"x": 1}})


async def always_one(_: Any) -> Any:
    return {"x": 1}


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("kinds", list(permutations([pa.int64(), pa.float64(), pa.decimal128(22, 2)], 2)), ids=str)
@virtual
async def test_L1_L10_a_cache_is_asked_for_equal_keys_of_another_type(
    kinds: Sequence[pa.DataType], paired: bool
) -> None:
    cache, enricher = ColumnCache(Cache(), ManualClock()), Recorded(always_one)
    for kind in kinds:
        # Their order is not that of their values: such keys are searched for by name.
        keys = pa.array([3, 1, 2], pa.int64()).cast(kind)
        batch = KeyBatch(ArrowKeys(key_array([keys, keys]) if paired else keys), 3)
        await look_up(enricher, [batch], cache=cache)
        assert outcomes_of(batch) == [{"x": 1}] * 3
    assert len(enricher.calls) == 3


@pytest.mark.parametrize(
    "key", [float("nan"), (None, "a"), (0.0, None), Decimal("1.50"), datetime(1, 1, 1, tzinfo=UTC)]
)
def test_L10_an_answer_of_a_store_is_there_for_its_key(key: Any) -> None:
    cache = ColumnCache(Cache(stale_if_error=True), ManualClock(), SCHEMA_OF_X)
    keys = in_arrow(key, key)[:1]
    assert recalled(cache, keys.array) == {}
    cache.put(keys[0], {"x": 1}, 0)
    assert cache.holds(keys[0])
    assert recalled(cache, keys.array) == {0: {"x": 1}}


def test_A4_large_answers_are_in_blocks_that_arrow_can_join(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, MOST_BYTES=250, LEAST=0)
    cache, keys = ColumnCache(Cache(max_rows=300), ManualClock()), pa.array(range(1_000))
    check = AnswerCheck(SCHEMA_OF_X, in_columns=True)
    for start in range(0, 1_000, 50):
        cache.learn(ArrowKeys(keys[start : start + 50]), in_order(pa.table({"x": keys[start : start + 50]})), check)
        assert all(found.table.nbytes <= 1_600 for _, found in cache.recall(ArrowKeys(keys)))
    assert sorted(recalled(cache, keys)) == [*range(700, 1_000)]


def test_L3_an_answer_that_its_maker_spoils_after_the_call_is_asked_for_again() -> None:
    schema = pa.schema([("x", pa.list_(pa.int64()))])
    cache, values = ColumnCache(Cache(), ManualClock()), list[Any]([1])
    cache.learn(ArrowKeys(pa.array([1])), [{"x": values}], AnswerCheck(schema, in_columns=True))
    values.append("text")
    assert recalled(cache, pa.array([1])) == {}


def test_A4_answers_in_tables_and_in_rows_are_kept_together_where_a_column_is_declared_without_nulls() -> None:
    cache, check = ColumnCache(Cache(), ManualClock()), AnswerCheck(SCHEMA_OF_X, in_columns=True)
    strict = pa.schema([SCHEMA_OF_X.field("x").with_nullable(False)])
    cache.learn(ArrowKeys(pa.array([1])), in_order(pa.table([[1]], schema=strict)), check)
    cache.learn(ArrowKeys(pa.array([2])), [{"x": 2}], check)
    assert recalled(cache, pa.array([1, 2])) == {0: {"x": 1}, 1: {"x": 2}}


@pytest.mark.parametrize("kind", [ArrowKeys, Alike])
@virtual
async def test_L2_batches_share_the_keys_that_are_equal_whatever_their_numbers(kind: type[ArrowKeys]) -> None:
    enricher = Recorded(in_a_second)
    batches = [batch_of([3, 1, 2], kind), batch_of([5, 2, 9, 3], kind)]
    done = await look_up(enricher, batches)
    assert [outcomes_of(batch) for batch in batches] == [[{"x": key} for key in batch.keys] for batch in batches]
    assert kind is Alike or (enricher.calls, done.figures.shared) == ([3, 1, 2, 5, 9], 2)


def test_A4_few_rows_of_a_large_table_are_taken_out_of_it() -> None:
    large = answers_of(list(range(1_000)))
    pieces = [(range(2), large.at([8, 3])), ([3, 2], large.at([5, 4]))]
    few = joined(pieces, 5)
    assert few.table.num_rows == 5
    assert plain(few) == [*plain(answers_of([8, 3, 4, 5])), None]


KINDS = [pa.int32(), pa.int64(), pa.string(), pa.decimal128(10, 0), pa.decimal128(12, 2), pa.float64()]


@pytest.mark.parametrize("pair", [False, True])
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.lists(st.integers(0, 3), min_size=1, unique=True)), max_size=8))
def test_L8_L10_tasks_whose_keys_have_other_types_share_one_cache_and_get_no_answer_of_another_key(
    pair: bool, tasks: list[tuple[pa.DataType, list[int]]]
) -> None:
    cache = ColumnCache(Cache(), ManualClock())
    for kind, keys in tasks:
        array = pa.array(list(map(str, keys))).cast(kind)
        if pair:
            array = pa.StructArray.from_arrays([array, pa.array(keys)], names=["0", "1"])
        places, batch = remembering(ManualClock(), cache), KeyBatch(ArrowKeys(array), len(keys))
        left = places.recall(batch)
        if left:
            answers = answers_of([keys[i] for i in left])
            places.learn(batch.keys.at(left), answers, [])
            batch.store(left, answers)
        assert plain(batch.found()) == plain(answers_of(keys))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("found_before", [False, True])
def test_L4_answers_that_wait_take_the_places_of_others_in_the_order_in_which_they_came(
    order: tuple[int, int], found_before: bool
) -> None:
    cache, check = ColumnCache(Cache(max_rows=1), ManualClock()), AnswerCheck(SCHEMA_OF_X, in_columns=True)
    for key in order:
        keys = ArrowKeys(pa.array([key]))
        cache.learn(keys, [{"x": key}], check, calls=Calls(came=[(1, 1 + key, 0.0)], names=keys.names))
        if found_before and key == order[0]:
            assert recalled(cache, keys.array) == {0: {"x": key}}
    kept = order[-1] if found_before else 1
    assert [key for key in order if recalled(cache, pa.array([key]))] == [kept]


def test_L4_a_use_of_an_answer_counts() -> None:
    cache, check = ColumnCache(Cache(max_rows=2), ManualClock()), AnswerCheck(SCHEMA_OF_X, in_columns=True)
    cache.learn(ArrowKeys(pa.array([1, 2])), [{"x": 1}, {"x": 2}], check)
    assert recalled(cache, pa.array([1])) == {0: {"x": 1}}
    cache.learn(ArrowKeys(pa.array([3])), [{"x": 3}], check)
    assert recalled(cache, pa.array([1, 2, 3])) == {0: {"x": 1}, 2: {"x": 3}}
