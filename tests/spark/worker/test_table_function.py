"""Table functions under a PySpark that calls them in another way: rows come whole, or the task fails. No session."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StructField, StructType

from asyncio_operator import StateError
from asyncio_operator.spark.driver.build_task import EnrichOptions, enrich_task
from asyncio_operator.spark.worker.table_function import WORTH_A_TRIP, Analyzed, Call, table_function
from asyncio_operator.spark.worker.task_frame import ASKED
from enrichers import FunctionEnricher
from tests.spark.helpers import FROM_4_0

pytestmark = FROM_4_0

NAMES = ["id", "x"]


async def ten_times(key: int) -> Any:
    return {"x": 10 * key}


def functions() -> Iterator[Any]:
    """What PySpark has in a task: one object for each partition."""
    enricher = FunctionEnricher(ten_times, "x long")
    task, schema = enrich_task(StructType([StructField("id", LongType())]), enricher, EnrichOptions(on="id"))
    made = table_function(lambda arguments, named: Analyzed(schema), cloudpickle.dumps(task))
    call = Call(task, schema)
    while True:
        yield made(Analyzed(schema, call=call))


def rows(*ids: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())})


def ids(batches: Iterator[pa.RecordBatch]) -> list[int]:
    found: list[int] = []
    for batch in batches:
        assert batch.schema.names == NAMES
        assert batch.column(1).to_pylist() == [10 * key for key in batch.column(0).to_pylist()]
        found += batch.column(0).to_pylist()
    return found


def _process_arrow_batch_by_partitions(function: Any) -> list[int]:
    """Where PySpark ends a partition that is not the last."""
    return ids(function.terminate())


def test_X1_partitions_of_one_task_share_a_run_and_small_ones_a_trip() -> None:
    made, batch, got = functions(), rows(*range(WORTH_A_TRIP + 50)), []
    function = next(made)
    for i in range(batch.num_rows):
        if i > 0:
            got += _process_arrow_batch_by_partitions(function)
            function = next(made)
        got += ids(function.eval(batch.slice(i, 1)))
    got += ids(function.terminate())
    function.cleanup()
    assert got == list(range(batch.num_rows))


def test_X1_where_the_end_of_a_partition_looks_like_that_of_the_rows_each_is_waited_for() -> None:
    for i, function in zip(range(3), functions(), strict=False):
        got = ids(function.eval(rows(i, i + 10)))
        assert got + ids(function.terminate()) == [i, i + 10]
        if i == 2:
            function.cleanup()


def test_X1_rows_that_nobody_has_taken_fail_the_task() -> None:
    function = next(functions())
    list(function.eval(rows(1, 2)))
    with pytest.raises(StateError, match="before all of its rows were taken"):
        function.cleanup()


def test_X7_a_task_that_fails_or_ends_early_keeps_its_error() -> None:
    function = next(functions())
    list(function.eval(rows(1, 2)))
    while next(function._call._outputs) is not ASKED:
        """Until the feeder has asked for the next batch, for which it then waits."""

    def failing() -> None:
        try:
            raise ValueError("of the reader")
        finally:
            function.cleanup()

    with pytest.raises(ValueError, match="of the reader"):
        failing()
    feeders = [thread for thread in threading.enumerate() if thread.name == "asyncio-operator-feeder"]
    for thread in feeders:
        thread.join(5)
        assert not thread.is_alive(), "it waits for the next batch"


def test_X1_a_task_without_rows_gives_none() -> None:
    function = next(functions())
    assert list(function.terminate()) == []
    function.cleanup()
