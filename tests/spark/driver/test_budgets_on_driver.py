"""A budget on the driver: checked there, registered there, and divided where tasks cannot reach it."""

from __future__ import annotations

import asyncio
import logging
import math
import pickle
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from asyncio_operator import AsyncWaitOperator, Budget, BudgetExceeded, ConfigurationError, Limit, RateLimit
from asyncio_operator.errors import ResultError
from asyncio_operator.quota.spec import warn_once
from asyncio_operator.spark import async_udf, enrich, map_partitions, plan, register_lookup
from asyncio_operator.spark.driver import budgets
from asyncio_operator.spark.driver.budgets import JobLimits, check_weights, cores, divided, reachable, slots
from asyncio_operator.spark.driver.driver_service import PORT, driver_address
from asyncio_operator.spark.worker.driver_wire import DriverAddress
from enrichers import FunctionEnricher
from tests.spark.helpers import FROM_4_1, wait_until

ADDRESS = DriverAddress("driver.example", 1234, b"t" * 32)


async def look_up(key: int) -> Any:
    return {"x": key}


class Weighing(FunctionEnricher):
    def weigh(self, keys: Any) -> dict[str, float]:
        return {"usd": 2.0 + len(keys)}


ENRICHER = FunctionEnricher(look_up, "x long")


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    warn_once.cache_clear()


def test_G9_a_divided_budget_never_exceeds_the_whole_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    whole = Budget("b", Limit(100, 60, "calls", 7), Limit(10.0, 1, "tokens"), in_flight=9)
    parts = [divided(whole, 4) for _ in range(3)]
    assert parts[0] == Budget("b", Limit(25, 60, "calls", 1), Limit(2.5, 1, "tokens"), in_flight=2)
    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "each of 4 tasks at once gets a part of the budget 'b'" in warning


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (Budget("b", Limit(3, 60)), "the rate of calls of the budget 'b' is 3 on Spark Connect, but 4 tasks run"),
        (Budget("b", in_flight=3), "in_flight of the budget 'b' is 3"),
        (Budget("b", spend={"usd": 1.0}), "has a spend limit"),
    ],
)
def test_G9_what_cannot_be_divided_is_refused_with_the_remedy(budget: Budget, message: str) -> None:
    with pytest.raises(ConfigurationError, match="coordinator") as caught:
        divided(budget, 4)
    assert message in str(caught.value)


def test_the_address_of_the_driver_travels_with_a_budget_and_is_not_shown() -> None:
    budget = budgets.with_reach(Budget("b", in_flight=1), ADDRESS)
    arrived = pickle.loads(pickle.dumps(budget))
    assert arrived == budget == Budget("b", in_flight=1)
    assert arrived.reach("b").shown == "the driver at driver.example:1234"
    assert "tttt" not in repr(budget) + repr(arrived.reach)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": Budget("b", in_flight=1, coordinator="redis://:s3cret@x@y")}, "not shown, it may hold a password"),
        ({"budget": Budget("b", in_flight=1, coordinator="postgresql://u:s3cret@y:x")}, "port"),
    ],
)
@FROM_4_1
def test_X4_a_wrong_budget_is_refused_on_the_driver(spark: SparkSession, options: dict[str, Any], message: str) -> None:
    for face in (
        lambda: enrich(spark.range(5), ENRICHER, on="id", **options),
        lambda: register_lookup(spark, "with_budget", ENRICHER, on="id", **options),
    ):
        with pytest.raises(ConfigurationError) as caught:
            face()
        assert message in str(caught.value)
        assert "s3cret" not in str(caught.value)


@pytest.mark.spark
def test_G6_a_call_without_keys_that_passes_a_spend_limit_is_refused_on_the_driver(spark: SparkSession) -> None:
    with pytest.raises(BudgetExceeded, match=r"weighs 2 usd, and the budget 'b' allows 1\.5 in total") as caught:
        enrich(spark.range(5), Weighing(look_up, "x long"), on="id", budget=Budget("b", spend={"usd": 1.5}))
    assert (caught.value.unit, caught.value.limit, caught.value.spent) == ("usd", 1.5, 0.0)


def test_G6_a_call_without_keys_that_needs_all_that_may_be_spent_is_taken_on_the_driver() -> None:
    check_weights(Budget("b", spend={"usd": 2.0}), "a lookup", Weighing(look_up, "x long").weigh)


def _length_of_the_first(values: Any) -> Any:
    return {"usd": len(str(values[0]))}


@pytest.mark.spark
@FROM_4_1
def test_what_weighs_needs_a_value_and_what_it_returns_is_checked_on_the_driver(spark: SparkSession) -> None:
    budget = Budget("weighed", spend={"usd": 100.0})

    def faces(weigh: Any) -> list[Callable[[], Any]]:
        async def call(value: int) -> int:
            return value

        call.weigh = weigh  # type: ignore[attr-defined]
        enricher = FunctionEnricher(look_up, "x long")
        enricher.weigh = weigh  # type: ignore[method-assign]
        return [
            lambda: enrich(spark.range(5), enricher, on="id", budget=budget),
            lambda: map_partitions(spark.sparkContext.range(5), call, budget=budget),
            lambda: async_udf("long", budget=budget)(call)("id"),
        ]

    for face in faces(_length_of_the_first):
        face()
    for weights, message in ((None, "is None"), ({"usd": math.nan}, "['usd'] is nan"), ({"calls": 1}, "unit 'calls'")):
        for face in faces(lambda values, weights=weights: weights):
            with pytest.raises(ConfigurationError) as caught:
                face()
            assert message in str(caught.value)
            assert "weigh([])" in str(caught.value)


@pytest.mark.spark
@pytest.mark.parametrize("columns", [1, 2])
@FROM_4_1
def test_G4_a_column_function_weighs_its_calls(spark: SparkSession, columns: int) -> None:
    async def add(value: int, more: int = 0) -> int:
        return value + more

    # One argument is a value, several are a tuple.
    add.weigh = lambda values: {"tokens": values[0] if columns == 1 else sum(values[0])}  # type: ignore[attr-defined]
    budget = Budget(f"weighed columns {columns}", Limit(1000, 60.0, "tokens"))
    rows = spark.range(1, 6, 1, 1).select(async_udf("long", budget=budget)(add)(*["id"] * columns).alias("sum"))
    assert [row.sum for row in rows.collect()] == [columns * n for n in range(1, 6)]
    wait_until(lambda: budget.statistics().units["tokens"].used == columns * 15, 5, "the tokens are counted")


@pytest.mark.spark
def test_a_plan_names_what_fails_to_weigh(spark: SparkSession) -> None:
    enricher = FunctionEnricher(look_up, "x long")
    enricher.weigh = lambda keys: {"usd": 1 / len(keys[0:0])}  # type: ignore[method-assign]
    with pytest.raises(ResultError, match=r"weigh failed for \[.*\] with ZeroDivisionError"):
        plan(spark.range(5), enricher, on="id", budget=Budget("unweighed", spend={"usd": 100.0}))


@pytest.mark.spark
def test_a_plan_tells_calls_time_and_weight_under_a_budget(spark: SparkSession) -> None:
    budget = Budget("planned", Limit(100, 1.0), in_flight=50, spend={"usd": 2000.0})
    told = plan(spark.range(0, 1000, 1, 1), Weighing(look_up, "x long"), on="id", budget=budget, latency=0.02)
    assert told.weights == {"calls": 1000, "keys": 1000, "usd": 3000.0}
    assert told.seconds == pytest.approx(9.02)
    assert "Estimated 3,000 usd exceeds the limit of 2,000 usd" in str(told)


@pytest.mark.spark
def test_a_unit_that_an_enricher_does_not_weigh_is_a_warning_once(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        enrich(spark.range(5), ENRICHER, on="id", budget=Budget("units", Limit(10, 1, "tokens"), Limit(5, 1, "keys")))
        enrich(spark.range(5), Weighing(look_up, "x long"), on="id", budget=Budget("units", Limit(10, 1, "tokens")))
    [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "weighs its calls in no unit of its own, and the budget 'units' limits tokens" in warning


@pytest.mark.spark
def test_the_service_of_the_driver_is_one_for_the_application_and_never_there_on_connect(spark: SparkSession) -> None:
    def reach(budget: Budget) -> Any:
        reached: Any = reachable(spark, budget, lambda: 1).reach
        return reached.args

    assert reach(Budget("one", in_flight=1)) == reach(Budget("other", in_flight=1))

    remote: Any = Remote()
    assert driver_address(remote) is None
    assert reachable(remote, Budget("one", Limit(8)), lambda: 4).limits == (Limit(2),)


def session_with(port: str) -> Any:
    context = SimpleNamespace(getConf=lambda: {"spark.driver.host": "127.0.0.1"}, _jsc=object())
    return SimpleNamespace(sparkContext=context, conf={PORT: port})


@pytest.mark.parametrize("text", ["http", "-1", "70000", "1.5"])
def test_a_port_that_is_none_is_refused_with_what_it_may_be(text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{PORT} is '{text}'; it must be a port from 1 to 65535, or 0"):
        driver_address(session_with(text))


def test_a_port_that_is_taken_is_named_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"cannot listen at 127.0.0.1:{port}.*set {PORT} to a free"):
            driver_address(session_with(str(port)))


# -- G13: `rate_limit` is for all tasks of a job, and divided where tasks do not reach the driver


class Remote:
    """A session of Spark Connect, as far as limits see it."""

    def __init__(self, dynamic: str = "false") -> None:
        self.conf = {"spark.dynamicAllocation.enabled": dynamic}

    @property
    def sparkContext(self) -> Any:
        raise RuntimeError("there is none")


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
