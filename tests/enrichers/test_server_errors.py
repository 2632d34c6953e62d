"""What errors of servers and drivers mean: may a call succeed later, is a key to blame, and what did it cost."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import exceptions
from sqlalchemy import exc

from asyncio_operator import Budget, EnricherError
from asyncio_operator.enricher import Enricher
from asyncio_operator.lookup import Lookup
from asyncio_operator.policies.batching import splits
from asyncio_operator.services import postgres_client, redis_client
from asyncio_operator.services.causes import StatementTimeoutError
from asyncio_operator.services.secrets import Secrets
from enrichers import PostgresEnricher, SqlEnricher
from enrichers.sql.causes import BUSY, FULL, LOST, MYSQL, NOT_REACHABLE, STATEMENT, UNKNOWN, VALUE, is_lost
from enrichers.sql.causes import cause_of as sql_cause
from enrichers.sql.causes import lookup_error as sql_error
from tests.enrichers.conftest import Database
from tests.enrichers.helpers import failure
from tests.mariadb_service import MariadbServer, mariadb

__all__ = ["mariadb"]

# -- PostgreSQL


FAIL = """
    CREATE FUNCTION fail(state text) RETURNS int LANGUAGE plpgsql AS $$
    BEGIN
        IF state = 'fine' THEN RETURN 1; END IF;
        RAISE EXCEPTION 'raised on purpose' USING ERRCODE = state;
    END $$
"""

RETRYABLE = [
    *("08000", "08003", "08006", "08001", "08004", "08007", "08P01"),
    *("25006", "25P03", "25P04"),
    *("40000", "40001", "40003", "40P01"),
    *("53000", "53100", "53200", "53300", "53400"),
    *("55P03", "57014", "57P01", "57P02", "57P03", "57P05", "58000", "58030", "72000"),
]
"""The same call may succeed later, and whatever the keys are: a batch is repeated as a whole."""

FOR_ANY_KEY = ["28000", "28P01", "3D000", "57P04", "26000", "42P05"]
"""Asking again is of no use, and neither is asking for other keys: no half of a batch is worth a call."""

OF_A_KEY = [
    *("22000", "22003", "22012", "22021", "22P02", "22P05", "23502", "23505", "23514", "40002", "54000", "54001"),
    *("58P01", "P0001", "0A000", "ZZ999"),
    # The server takes the statement, so that a function in it is refused something, and perhaps for one key only.
    *("42501", "42601", "42703", "42883", "42P01"),
]
"""A key or its rows may be why: a batch is split until that stands alone."""


@pytest.fixture
async def failing(database: Database) -> AsyncIterator[PostgresEnricher]:
    """Every key is a SQLSTATE, which the server raises when it is asked for it; but "fine" has a row."""
    await database.execute(FAIL)
    query = "SELECT k AS state, fail(k) AS v FROM unnest($1::text[]) AS k"
    async with database.enricher(query=query, key="state", pool_size=1) as enricher:
        yield enricher


@pytest.mark.parametrize(
    ("state", "retryable", "of_a_key"),
    [
        *((state, True, False) for state in RETRYABLE),
        *((state, False, False) for state in FOR_ANY_KEY),
        *((state, False, True) for state in OF_A_KEY),
        ("XX000", None, True),
    ],
)
async def test_X14_a_state_says_whether_asking_again_helps_and_whether_a_key_is_to_blame(
    failing: PostgresEnricher, state: str, retryable: bool | None, of_a_key: bool
) -> None:
    error = await failure(failing, "fine", state)
    assert (error.retryable, error.overload, error.code) == (retryable, state == "53300", state)
    assert (error.any_key, splits(error)) == (not of_a_key, of_a_key)
    assert ("2 keys" in str(error)) is of_a_key
    assert (f"key {state!r}: " in str(await failure(failing, state))) is of_a_key
    assert await failing.lookup("fine") == {"v": 1}


def of_server(state: str) -> asyncpg.PostgresError:
    return asyncpg.PostgresError.new({"S": "ERROR", "C": state, "M": "x"})


@pytest.mark.parametrize(
    ("error", "retryable", "of_a_key", "billed"),
    [
        (asyncpg.InterfaceError("connection is closed"), True, False, None),
        (asyncpg.ConnectionDoesNotExistError("closed in the middle of operation"), True, False, None),
        (of_server("57P01"), True, False, False),
        (ConnectionResetError("x"), True, False, None),
        (TimeoutError(), True, False, None),
        *((of_server(state), False, False, False) for state in ("42601", "42703", "42804", "42501")),
        (of_server("22012"), False, True, False),
        (asyncpg.DataError("x"), False, True, None),
        (OverflowError("x"), False, True, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_G11_a_cause_that_no_function_raises_says_the_same_and_what_it_costs(
    error: Exception, retryable: bool, of_a_key: bool, billed: bool | None
) -> None:
    raised = postgres_client.lookup_error(error, "PostgresEnricher(table=t)", "key 1", "")
    assert (raised.retryable, raised.overload, raised.any_key) == (retryable, False, not of_a_key)
    assert raised.billed is billed
    assert raised.__cause__ is error
    named = ", key 1" if of_a_key else ""
    assert str(raised).startswith(f"PostgresEnricher(table=t){named}: {postgres_client.cause_of(error, '').text}")


async def test_what_the_server_takes_too_long_for_is_a_timeout(database: Database) -> None:
    query = "SELECT k AS id, pg_sleep(k)::text AS v FROM unnest($1::int[]) AS k"
    dsn = f"{database.dsn}&statement_timeout=300"
    async with database.enricher(dsn=dsn, query=query, key="id", pool_size=1) as enricher:
        error = await failure(enricher, 0, 600)
        assert isinstance(error, TimeoutError)
        assert (error.retryable, error.any_key, error.overload) == (True, True, False)
        assert isinstance(error.__cause__, asyncpg.QueryCanceledError)
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.retryable, copy.any_key) == (type(error), str(error), True, True)
        assert await enricher.lookup(0) == {"v": ""}


# -- SQLAlchemy and drivers


class DriverError(Exception):
    sqlstate: str | None = None


def raised(driver: BaseException, kind: Any = exc.OperationalError, *, lost: bool = False) -> Any:
    return kind("SELECT s3cret", {"keys": ["s3cret"]}, driver, connection_invalidated=lost)


@pytest.mark.parametrize("number", MYSQL)
def test_numbers_of_mysql_come_before_classes(number: int) -> None:
    for kind in (exc.OperationalError, exc.ProgrammingError, exc.InternalError):
        assert sql_cause(raised(Exception(number, "words"), kind)) is MYSQL[number]
    refused = OSError(111, "refused")
    driver = Exception(number, "words")
    driver.__cause__ = refused
    assert sql_cause(raised(driver)) is MYSQL[number]


@pytest.mark.parametrize(
    ("state", "retryable"), [("08006", True), ("22003", False), ("28P01", False), ("40001", True), ("42P01", False)]
)
def test_a_state_says_whether_a_retry_may_help(state: str, retryable: bool) -> None:
    driver = DriverError("words")
    driver.sqlstate = state
    assert sql_cause(raised(driver)).retryable is retryable


def test_classes_decide_what_nothing_else_does() -> None:
    driver = Exception("words")
    assert sql_cause(raised(driver)) is UNKNOWN
    assert sql_cause(exc.OperationalError(None, None, driver)) is BUSY, "it had no statement yet: it was connecting"
    assert sql_cause(raised(driver, lost=True)) is LOST
    assert is_lost(raised(driver, exc.InterfaceError))
    assert sql_cause(raised(driver, exc.ProgrammingError)) is STATEMENT
    assert sql_cause(raised(driver, exc.DataError)) is VALUE
    assert sql_cause(OSError("refused")) is NOT_REACHABLE
    assert sql_cause(raised(OSError("refused"))) is NOT_REACHABLE
    assert sql_cause(raised(Exception(1040, "Too many connections"))) is FULL
    assert sql_cause(TimeoutError()).kind is StatementTimeoutError
    assert sql_cause(exc.StatementError("words", "SELECT", {}, OverflowError("too large"))).any_key is False
    assert sql_cause(ValueError("words")).any_key is False


@given(
    number=st.integers(1000, 6000).filter(lambda number: number not in MYSQL),
    kind=st.sampled_from([exc.OperationalError, exc.ProgrammingError, exc.InternalError, exc.DataError]),
)
def test_X14_a_number_that_is_not_known_may_be_of_one_key(number: int, kind: Any) -> None:
    error = sql_error(raised(Exception(number, "words"), kind), "SqlEnricher(...)", "2 keys", Secrets())
    assert splits(error)


OF_THE_SERVER = [1040, 1045, 1049, 1053, 1142, 1129, 1203, 1205, 1213, 1290, 1114, 1317, 1836, 1927, 2003, 2006, 2013]
OF_A_CLUSTER = [1047, 1206, 3032]
"""A node that is not ready (Galera), too many locks, and offline mode: another attempt may succeed."""
OF_A_ROW = [1139, 1242, 1264, 1267, 1271, 1292, 1365, 1366, 1411, 1690, 1977, 3854, 3140, 3141, 3146, 4038, 1644]


@pytest.mark.parametrize("number", OF_THE_SERVER + OF_A_CLUSTER + OF_A_ROW)
def test_X14_only_what_is_known_to_be_of_the_server_fails_a_whole_batch(number: int) -> None:
    error = sql_error(raised(Exception(number, "words")), "SqlEnricher(...)", "2 keys", Secrets())
    assert splits(error) is (number in OF_A_ROW)
    assert error.retryable or number not in OF_A_CLUSTER


@pytest.mark.parametrize(
    ("sql", "whole"),
    [
        ("SELECT * FROM nothing", True),
        ("SELECT nothing", True),
        ("SELECT nothing(1)", True),
        ("SELEC", True),
        ("SELECT (", True),
        ("SELECT abs(-9223372036854775807 - 1)", False),
        ("SELECT json_extract('{', '$.a')", False),
        ("SELECT json_extract('{}', 'a')", False),
        ("SELECT zeroblob(2000000000)", False),
        ("SELECT 'x' REGEXP 'y'", True),
        ("SELECT sum(x) FROM (SELECT 9223372036854775807 AS x UNION ALL SELECT 1)", False),
        ("SELECT 'a' LIKE 'b' ESCAPE 'cd'", False),
        ("SELECT CAST(x'ff' AS TEXT)", False),
    ],
)
def test_X14_an_error_of_a_row_in_sqlite_is_told_from_one_of_the_statement(sql: str, whole: bool) -> None:
    connection = sqlite3.connect(":memory:")
    with pytest.raises((sqlite3.Error, ValueError)) as caught:
        connection.execute(sql).fetchall()
    connection.close()
    error = sql_error(raised(caught.value), "SqlEnricher(...)", "2 keys", Secrets())
    assert (splits(error), error.retryable) == (not whole, False)


def test_X5_a_message_has_the_words_of_the_driver_and_neither_statement_nor_secrets() -> None:
    error = sql_error(raised(Exception(1064, "near s3cret-Pw")), "SqlEnricher(...)", "key 7", Secrets(["s3cret-Pw"]))
    assert str(error) == "SqlEnricher(...): the server refuses the statement (near ***, error 1064)"
    assert error.__cause__ is None


# -- what an error costs (G11)


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


def of_sql(error: Exception) -> EnricherError:
    return sql_error(error, "e", "key 1", Secrets(()))


def of_redis(error: Exception) -> EnricherError:
    return redis_client.lookup_error(error, "e", "key 1", "redis://host")


class NumberedError(Exception):
    """As those of MySQL's drivers: the number comes first."""


def with_state(state: str) -> Exception:
    error = Exception("of a driver")
    error.sqlstate = state  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("make", "error", "billed"),
    [
        (of_sql, NumberedError(1146, "no such table"), False),
        (of_sql, NumberedError(3024, "too slow"), False),
        (of_sql, NumberedError(2013, "lost connection"), None),
        (of_sql, NumberedError(2003, "cannot connect"), None),
        (of_sql, NumberedError(0, "not connected"), None),
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
