"""Python workers that are killed at random moments.

Spark makes a task again whose worker is gone, as often as `spark.task.maxFailures` says: then it costs no row. With one
attempt, as in ``local[2]``, the job fails with one clear error. test_cluster.py does the same to a whole executor.
"""

from __future__ import annotations

import random
import re
import signal
import threading

import pytest
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator.spark import enrich
from tests.faults.outsides import CAPACITY, RETRY, Outside, expected, leaves_nothing, numbers, over_http
from tests.faults.programs import end_program, line_of, spark_program
from tests.spark.helpers import GONE, in_background, python_workers, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.faults]

CLEAR = "Python worker exited unexpectedly|crashed|Connection reset"
"""What Spark says of a task whose worker is gone."""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_worker_killed_at_a_random_moment_is_one_clear_error_or_none(
    spark: SparkSession, outside: Outside, seed: int
) -> None:
    drawn = random.Random(seed)
    out = enrich(numbers(spark), outside.enricher, on="id", retry=RETRY, timeout=60, capacity=CAPACITY)
    with leaves_nothing(spark, outside):
        for _ in range(4):
            thread, outcome = in_background(out.collect)
            thread.join(drawn.uniform(0.1, 0.8))
            for worker in drawn.sample(found := python_workers(), min(1, len(found))):
                worker.kill()
            thread.join(60)
            assert outcome, f"the job hangs; seed {seed}"
            if isinstance(outcome[0], Exception):
                assert re.search(CLEAR, str(outcome[0]))
            else:
                assert [tuple(row) for row in outcome[0]] == expected()
        # A worker that was killed after its job has ended is in Spark's pool, and the next task finds it dead.
        assert any(gives_all_rows(out) for _ in range(5))


def gives_all_rows(out: DataFrame) -> bool:
    """Whether a job gives all its rows. The error of a job that fails must say that a worker is gone."""
    thread, outcome = in_background(out.collect)
    thread.join(60)
    [end] = outcome
    if isinstance(end, Exception):
        assert re.search(CLEAR, str(end))
        return False
    assert [tuple(row) for row in end] == expected()
    return True


PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from asyncio_operator.spark import enrich
from enrichers import HttpEnricher

[url] = json.loads(sys.argv[1])
builder = SparkSession.builder.master("local[2,1000]").config("spark.ui.enabled", "false")
spark = builder.config("spark.excludeOnFailure.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
enricher = HttpEnricher(url + "/v/{key}", schema="v long, filler string")
rows = spark.range(0, 12_000, numPartitions=12)
out = enrich(rows, enricher, on="id", capacity=20, timeout=60).select("id", "v")
print("ready", flush=True)
print([tuple(row) for row in out.collect()] == [(key, 7 * key) for key in range(12_000)], flush=True)
sys.stdin.readline()
spark.stop()
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_workers_killed_at_random_moments_cost_no_row_where_spark_makes_tasks_again(seed: int) -> None:
    drawn, killed, lines = random.Random(seed), 0, []
    with (
        over_http(latency=0.02) as outside,
        spark_program(PROGRAM, f"http://{outside.proxy.host}:{outside.proxy.port}") as program,
    ):
        assert line_of(program) == "ready"
        result = threading.Thread(target=lambda: lines.append(line_of(program)))
        result.start()
        while result.is_alive() and killed < 8:
            result.join(drawn.uniform(0.1, 1.0))
            for worker in drawn.sample(found := python_workers(program.pid), min(1, len(found))):
                worker.send_signal(signal.SIGKILL)
                killed += 1
        result.join(90)
        assert lines == ["True"], f"rows are lost or wrong; seed {seed}, {killed} kills"
        assert killed >= 3
        wait_until(lambda: outside.proxy.open <= 2 * 20, GONE, "no connection of a killed worker is left")
        end_program(program, 60)
