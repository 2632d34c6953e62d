"""Behind a real PgBouncer, in transaction mode, that keeps no prepared statements (`tests.pgbouncer_service`).

Every program runs in processes of its own: what asyncpg leaves in a session has the same name in each of them.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.enrichers.pooled_programs import PROGRAMS
from tests.pgbouncer_service import PgBouncer, pgbouncer
from tests.servers import PostgresServer

__all__ = ["pgbouncer"]

ROOT = Path(__file__).parents[2]

TABLE = """
    CREATE TYPE mood AS ENUM ('glad', 'sad');
    CREATE DOMAIN price AS numeric(7, 3);
    CREATE TABLE pooled (id int PRIMARY KEY, mood mood, moods mood[], price price);
    INSERT INTO pooled SELECT i, 'glad', '{sad,glad}', i / 8.0 FROM generate_series(1, 199) AS i
"""

DATABASES = {
    "as_usual": "",
    "strict": "SET default_transaction_isolation = 'serializable'",
    "read_only": "SET default_transaction_read_only = on",
}
"""Databases, and what their sessions have by default."""

FOUND = [["glad", "['sad', 'glad']", price] for price in ("0.125", "0.250", "1.125")]
EXPECTED: dict[str, Any] = {
    "driver": ["decimal128(7, 3)", "decimal128(7, 3)", True],
    "worker": [[*FOUND, 200], [*FOUND, 200], [19, 199]],
    "coordinator": True,
}


@pytest.fixture(scope="module")
def databases(postgres: PostgresServer) -> None:
    async def make() -> None:
        for name, defaults in DATABASES.items():
            connection = await asyncpg.connect(postgres.dsn)
            await connection.execute(f"CREATE DATABASE {name}")
            await connection.close()
            connection = await asyncpg.connect(postgres.socket_dsn(name))
            await connection.execute(TABLE)
            if defaults:
                await connection.execute(f"ALTER DATABASE {name} {defaults}")
            await connection.close()

    asyncio.run(make())


def results(program: str, dsn: str, processes: int) -> list[Any]:
    """What a program prints, in new processes that run at the same time."""
    command = [sys.executable, "-m", "tests.enrichers.pooled_programs", program, dsn]

    def result(_: int) -> Any:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    with ThreadPoolExecutor(processes) as threads:
        return [*threads.map(result, range(processes))]


@pytest.mark.parametrize("program", PROGRAMS)
def test_X13_each_connection_works_behind_a_pooler_and_leaves_nothing_there(
    pgbouncer: PgBouncer, databases: None, program: str
) -> None:
    dsn = pgbouncer.dsn("as_usual")
    assert pgbouncer.left("as_usual") == []
    assert [*results(program, dsn, 1), *results(program, dsn, 2)] == 3 * [EXPECTED[program]]
    assert pgbouncer.left("as_usual") == []


@pytest.mark.parametrize("database", ["strict", "read_only"])
def test_G7_a_coordinator_behind_a_pooler_does_without_the_defaults_of_its_sessions(
    pgbouncer: PgBouncer, databases: None, database: str
) -> None:
    dsn = pgbouncer.dsn(database)
    assert results("coordinator", dsn, 2) == [True, True]
    assert pgbouncer.left(database) == []
