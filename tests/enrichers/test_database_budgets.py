"""G11 for databases: an error that the server answered with costs nothing, a lost call its estimate."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from pathlib import Path

import asyncpg
import pytest
from redis import exceptions

from asyncio_operator import Budget, EnricherError
from asyncio_operator.enricher import Enricher
from asyncio_operator.lookup import Lookup
from asyncio_operator.services import postgres_client, redis_client
from asyncio_operator.services.secrets import Secrets
from enrichers import SqlEnricher
from enrichers.postgres import PostgresEnricher
from enrichers.sql import causes as sql_causes
from tests.enrichers.conftest import Database
from tests.mariadb_service import MariadbServer, mariadb

__all__ = ["mariadb"]


NUMBERS = itertools.count()


async def used(enricher: Enricher, *keys: object, within: float = 30.0) -> float:
    """The keys that were spent by lookups, one after the other."""
    spec = Budget(f"databases {next(NUMBERS)}", spend={"keys": 100.0})
    async with Lookup(enricher, budget=spec, retry=None, timeout=within) as lookup:
        for key in keys:
            await asyncio.gather(lookup.get(key), return_exceptions=True)
    return spec.statistics().units["keys"].used


async def test_G11_an_error_of_postgresql_is_an_answer(database: Database) -> None:
    query = (
        "SELECT k AS id, CASE WHEN k < 0 THEN pg_sleep(600)::text ELSE (1 / k)::text END AS v FROM unnest($1::int[]) k"
    )
    enricher = PostgresEnricher(database.dsn, query=query, key="id")
    assert await used(enricher, 1, 0, 0, 2) == 2
    assert await used(enricher, 1, -1, within=1.0) == 2


async def test_G11_a_statement_that_the_server_has_cut_may_have_been_billed(database: Database) -> None:
    """The deadline of a call is a limit of its statement too, and whichever comes first ends it."""
    query = "SELECT k AS id, pg_sleep(600)::text AS v FROM unnest($1::int[]) k"
    dsn = f"{database.dsn}{'&' if '?' in database.dsn else '?'}options=-c%20statement_timeout=100"
    assert await used(PostgresEnricher(dsn, query=query, key="id"), 1) == 1


async def test_G11_an_error_of_a_file_is_an_answer(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "d") as connection:
        connection.execute("CREATE TABLE t (id int, v int)")
        enricher = SqlEnricher(f"sqlite+aiosqlite:///{tmp_path}/d", table="t", key="id", schema="v int")
        assert await used(enricher, 1) == 1
        connection.execute("DROP TABLE t")
        assert await used(enricher, 1) == 0


async def test_G11_an_error_of_mariadb_is_an_answer(mariadb: MariadbServer) -> None:
    await mariadb.execute("CREATE OR REPLACE TABLE g (id int, v int)")
    enricher = SqlEnricher(mariadb.url, table="g", key="id")
    assert await used(enricher, 1) == 1
    await mariadb.execute("DROP TABLE g")
    assert await used(enricher, 1, 2) == 0


def of_postgresql(error: Exception) -> EnricherError:
    return postgres_client.lookup_error(error, "e", "key 1", "")


def of_sql(error: Exception) -> EnricherError:
    return sql_causes.lookup_error(error, "e", "key 1", Secrets(()))


def of_redis(error: Exception) -> EnricherError:
    return redis_client.lookup_error(error, "e", "key 1", "redis://host")


class DriverError(Exception):
    """As those of MySQL's drivers: the number comes first."""


def with_state(state: str) -> Exception:
    error = Exception("of a driver")
    error.sqlstate = state  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("make", "error", "billed"),
    [
        (of_postgresql, asyncpg.PostgresError.new({"S": "ERROR", "C": "22012", "M": "division by zero"}), False),
        (of_postgresql, asyncpg.PostgresError.new({"S": "FATAL", "C": "57P01", "M": "shutdown"}), False),
        (of_postgresql, asyncpg.ConnectionDoesNotExistError("closed in the middle of operation"), None),
        (of_postgresql, asyncpg.InterfaceError("another operation is in progress"), None),
        (of_postgresql, TimeoutError(), None),
        (of_postgresql, ConnectionResetError(), None),
        (of_sql, DriverError(1146, "no such table"), False),
        (of_sql, DriverError(3024, "too slow"), False),
        (of_sql, DriverError(2013, "lost connection"), None),
        (of_sql, DriverError(2003, "cannot connect"), None),
        (of_sql, DriverError(0, "not connected"), None),
        (of_sql, with_state("22012"), False),
        (of_sql, with_state("08006"), None),
        (of_sql, with_state("HYT00"), None),
        (of_sql, sqlite3.OperationalError("no such table"), False),
        (of_sql, TimeoutError(), None),
        (of_redis, exceptions.ResponseError("WRONGTYPE another type"), False),
        (of_redis, exceptions.NoPermissionError("no"), False),
        (of_redis, exceptions.ConnectionError("lost"), None),
        (of_redis, exceptions.TimeoutError("late"), None),
    ],
)
def test_G11_which_errors_of_clients_are_answers(make, error, billed) -> None:
    assert make(error).billed is billed
