"""The README promises that its programs run: they do here, one after the other, as a reader would type them."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from tests.services import PostgresServer

ROOT = Path(__file__).resolve().parent.parent.parent

TABLES = """
    CREATE TABLE customers (id int PRIMARY KEY, name text, city text);
    INSERT INTO customers VALUES (10, 'Ada', 'London'), (20, 'Blaise', 'Paris');
    CREATE TABLE prices (product text, country text, price numeric(10,2), PRIMARY KEY (product, country));
    INSERT INTO prices VALUES ('tea', 'NL', 2.50);
    CREATE TABLE payments (customer int, amount numeric(10,2));
    INSERT INTO payments VALUES (10, 5.00), (10, 7.50), (20, 1.25);
"""

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
assert rows(careful.select("id", "lookup.status")) == [(1, "found"), (2, "found"), (3, "missing")]
assert metrics.statistics().missing
assert squares[:3] == [0, 1, 4] and len(squares) == 1000
print("all checks passed")
"""


@pytest.mark.spark
def test_every_program_of_the_readme_runs(postgres: PostgresServer, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) > 5
    asyncio.run(make_database(postgres, "readme"))
    program = tmp_path / "readme.py"
    program.write_text("\n".join([*blocks, CHECKS]), encoding="utf-8")
    environment = os.environ | {
        "DATABASE_URL": postgres.socket_dsn("readme"),
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    run = subprocess.run(
        [sys.executable, str(program)], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "all checks passed" in run.stdout


async def make_database(server: PostgresServer, name: str) -> None:
    for dsn, statement in ((server.dsn, f"CREATE DATABASE {name}"), (server.socket_dsn(name), TABLES)):
        connection = await asyncpg.connect(dsn)
        await connection.execute(statement)
        await connection.close()
