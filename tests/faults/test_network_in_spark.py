"""What a network does to `enrich` in a real Spark: rows in are rows out, or the job fails clearly, in time.

The faults are those of test_network.py. What is left behind is asked of the workers and of the proxy.
"""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from asyncio_operator import FixedBackoff, Retry
from asyncio_operator.spark import enrich
from tests.faults.outsides import CAPACITY, LASTING, PASSING, RETRY, SILENT, Outside, expected, leaves_nothing, numbers

pytestmark = [pytest.mark.spark, pytest.mark.faults]

QUICK = Retry(max_attempts=3, backoff=FixedBackoff(0.01))


@pytest.mark.parametrize("fault", PASSING)
def test_a_fault_that_passes_costs_no_row(spark: SparkSession, outside: Outside, fault: str) -> None:
    attempt = 1.0 if "black" in fault else 20.0
    out = enrich(
        numbers(spark), outside.enricher, on="id", retry=RETRY, attempt_timeout=attempt, timeout=60, capacity=CAPACITY
    )
    with leaves_nothing(spark, outside):
        outside.proxy.set(PASSING[fault])
        assert [tuple(each) for each in out.collect()] == expected()
        assert outside.proxy.struck == PASSING[fault].times, "the fault has not happened"


@pytest.mark.parametrize("fault", LASTING)
def test_a_fault_that_lasts_fails_the_job_of_one_clear_error_and_the_next_job_works(
    spark: SparkSession, outside: Outside, fault: str
) -> None:
    mode, http, postgres = LASTING[fault]
    timeout = 0.5 if fault in SILENT else 60.0
    out = enrich(numbers(spark), outside.enricher, on="id", retry=QUICK, timeout=timeout, capacity=CAPACITY)
    with leaves_nothing(spark, outside):
        outside.proxy.set(mode)
        with pytest.raises(Exception, match=http if outside.name == "http" else postgres) as caught:
            out.collect()
        assert "failed for key" in str(caught.value)
        assert type(outside.enricher).__name__ in str(caught.value)
        outside.proxy.pass_on()
        patient = enrich(numbers(spark), outside.enricher, on="id", retry=RETRY, timeout=60, capacity=CAPACITY)
        assert [tuple(each) for each in patient.collect()] == expected()
