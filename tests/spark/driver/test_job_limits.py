"""`scope="job"`: the tasks that run at once get their shares of what is given for the job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from asyncio_operator import AdaptiveCapacity, ConfigurationError, RateLimit
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.spark import enrich
from asyncio_operator.spark.driver.job_limits import cores, shared_out, slots
from enrichers import FunctionEnricher


async def look_up(key: int) -> Any:
    return {"x": key}


ENRICHER = FunctionEnricher(look_up, "x long")


@given(tasks=st.integers(1, 50), capacity=st.integers(50, 500), rate=st.integers(50, 500), burst=st.integers(0, 99))
def test_R10_the_shares_of_all_tasks_never_exceed_the_whole(tasks: int, capacity: int, rate: int, burst: int) -> None:
    given_ = LookupOptions(capacity=capacity, rate_limit=RateLimit(rate, burst=burst))
    one = shared_out(given_, "job", tasks)
    assert isinstance(one.capacity, int)
    assert one.rate_limit is not None
    assert capacity - tasks < one.capacity * tasks <= capacity
    assert rate - tasks < one.rate_limit.rate * tasks <= rate
    assert (one.rate_limit.burst or 0) * tasks <= burst
    assert shared_out(given_, "task", None) == given_


@given(tasks=st.integers(1, 20), maximum=st.integers(20, 500), data=st.data())
def test_R11_the_most_of_an_adaptive_capacity_is_shared_too(tasks: int, maximum: int, data: st.DataObject) -> None:
    minimum = data.draw(st.integers(1, maximum))
    initial = data.draw(st.integers(minimum, maximum))
    one = shared_out(LookupOptions(capacity=AdaptiveCapacity(initial, minimum, maximum)), "job", tasks).capacity
    assert isinstance(one, AdaptiveCapacity)
    assert one.maximum * tasks <= maximum
    assert one.minimum <= one.initial <= one.maximum


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 3}, "capacity is 3 for the job, but 4 tasks run at once"),
        ({"rate_limit": RateLimit(3)}, "rate_limit.rate is 3 for the job"),
        ({"capacity": AdaptiveCapacity(1, 1, 3)}, "capacity.maximum is 3 for the job"),
    ],
)
def test_X4_what_cannot_be_shared_is_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        shared_out(LookupOptions(**options), "job", 4)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks_at_once": 0}, "tasks_at_once is 0; it must be"),
        ({"scope": "task", "tasks_at_once": 8}, 'tasks_at_once is 8, but it has no effect without scope="job"'),
        ({"scope": "all"}, 'scope is \'all\'; it must be "task" | "job"'),
    ],
)
def test_X4_a_wrong_scope_is_told(spark: SparkSession, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        enrich(spark.range(5), ENRICHER, on="id", **{"scope": "job", **options})
    assert message in str(caught.value)


@pytest.mark.spark
def test_X4_the_tasks_at_once_are_those_that_the_cluster_has_places_for(spark: SparkSession) -> None:
    assert slots(spark) == cores(spark) == spark.sparkContext.defaultParallelism
    rows = enrich(spark.range(50), ENRICHER, on="id", scope="job", capacity=10, rate_limit=RateLimit(10_000)).collect()
    assert [row.x for row in rows] == list(range(50))


def test_X4_where_nobody_knows_the_number_of_tasks_it_has_to_be_given() -> None:
    with pytest.raises(ConfigurationError, match="pass tasks_at_once=, the number of tasks"):
        shared_out(LookupOptions(), "job", None)
    session: Any = SimpleNamespace(conf={"spark.dynamicAllocation.enabled": "true"})
    with pytest.raises(ConfigurationError, match=r"dynamicAllocation.enabled: pass tasks_at_once="):
        slots(session)
