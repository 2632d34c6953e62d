"""Budgets on a real Spark Connect session: tasks share one at Redis (law G1), or divide its limits (law G9)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.test_budgets import assert_no_window_holds_more_than_allowed, starts
from tests.redis_service import RedisServer, needs_redis

pytestmark = [pytest.mark.spark, pytest.mark.faults]

RATE, PER, ROWS = 20, 1.0, 160

PROGRAM = """
import logging, os, sys
from pyspark.sql import SparkSession
from asyncio_operator import Budget, ConfigurationError, Limit
from asyncio_operator.spark import enrich
from enrichers import FunctionEnricher

log, at, rate, per, rows = sys.argv[1], sys.argv[2] or None, int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
logging.basicConfig(stream=sys.stdout, format="%(message)s", force=True)


def logged(path):
    async def look(key):
        import asyncio, os
        from asyncio_operator.quota.usage import running

        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"start {running.get().let_start} {os.getpid()} {key}\\n".encode())
        os.close(file)
        await asyncio.sleep(0.02)
        return {"answer": -key}

    return look


spark = SparkSession.builder.remote(os.environ["REMOTE"]).getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect"), type(spark)
budget = Budget("on Connect", Limit(rate, per), coordinator=at)
# With weights of its own each call has an object, which knows when it was let start.
lookup = FunctionEnricher(logged(log), "answer long", weigh=lambda keys: {"watched": 1.0})
keys = spark.range(0, rows, 1, 4)
for _ in range(2):
    found = enrich(keys, lookup, on="id", budget=budget, timeout=120, remember=None).collect()
    assert sorted(row.answer for row in found) == [-key for key in reversed(range(rows))]
if at is None:
    try:
        enrich(keys, lookup, on="id", budget=Budget("spends", spend={"usd": 1.0}))
    except ConfigurationError as error:
        print(error)
else:
    print("used", budget.statistics().units["calls"].used)
spark.stop()
"""


def run(connect: Callable[..., str], log: Path, at: str) -> tuple[list[str], float]:
    """What a program prints that enriches all rows twice, and the part of the limit that it used."""
    printed = connect(PROGRAM, str(log), at, str(RATE), str(PER), str(ROWS)).splitlines()
    assert_no_window_holds_more_than_allowed(log, RATE, PER)
    times = starts(log)
    assert len(times) == 2 * ROWS
    # Between the two jobs nothing starts for a moment.
    return printed, (len(times) - RATE) * PER / RATE / (times[-1] - times[0])


def test_G1_G2_tasks_on_connect_share_a_budget_in_redis(connect: Callable[..., str], tmp_path: Path) -> None:
    needs_redis()
    with RedisServer() as server:
        printed, part = run(connect, tmp_path / "log", server.url)
        assert printed[-1].startswith("used ")
        assert float(printed[-1].split()[1]) <= RATE
        assert server.password not in "".join(printed)
    assert part >= 0.6


def test_G2_G9_without_a_coordinator_tasks_on_connect_divide_a_budget_and_say_so_once(
    connect: Callable[..., str], tmp_path: Path
) -> None:
    printed, part = run(connect, tmp_path / "log", "")
    assert sum("each of 2 tasks at once gets a part of the budget 'on Connect'" in line for line in printed) == 1
    assert "the budget 'spends' has a spend limit, and on Spark Connect no task reaches the driver" in printed[-1]
    assert part >= 0.6
