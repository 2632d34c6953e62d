"""The programs of docs/tour.md run, one after the other, as a reader would type them; its tables hold."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import asyncpg
import pytest
from pyspark.sql import SparkSession

from asyncio_operator.spark import enrich
from enrichers import FunctionEnricher
from tests.pages import DOCS, programs_of
from tests.servers import PostgresServer

TEXT = (DOCS / "tour.md").read_text(encoding="utf-8")

CHECKS = """
from decimal import Decimal

def rows(df):
    return sorted(map(tuple, df.collect()), key=repr)

assert enriched.columns == ["id", "customer", "product", "customer_name", "customer_city"]
assert rows(enriched) == [
    (1, 10, "tea", "Ada", "London"), (2, 20, "ink", "Blaise", "Paris"), (3, 99, "tea", None, None)
]
assert rows(enrich(quotes, prices, on=["product", "country"])) == [
    ("tea", "NL", Decimal("2.50")), ("tea", "XX", None)
]
assert rows(enrich(orders, totals, on="customer").select("id", "payments", "paid")) == [
    (1, 2, Decimal("12.50")), (2, 1, Decimal("1.25")), (3, None, None)
]
assert rows(enrich(orders, payments, on="customer", how="inner").select("id", "amount")) == [
    (1, Decimal("5.00")), (1, Decimal("7.50")), (2, Decimal("1.25"))
]
assert rows(enrich(orders, parcel, on="product").select("id", "grams")) == [(1, 250.0), (2, None), (3, 250.0)]
assert rows(enrich(orders, Stock(), on="product").select("id", "pieces")) == [(1, 7), (2, None), (3, 7)]
assert rows(enrich(quotes, delivery, on=["product", "country"])) == [("tea", "NL", 2), ("tea", "XX", 9)]
with api:
    assert rows(patient.select("id", "title", "stars")) == [(1, "Assam", 4.5), (2, "Blue", 3.0), (3, "Assam", 4.5)]
assert rows(careful.select("id", "lookup.status")) == [(1, "found"), (2, "found"), (3, "missing")]
assert metrics.statistics().missing
assert squares[:3] == [0, 1, 4] and len(squares) == 1000
assert rows(from_sql) == rows(chained)
assert rows(weighed.select("id", "grams")) == [(1, 250.0), (2, None), (3, 250.0)]
assert loud.collect() == ["TEA", "INK", "TEA"]
print("all checks passed")
"""


@pytest.mark.spark
def test_every_program_of_the_tour_runs(
    spark: SparkSession, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = programs_of("tour.md")
    assert len(blocks) > 5
    [tables] = re.findall(r"^```sql\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    asyncio.run(make_database(postgres, "tour", tables))
    monkeypatch.setenv("DATABASE_URL_SECRET", postgres.socket_dsn("tour"))
    # The workers of a Spark that runs already are told here what they else inherit.
    monkeypatch.setitem(spark.sparkContext.environment, "DATABASE_URL_SECRET", postgres.socket_dsn("tour"))
    exec(compile("\n".join([*blocks, CHECKS]), "tour.md", "exec", dont_inherit=True), {"__name__": "__main__"})
    assert capsys.readouterr().out.endswith("all checks passed\n")


ANSWERS = {
    "one": ("found", [1]),
    "several": ("found", [1, None]),
    "empty": ("missing", [None]),
    "none": ("missing", [None]),
    "text": ("failed", [None]),
    "misfit": ("failed", [None]),
    "error": ("failed", [None]),
    "slow": ("timed_out", [None]),
    None: ("missing", [None]),
}


@pytest.mark.spark
def test_what_a_lookup_may_give_and_what_the_status_column_says_are_as_the_pages_have_it(spark: SparkSession) -> None:
    async def answer(key: str) -> Any:
        match key:
            case "slow":
                await asyncio.sleep(3600)
            case "error":
                raise OSError("no route")
        answers: dict[str, Any] = {"one": {"x": 1, "y": 2}, "several": [{"x": 1}, {}], "empty": [], "none": None}
        return (answers | {"text": "text", "misfit": {"x": "one"}})[key]

    keys = spark.createDataFrame([(key,) for key in ANSWERS], "key string").coalesce(1)
    service = FunctionEnricher(answer, "x int")
    out = enrich(keys, service, on="key", on_error="null", status_column="status", timeout=1.0)
    rows = out.collect()
    for key, (status, values) in ANSWERS.items():
        found = [row for row in rows if row.key == key]
        assert [row.x for row in found] == values
        assert {row.status.status for row in found} == {status}
    lookups = (DOCS / "lookups.md").read_text(encoding="utf-8")
    table = lookups[lookups.index("| field of the status column") :].partition("\n\n")[0]
    documented = dict(re.findall(r"^\| (`.*?`) \| (.*) \|$", table, re.MULTILINE))
    assert re.findall(r"`(\w+)`", " ".join(documented)) == out.schema["status"].dataType.names  # type: ignore[attr-defined]
    words = {field: set(re.findall(r'`"(\w+)"`', documented[f"`{field}`"])) for field in ("status", "source")}
    assert words["status"] == {row.status.status for row in rows} | {"over_budget"}
    assert words["source"] == {row.status.source for row in rows} | {"shared", "cache", "stale", "journal"}
    for row in rows:
        asked = row.key is not None
        assert (row.status.source, row.status.attempts) == (("call", 1) if asked else ("none", 0))
        assert (row.status.latency_ms is not None) == asked
        assert (row.status.error_type is None) == (row.status.error_message is None)
        assert (row.status.error_type is None) == (row.status.status in ("found", "missing"))


async def make_database(server: PostgresServer, name: str, tables: str) -> None:
    for dsn, statement in ((server.dsn, f"CREATE DATABASE {name}"), (server.socket_dsn(name), tables)):
        connection = await asyncpg.connect(dsn)
        await connection.execute(statement)
        await connection.close()
