"""X11: with how="required" a key without a row fails the task, with the enricher and the key, by every way."""

from __future__ import annotations

import asyncio
import pickle
import traceback
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from asyncio_operator import Batching, Cache, EnricherError, MissingKeyError, Retry
from asyncio_operator.lookup.answers import missing_key_error
from asyncio_operator.spark import enrich, enrich_with
from enrichers import BlockingEnricher, FunctionEnricher, PostgresEnricher
from tests.spark.helpers import in_partitions
from tests.spark.worker.tasks import chained, rows_of, task_for


async def known(key: int) -> Any:
    """Keys up to 9 have a row, or two; others have none, but for multiples of 100, which fail."""
    if key % 100 == 0 and key:
        raise ValueError("boom")
    return [{"x": key}, {"x": -key}] if key == 7 else {"x": key} if key < 10 else [] if key % 2 else None


KNOWN = FunctionEnricher(known, "x long")


def known_of_many(keys: Any) -> list[Any]:
    return [asyncio.run(known(key)) for key in keys]


BATCHES = BlockingEnricher(None, "x long", function_many=known_of_many, max_batch=5)

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "managed": {"retry": Retry(max_attempts=1)},
    "cache": {"cache": Cache()},
    "batches": {"batching": Batching(3)},
}


# -- without Spark


def run(keys: list[int | None], way: str, *, drop: bool = False, status: bool = False, **options: Any) -> list[Any]:
    """The rows of a task over batches of three."""
    layout = {"required": True, "drop_failed": drop, "status": status, "timed": status}
    task = task_for(BATCHES if way == "batches" else KNOWN, **layout, **WAYS[way], **options)
    rows = pa.RecordBatch.from_pydict({"id": pa.array(keys, pa.int64())})
    return rows_of(chained([task], [rows.slice(start, 3) for start in range(0, len(keys), 3)]))


@given(
    keys=st.lists(st.sampled_from([0, 1, 7, 9, 100]), max_size=8),
    missing=st.none() | st.tuples(st.integers(0, 8), st.sampled_from([None, 11, 12])),
    way=st.sampled_from(sorted(WAYS)),
    ordered=st.booleans(),
    drop=st.booleans(),
    status=st.booleans(),
)
def test_X11_a_miss_fails_the_task_whatever_is_asked_of_failures(
    keys: list[int | None], missing: tuple[int, int | None] | None, way: str, ordered: bool, drop: bool, status: bool
) -> None:
    if missing is not None:
        keys = [*keys[: missing[0]], missing[1], *keys[missing[0] :]]
        with pytest.raises(MissingKeyError, match=rf" has no row for key {missing[1]}") as raised:
            run(keys, way, drop=drop, status=status, fail=False, ordered=ordered)
        assert raised.value.key == str(missing[1])
        assert raised.value.retryable is False
        return
    rows = run(keys, way, drop=drop, status=status, fail=False, ordered=ordered)
    expected: list[tuple[int | None, int | None]] = []
    for key in keys:
        if key == 100:
            expected += [] if drop else [(100, None)]
        else:
            expected += [(key, 7), (key, -7)] if key == 7 else [(key, key)]
    assert sorted(((row["id"], row["x"]) for row in rows), key=repr) == sorted(expected, key=repr)


def test_X11_a_part_that_is_null_is_a_miss_and_the_key_is_told_as_a_whole() -> None:
    batch = pa.RecordBatch.from_pydict({"a": ["x"], "b": pa.array([None], pa.int64())})
    with pytest.raises(MissingKeyError, match=r"for key \(None, 'x'\): a part of it is null"):
        rows_of(chained([task_for(KNOWN, 1, 0, required=True)], [batch]))


def test_X11_the_error_travels_and_shows_no_secret_and_a_short_key() -> None:
    postgres = PostgresEnricher("postgresql://me:sEcReT@localhost/shop", table="planes", key="tailnum")
    error = missing_key_error(postgres, "x" * 500)
    copy: Any = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, MissingKeyError)
    assert isinstance(copy, EnricherError)
    assert (str(copy), copy.key, copy.retryable) == (str(error), error.key, False)
    assert len(error.key) == 200
    shown = "".join(traceback.format_exception(error))
    assert "localhost" in shown
    assert "sEcReT" not in shown
    assert "x" * 200 not in shown


# -- in Spark


@pytest.mark.spark
@pytest.mark.parametrize("strategy", ["inline", "distinct"])
def test_X11_a_job_fails_with_the_enricher_and_the_key_or_gives_every_row(spark: SparkSession, strategy: str) -> None:
    good = in_partitions(spark, [(1,), (7,), (9,), (1,)], "id long", 2)
    options: dict[str, Any] = {"on": "id", "how": "required", "strategy": strategy, "on_error": "null"}
    rows = enrich(good, KNOWN, status_column="told", **options).collect()
    assert sorted((row.id, row.x, row.told.status) for row in rows) == [
        *((key, x, "found") for key, x in ((1, 1), (1, 1), (7, -7), (7, 7), (9, 9)))
    ]
    key = 11 if strategy == "inline" else None
    bad = good.union(in_partitions(spark, [(key,)], "id long", 1))
    with pytest.raises(PythonException) as raised:
        # Spark may leave a join out whose columns are not used.
        bad.transform(enrich_with(KNOWN, **options)).select("id").distinct().collect()
    assert "asyncio_operator.errors.MissingKeyError: FunctionEnricher(" in str(raised.value)
    assert f"known, x) has no row for key {key}" in str(raised.value)
    assert 'how="required" fails the task for that' in str(raised.value)
