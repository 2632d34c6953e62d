"""The whole path: rows of a DataFrame, a real Spark, a real PostgreSQL."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator import Cache, Journal
from asyncio_operator.spark import enrich, register_lookup
from enrichers import PostgresEnricher
from tests.servers import PostgresServer

pytestmark = pytest.mark.spark

TABLES = """
    DROP SCHEMA IF EXISTS shop CASCADE;
    CREATE SCHEMA shop;
    CREATE TABLE shop.customers (id int PRIMARY KEY, name text, "home.town" text);
    INSERT INTO shop.customers SELECT i, 'n' || i, CASE WHEN i % 3 = 0 THEN NULL ELSE 't' || i END
        FROM generate_series(0, 999) AS i;
    CREATE TABLE shop.prices (product text, country text, price numeric(10, 2), PRIMARY KEY (product, country));
    INSERT INTO shop.prices VALUES ('tea', 'NL', 3.50), ('tea', 'DE', 3.25), ('ink', 'NL', 7.00);
    CREATE TABLE shop.payments (customer int, nr int);
    INSERT INTO shop.payments SELECT i, n FROM generate_series(0, 9) AS i, generate_series(1, i) AS n;
    CREATE TABLE shop.words (word text PRIMARY KEY, length int);
    INSERT INTO shop.words SELECT 'w' || i, i FROM generate_series(0, 99) AS i;
    CREATE TABLE shop.numbers (n numeric, name text);
    INSERT INTO shop.numbers VALUES (1e30, 'large'), (1e-30, 'fine'), ('NaN', 'none');
"""


@pytest.fixture
def shop(postgres: PostgresServer) -> PostgresServer:
    async def run() -> None:
        connection = await asyncpg.connect(postgres.dsn)
        await connection.execute(TABLES)
        await connection.close()

    asyncio.run(run())
    return postgres


def orders(spark: SparkSession, rows: int = 5000, partitions: int = 2) -> DataFrame:
    """Customers 0 to 1,249, of which 1,000 exist; every 50th is null."""
    return spark.range(0, rows, 1, partitions).selectExpr("id", "IF(id % 50 = 0, NULL, CAST(id % 1250 AS INT)) AS who")


def test_X1_composite_keys_and_several_rows(spark: SparkSession, shop: PostgresServer) -> None:
    prices = PostgresEnricher(shop.dsn, table="shop.prices", key=["product", "country"])
    quotes = spark.createDataFrame(
        [("NL", "tea"), ("DE", "ink"), (None, "tea"), ("NL", "ink"), ("DE", "tea")], "country string, product string"
    ).coalesce(1)
    got = [row.price for row in enrich(quotes, prices, on=["country", "product"]).collect()]
    assert [None if price is None else str(price) for price in got] == ["3.50", None, None, "7.00", "3.25"]

    payments = PostgresEnricher(
        shop.dsn,
        query="SELECT customer, nr FROM shop.payments WHERE customer = ANY ($1) ORDER BY nr DESC",
        key="customer",
    )
    people = spark.createDataFrame([(3,), (0,), (2,), (3,)], "who int").coalesce(1)
    left = [(row.who, row.nr) for row in enrich(people, payments, on={"who": "customer"}).collect()]
    assert left == [(3, 3), (3, 2), (3, 1), (0, None), (2, 2), (2, 1), (3, 3), (3, 2), (3, 1)]
    inner = enrich(people, payments, on={"who": "customer"}, how="inner").collect()
    assert [(row.who, row.nr) for row in inner] == [pair for pair in left if pair[1] is not None]


def test_L8_two_jobs_use_the_same_connections(spark: SparkSession, shop: PostgresServer) -> None:
    def connections(name: str) -> set[tuple[int, Any]]:
        found = shop.fetch(f"SELECT pid, backend_start FROM pg_stat_activity WHERE application_name = '{name}'")
        return {(row["pid"], row["backend_start"]) for row in found}

    dsn = f"{shop.dsn}&application_name=l8"
    frame = orders(spark, 500, partitions=1)
    seen: list[set[tuple[int, Any]]] = []
    for _ in range(6):
        # A specification made anew, and another capacity: the same client.
        customers = PostgresEnricher(dsn, table="shop.customers", key="id")
        assert enrich(frame, customers, on="who", capacity=3 + len(seen)).count() == 500
        seen.append(connections("l8"))
    # Idle workers take turns, and each keeps the connection of its first job.
    assert all(before <= after for before, after in itertools.pairwise(seen))
    assert len(seen[-1]) < 6


@pytest.mark.parametrize("number", ["double('NaN')", "double('Infinity')", "1e50D", "1e-50D"])
def test_X12_a_double_that_only_a_numeric_can_hold_is_an_error_of_its_key_in_sql_also_in_sql(
    spark: SparkSession, shop: PostgresServer, tmp_path: Path, number: str
) -> None:
    numbers = PostgresEnricher(shop.dsn, table="shop.numbers", key="n")
    df = spark.sql(f"SELECT explode(array(1e30D, {number}, 7D)) AS n").coalesce(1)
    faces: list[dict[str, Any]] = [
        {},
        {"cache": Cache()},
        {"journal": Journal(str(tmp_path))},
        {"strategy": "distinct"},
    ]
    for options in faces:
        rows = enrich(df, numbers, on="n", on_error="null", status_column="status", **options).collect()
        assert {row.n: (row.name, row.status.status) for row in rows if row.n in (1e30, 7.0)} == {
            1e30: ("large", "found"),
            7.0: (None, "missing"),
        }
        [failed] = [row.status for row in rows if row.n not in (1e30, 7.0)]
        assert failed.status == "failed"
        assert "the numeric column 'n' may hold it" in failed.error_message
    with pytest.raises(PythonException, match="the numeric column 'n' may hold it"):
        enrich(df, numbers, on="n").collect()
    register_lookup(spark, "numbers_of", numbers)
    df.createOrReplaceTempView("doubles")
    with pytest.raises(PythonException, match="the numeric column 'n' may hold it"):
        spark.sql("SELECT * FROM numbers_of(TABLE(doubles), on => 'n')").collect()


@pytest.mark.parametrize("on_error", ["fail", "null"])
def test_X5_a_variable_that_only_the_driver_has_is_told_as_such(
    spark: SparkSession, shop: PostgresServer, monkeypatch: pytest.MonkeyPatch, on_error: Any
) -> None:
    monkeypatch.setenv("ONLY_ON_THE_DRIVER", shop.dsn)
    customers = PostgresEnricher(lambda: os.environ["ONLY_ON_THE_DRIVER"], table="shop.customers", key="id")
    with pytest.raises(PythonException) as failed:
        enrich(orders(spark, 10), customers, on="who", on_error=on_error).collect()
    assert "could not be opened: ConfigurationError: dsn: the function" in str(failed.value)
    assert "no environment variable 'ONLY_ON_THE_DRIVER': give it to the executors" in str(failed.value)
    assert "spark.executorEnv.ONLY_ON_THE_DRIVER=" in str(failed.value)
    assert "for key" not in str(failed.value)
