"""Python workers that are killed at random moments.

Spark makes a task again whose worker is gone, as often as `spark.task.maxFailures` says: then it costs no row. With one
attempt, as in ``local[2]``, the job fails with one clear error. test_cluster.py does the same to a whole executor.
"""

from __future__ import annotations

import random
import signal
import threading

import pytest

from tests.faults.outsides import over_http
from tests.faults.programs import end_program, line_of, spark_program
from tests.spark.helpers import GONE, python_workers, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.faults]


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
