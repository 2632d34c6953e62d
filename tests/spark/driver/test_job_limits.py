"""Law G13 on the driver: `rate_limit` is for all tasks of a job, and divided where tasks do not reach the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from asyncio_operator import AsyncWaitOperator, Budget, ConfigurationError, Limit, RateLimit
from asyncio_operator.budget.spec import warn_once
from asyncio_operator.lookup import Lookup
from asyncio_operator.spark import async_udf, enrich, enrich_with, map_partitions, plan, register_lookup, send
from asyncio_operator.spark.driver.budgets import JobLimits, cores, slots
from enrichers import FunctionEnricher
from tests.spark.helpers import FROM_4_1


async def look_up(key: int) -> Any:
    return {"x": key}


ENRICHER = FunctionEnricher(look_up, "x long")


class Remote:
    """A session of Spark Connect, as far as limits see it."""

    def __init__(self, dynamic: str = "false") -> None:
        self.conf = {"spark.dynamicAllocation.enabled": dynamic}

    @property
    def sparkContext(self) -> Any:
        raise RuntimeError("there is none")


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    warn_once.cache_clear()


@pytest.mark.spark
@FROM_4_1
def test_G13_scope_is_refused_by_every_face_with_what_to_write(spark: SparkSession) -> None:
    given_: dict[str, Any] = {"scope": "job"}
    df = spark.range(5)
    register_lookup(spark, "without_scope", ENRICHER, on="id")
    df.createOrReplaceTempView("no_scope")
    faces: list[Callable[[], Any]] = [
        lambda: enrich(df, ENRICHER, on="id", **given_),
        lambda: enrich_with(ENRICHER, on="id", **given_),
        lambda: plan(df, ENRICHER, on="id", **given_),
        lambda: register_lookup(spark, "scoped", ENRICHER, **given_),
        lambda: spark.sql("SELECT * FROM without_scope(TABLE(no_scope), scope => 'job')"),
        lambda: async_udf("long", **given_),
        lambda: map_partitions(df.rdd, look_up, **given_),
        lambda: send(df, ENRICHER, on="id", **given_),
        lambda: Lookup(ENRICHER, **given_),
        lambda: AsyncWaitOperator(look_up, **given_),
    ]
    for face in faces:
        with pytest.raises(
            Exception, match=r"'scope' is not an option of .*; in Spark rate_limit is for all tasks"
        ) as told:
            face()
        assert 'budget=Budget("name", in_flight=100)' in str(told.value)


@pytest.mark.parametrize("budget", [None, Budget("b", in_flight=7), Budget("b", Limit(9), coordinator="redis://host")])
@pytest.mark.spark
def test_G13_a_rate_limit_is_a_budget_that_no_other_job_has(spark: SparkSession, budget: Budget | None) -> None:
    limits = [JobLimits.of(budget, RateLimit(1000, 2.0, 5)) for _ in range(2)]
    found = [one.reaching(spark, ENRICHER) for one in limits]
    assert found[0] is not None
    assert found[1] is not None
    rates = [one if budget is None else one.beside for one in (found[0], found[1])]
    assert [one.limits for one in rates if one is not None] == [(Limit(1000, 2.0, "calls", 5),)] * 2
    assert rates[0] != rates[1]
    assert all(one is not None and one.reach is not None for one in rates)
    assert budget is None or found[0] == budget


@given(tasks=st.integers(1, 50), rate=st.integers(50, 500), burst=st.integers(0, 99))
def test_G13_the_parts_of_all_tasks_never_exceed_the_whole(tasks: int, rate: int, burst: int) -> None:
    session: Any = Remote()
    part = JobLimits.of(None, RateLimit(rate, burst=burst), tasks).reaching(session, ENRICHER)
    assert part is not None
    assert part.reach is None
    [one] = part.limits
    assert rate - tasks < one.rate * tasks <= rate
    assert (one.burst or 0) * tasks <= burst


def test_G13_a_rate_limit_of_less_than_one_for_each_task_is_refused_with_the_remedy() -> None:
    session: Any = Remote()
    with pytest.raises(
        ConfigurationError, match=r"rate_limit is 3 on Spark Connect, but 4 tasks .*coordinator="
    ) as told:
        JobLimits.of(None, RateLimit(3), 4).reaching(session, ENRICHER)
    assert "RateLimit(...)" in str(told.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks_at_once": 0, "rate_limit": 5}, "tasks_at_once is 0; it must be"),
        ({"tasks_at_once": 8}, "tasks_at_once is 8, but it has no effect without rate_limit or budget"),
    ],
)
@FROM_4_1
def test_X4_wrong_tasks_at_once_are_refused(spark: SparkSession, options: dict[str, Any], message: str) -> None:
    for face in (lambda: enrich(spark.range(5), ENRICHER, on="id", **options), lambda: async_udf("long", **options)):
        with pytest.raises(ConfigurationError) as caught:
            face()
        assert message in str(caught.value)


@pytest.mark.spark
def test_X4_the_tasks_at_once_are_those_that_the_cluster_has_places_for(spark: SparkSession) -> None:
    assert slots(spark) == cores(spark) == spark.sparkContext.defaultParallelism


def test_X4_where_the_number_of_tasks_changes_it_has_to_be_given() -> None:
    session: Any = SimpleNamespace(conf={"spark.dynamicAllocation.enabled": "true"})
    with pytest.raises(
        ConfigurationError, match=r"dynamicAllocation.enabled the number of tasks changes: pass tasks_at"
    ):
        slots(session)
    remote: Any = Remote("true")
    with pytest.raises(ConfigurationError, match="pass tasks_at_once="):
        JobLimits.of(None, RateLimit(10)).reaching(remote, ENRICHER)
    assert JobLimits.of(None, RateLimit(10), 2).reaching(remote, ENRICHER) is not None


def test_G13_a_part_holds_for_tasks_that_follow_one_another_in_a_worker() -> None:
    """The window is a day, so nothing here depends on how long anything takes."""
    session: Any = Remote()
    part = JobLimits.of(None, RateLimit(10, 86_400.0), 2).reaching(session, ENRICHER)
    made: list[int] = []

    async def noted(value: int) -> None:
        made.append(value)

    async def task(values: range) -> None:
        outputs = AsyncWaitOperator(noted, budget=part).process(values)
        try:
            async with asyncio.timeout(0.5):
                async for _ in outputs:
                    pass
        except TimeoutError:
            await outputs.aclose()

    asyncio.run(task(range(3)))
    asyncio.run(task(range(3, 9)))
    assert made == [0, 1, 2, 3, 4]
