"""A table in PostgreSQL as a table function of SQL: the customers of orders, found with SQL only.

    python -m examples.sql_lookup
    python -m examples.sql_lookup --orders 100000

The program starts a PostgreSQL, loads customers into it, registers the enricher as `with_customer`, and runs three
queries: all rows with their customers, the rows of each country in their order, and one that is refused before it runs.
`register` and `QUESTIONS` are worth copying. The rest starts the servers and prints.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from typing import TYPE_CHECKING

from asyncio_operator import Cache
from examples.stage import Stage, cause, embedded_postgres, local_spark, positive, require_java, run, step, workspace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CUSTOMERS = 1_000
ORDERS = 20_000

QUESTIONS = {
    "The customers with the most orders": """
        SELECT customer_name, count(*) AS orders, sum(amount) AS amount
        FROM with_customer(TABLE(orders), how => 'inner')
        GROUP BY customer_name ORDER BY orders DESC, customer_name LIMIT 3
    """,
    "The largest order of each country, and whether its customer is known": """
        WITH looked_up AS (
            SELECT * FROM with_customer(
                TABLE(orders) PARTITION BY country ORDER BY (amount DESC, id), status_column => 's')
        )
        SELECT country, max_by(id, amount) AS id, max(amount) AS amount, max_by(s.status, amount) AS customer
        FROM looked_up GROUP BY country ORDER BY country
    """,
    "A question that is refused": "SELECT * FROM with_customer(TABLE(orders), how => 'outer')",
}


def register(spark: SparkSession, dsn: str) -> None:
    """Make the table a function of SQL. The options here are the defaults of every call."""
    from asyncio_operator.spark import register_lookup
    from enrichers import PostgresEnricher

    customers = PostgresEnricher(dsn, table="customers", key="id", columns=["name"])
    register_lookup(
        spark,
        "with_customer",
        customers,
        on={"customer": "id"},
        prefix="customer_",
        timeout=10.0,
        cache=Cache(expire_after_write=600),  # objects cannot be written in SQL
    )


async def fill(dsn: str) -> None:
    """Load customers into the database, only those with odd numbers."""
    import asyncpg

    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            f"""
            CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL);
            INSERT INTO customers SELECT id, 'customer ' || id FROM generate_series(1, {CUSTOMERS}, 2) AS id
            """
        )
    finally:
        await connection.close()


def make_orders(spark: SparkSession, count: int) -> None:
    """A view of `count` orders, the same in every run. Some have no customer."""
    spark.range(0, count, numPartitions=2).selectExpr(
        "id",
        f"nullif(cast(hash(id) & 1048575 AS int) % {CUSTOMERS}, 0) AS customer",
        "element_at(array('DE', 'FR', 'NL'), cast(id % 3 AS int) + 1) AS country",
        "cast(hash(id, 1) & 65535 AS int) AS amount",
    ).createOrReplaceTempView("orders")


def demo(stage: Stage, options: argparse.Namespace) -> None:
    """Runs the whole demo."""
    require_java()
    directory = stage.enter(workspace("sql-lookup"))
    with step("Starting PostgreSQL and Spark"):
        dsn = stage.enter(embedded_postgres(directory))
        asyncio.run(fill(dsn))
        spark = stage.enter(local_spark(directory, spark__app__name="sql-lookup", spark__sql__shuffle__partitions="2"))
    # For a refused query, PySpark writes a long log besides the error.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    make_orders(spark, options.orders)
    register(spark, dsn)
    for question, query in QUESTIONS.items():
        print(f"\n{question}:")
        try:
            spark.sql(query).show(truncate=False)
        except Exception as error:
            print(f"\n{cause(error)}")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="sql_lookup", description="A table in PostgreSQL as a table function of SQL.")
    parser.add_argument("--orders", type=positive, default=ORDERS, help=f"how many (default: {ORDERS:,})")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    chosen = parse()
    sys.exit(run(lambda stage: demo(stage, chosen)))
