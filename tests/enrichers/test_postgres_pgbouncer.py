"""Behind a real PgBouncer, in transaction mode, that keeps no prepared statements (`tests.pgbouncer_service`).

The programs run in processes of their own: what asyncpg leaves in a session has the same name in each of them.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator, ConfigurationError
from enrichers import PostgresEnricher, SqlEnricher
from tests.enrichers.helpers import opened
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
    "as_usual": "RESET ALL",
    "strict": "SET default_transaction_isolation = 'serializable'",
    "read_only": "SET default_transaction_read_only = on",
    "logged": "SET log_statement = 'all'",
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
    for name, defaults in DATABASES.items():
        asyncio.run(postgres.run(f"CREATE DATABASE {name}"))
        asyncio.run(postgres.run(TABLE, f"ALTER DATABASE {name} {defaults}", database=name))


def results(dsn: str, processes: int, *programs: str) -> list[Any]:
    """What programs print, all of them by default, in new processes that run at the same time."""
    command = [sys.executable, "-m", "tests.enrichers.pooled_programs", dsn, *(programs or EXPECTED)]

    def result(_: int) -> Any:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    with ThreadPoolExecutor(processes) as threads:
        return [*threads.map(result, range(processes))]


def test_X13_each_connection_works_behind_a_pooler_and_leaves_nothing_there(
    pgbouncer: PgBouncer, databases: None
) -> None:
    dsn = pgbouncer.dsn("as_usual")
    assert pgbouncer.left("as_usual") == []
    assert [*results(dsn, 1), *results(dsn, 2)] == 3 * [EXPECTED]
    assert pgbouncer.left("as_usual") == []


@pytest.mark.parametrize("database", ["strict", "read_only"])
def test_G7_a_coordinator_behind_a_pooler_does_without_the_defaults_of_its_sessions(
    pgbouncer: PgBouncer, databases: None, database: str
) -> None:
    dsn = pgbouncer.dsn(database)
    assert results(dsn, 2, "coordinator") == 2 * [{"coordinator": True}]
    assert pgbouncer.left(database) == []


LIMITS = """
    SELECT id, current_setting('statement_timeout') || ' ' || current_setting('client_connection_check_interval') AS v
    FROM pooled WHERE id = ANY ($1)
"""


async def test_X13_no_deadline_changes_a_session_that_the_next_statement_does_not_have(
    postgres: PostgresServer, pgbouncer: PgBouncer, databases: None
) -> None:
    begun = len(postgres.log())
    dsn = pgbouncer.dsn("logged")
    enricher = PostgresEnricher(dsn, query=LIMITS, key="id", pool_size=1, statement_cache_size=0)
    async with opened(enricher):
        for timeout in (3.0, 30.0, 300.0):
            operator = AsyncWaitOperator(enricher.lookup, timeout=timeout)
            assert [row["v"] async for row in operator.process([1])] == ["0 0"]
    log = postgres.log()[begun:]
    assert "set_config('statement_timeout'" not in log
    assert log.count("name = 'client_connection_check_interval'") == 2, "it is found out once per connection"
    assert await asyncio.to_thread(pgbouncer.left, "logged") == []


def test_X4_an_option_that_a_pooler_refuses_is_named(pgbouncer: PgBouncer) -> None:
    with pytest.raises(ConfigurationError, match="the option 'search_path' of the dsn") as caught:
        PostgresEnricher(f"{pgbouncer.dsn()}&search_path=x", table="t", key="id").schema()
    assert "s3cret" not in str(caught.value)


SETTING = "SELECT id, current_setting('statement_timeout') AS v FROM pooled WHERE id IN :keys"


@pytest.mark.parametrize("pooled", [False, True])
async def test_X13_sql_limits_a_session_that_is_its_own_and_no_other(
    postgres: PostgresServer, pgbouncer: PgBouncer, databases: None, pooled: bool
) -> None:
    pytest.importorskip("sqlalchemy")
    dsn = pgbouncer.dsn("as_usual") if pooled else postgres.tcp_dsn("as_usual")
    url = dsn.partition("?")[0].replace("postgresql://", "postgresql+asyncpg://") + "?prepared_statement_cache_size=0"
    enricher = SqlEnricher(
        url,
        query=SETTING,
        key="id",
        schema="id int, v string",
        pool_size=1,
        connect_args={"statement_cache_size": 0, "prepared_statement_name_func": str, "ssl": False},
    )
    found = []
    await enricher.open()
    for timeout in (10.0, 10.0) if pooled else (10.0, None):
        operator = AsyncWaitOperator(enricher.lookup, timeout=timeout)
        found += [row["v"] async for row in operator.process([1])]
    await enricher.close()
    assert found == (["0", "0"] if pooled else ["16s", "0"])
    assert [one for one in await asyncio.to_thread(pgbouncer.left, "as_usual") if one[0] == "setting"] == []
