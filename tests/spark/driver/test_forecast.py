"""What `plan` makes of keys, without Spark: tasks over known data, and the arithmetic behind them.

Hashes come from a generator of random bits in place of Spark's, which no law depends on.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import Budget, RateLimit
from asyncio_operator.spark.driver.forecast import (
    SIZE,
    Caches,
    Sketch,
    Survey,
    TaskFigures,
    Whole,
    budget_seconds,
    worked_off,
)

ALL = 10**9
BATCH = 1000
ROWS = 300_000

Keys = Callable[[np.random.Generator], Any]


def hashes(keys: Any) -> Any:
    """The finaliser of MurmurHash3, which spreads keys as a hash does."""
    bits = np.asarray(keys).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(33))


def batches_of(keys: Sequence[int | None], size: int = BATCH) -> list[pa.RecordBatch]:
    present = [0 if key is None else key for key in keys]
    mask = np.array([key is None for key in keys], dtype=bool)
    column = pa.array(hashes(present).view(np.int64), mask=mask) if len(keys) else pa.array([], pa.int64())
    return [pa.RecordBatch.from_arrays([column[i : i + size]], ["key"]) for i in range(0, len(keys), size)]


def figures_of(
    keys: Any, *, size: int = BATCH, sample: int = ALL, max_batch: int = 1, cache_rows: int = ALL, partition: int = 0
) -> TaskFigures:
    return Survey(sample, max_batch, cache_rows).figures(partition, iter(batches_of(list(keys), size)))


# -- a task


@given(st.lists(st.none() | st.integers(0, 20), max_size=60), st.integers(1, 10), st.integers(1, 4), st.integers(1, 25))
def test_a_task_counts_what_enrich_would_ask_for(
    keys: list[int | None], size: int, max_batch: int, cache_rows: int
) -> None:
    lookups = calls = misses = miss_calls = 0
    cache: OrderedDict[int, None] = OrderedDict()
    for start in range(0, len(keys), size):
        distinct = [*dict.fromkeys(key for key in keys[start : start + size] if key is not None)]
        missed = 0
        for key in distinct:
            missed += key not in cache
            cache[key] = None
            cache.move_to_end(key)
            if len(cache) > cache_rows:
                cache.popitem(last=False)
        lookups += len(distinct)
        calls += -(-len(distinct) // max_batch)
        misses += missed
        miss_calls += -(-missed // max_batch)
    told = figures_of(keys, size=size, max_batch=max_batch, cache_rows=cache_rows)
    assert (told.lookups, told.calls, told.misses, told.miss_calls) == (lookups, calls, misses, miss_calls)
    assert (told.rows, told.nulls, told.cut) == (len(keys), keys.count(None), False)
    assert told.sketch.distinct() == len(set(keys) - {None})


def test_a_task_looks_at_no_more_than_it_has_to() -> None:
    read = 0

    def batches() -> Any:
        nonlocal read
        for batch in batches_of(range(10_000)):
            read += 1
            yield batch

    told = Survey(2500, 1, ALL).figures(0, batches())
    assert (told.rows, told.lookups, told.cut) == (3000, 3000, True)
    assert read == 4
    assert not figures_of(range(3000), sample=3000).cut


# -- distinct keys


DATA: dict[str, Keys] = {
    "all equal": lambda random: np.zeros(ROWS, int),
    "uniform, 100 rows a key": lambda random: random.integers(0, ROWS // 100, ROWS),
    "uniform, 30 rows a key": lambda random: random.integers(0, ROWS // 30, ROWS),
    "uniform, 3 rows a key": lambda random: random.integers(0, ROWS // 3, ROWS),
    "all distinct": lambda random: np.arange(ROWS),
    "sorted, 30 rows a key": lambda random: np.arange(ROWS) // 30,
    "Zipf, exponent 1.3": lambda random: np.minimum(random.zipf(1.3, ROWS), 50_000),
}

PAGE = Path(__file__).resolve().parents[3] / "docs" / "watch.md"
TOLD = {
    cells[0]: [float(cell) for cell in cells[1:]]
    for line in PAGE.read_text(encoding="utf-8").partition("## From a sample")[2].splitlines()
    if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 5 and re.fullmatch(r"[\d.]+", cells[1])
}
"""What the page says of each: the estimate over the truth, of all rows, of a third, of a tenth, of a hundredth."""


def test_the_page_tells_how_good_the_estimate_is_for_all_data_that_is_tested() -> None:
    assert list(TOLD) == list(DATA)


@pytest.mark.parametrize("data", DATA)
def test_distinct_keys_of_all_rows_are_told_within_five_percent(data: str) -> None:
    keys = DATA[data](np.random.default_rng(1)) + 10**7
    truth = len(np.unique(keys))
    told = figures_of(keys.tolist()).sketch.distinct()
    assert told == truth if truth < SIZE else told == pytest.approx(truth, rel=0.05)


@pytest.mark.parametrize(("column", "part"), [(1, 3), (2, 10)])
@pytest.mark.parametrize("data", DATA)
def test_distinct_keys_from_a_sample_are_as_good_as_the_page_says(data: str, column: int, part: int) -> None:
    keys = DATA[data](np.random.default_rng(part))
    told = figures_of(keys.tolist(), sample=ROWS // part)
    assert told.rows == ROWS // part
    assert told.sketch.distinct(1 / part) / len(np.unique(keys)) == pytest.approx(TOLD[data][column], abs=0.06)


@given(st.lists(st.lists(st.integers(0, 200), max_size=30), max_size=6), st.randoms())
def test_sketches_merge_in_any_order_to_that_of_all(parts: list[list[int]], random: Any) -> None:
    told = [figures_of(part, size=7).sketch for part in parts]
    random.shuffle(told)
    merged = Sketch()
    for sketch in told:
        merged = merged.merged(sketch)
    assert merged.distinct() == len({key for part in parts for key in part})


# -- tasks together

PACE = 10, 0.5  # Calls in flight, and seconds of each.


@pytest.mark.parametrize(
    ("calls", "limit", "seconds"),
    [
        (0, RateLimit(5), 0.0),
        (1, RateLimit(5), 0.5),
        (10, RateLimit(10), 0.5),
        (100, RateLimit(1000), 5.0),
        (100, RateLimit(5), 19.5),
        (101, RateLimit(5), 20.5),
        (100, RateLimit(5, per=2.0), 38.5),
        (100, RateLimit(5, burst=50), 9.5),
        (5, RateLimit(5), 0.5),
    ],
)
def test_G13_calls_take_their_latency_and_what_the_limit_of_all_tasks_demands(
    calls: int, limit: RateLimit, seconds: float
) -> None:
    limited = budget_seconds(Budget("rate", limit), {"calls": calls}, 0.5)
    total = worked_off([figures_of([])], 1, *PACE, lambda _worker, _task: (calls, calls))
    assert max(total.seconds, limited) == pytest.approx(seconds)


def test_tasks_go_to_the_worker_that_is_free_first() -> None:
    sizes = [100, 10, 10, 10, 10]
    tasks = [figures_of(range(size)) for size in sizes]
    for workers, expected in [(1, 7.0), (2, 5.0), (5, 5.0)]:
        total = worked_off(tasks, workers, *PACE, Whole(tasks, None).asked)
        assert (total.lookups, total.calls) == (140, 140)
        assert total.seconds == pytest.approx(expected)


def test_a_worker_with_a_cache_asks_for_what_its_earlier_tasks_have_not_had() -> None:
    parts = [range(100), range(100), range(50, 150), range(1000, 1100)]
    tasks = [figures_of(part) for part in parts]
    whole = Whole(tasks, None)
    for workers, lookups in [(1, 250), (2, 350), (4, 400)]:
        assert worked_off(tasks, workers, *PACE, Caches(whole, 1000).asked).lookups == lookups


def test_a_cache_that_is_too_small_is_worth_what_it_keeps() -> None:
    keys = [*range(100)] * 10
    small, large = figures_of(keys, size=50, cache_rows=60), figures_of(keys, size=50, cache_rows=100)
    assert small.misses == 1000
    assert worked_off([small], 1, *PACE, Caches(Whole([small], None), 60).asked).lookups == 1000
    assert worked_off([large], 1, *PACE, Caches(Whole([large], None), 100).asked).lookups == 100


def test_what_was_not_looked_at_is_like_what_was() -> None:
    tasks = [figures_of(range(3000), sample=1000), figures_of(range(5000, 5500))]
    whole = Whole(tasks, 3500)
    assert [whole.factor(one) for one in tasks] == [3.0, 1.0]
    assert whole.part(tasks) == pytest.approx(1500 / 3500)
    assert worked_off(tasks, 1, *PACE, whole.asked).lookups == 3500
    assert whole.distinct(tasks) == pytest.approx(3500)
