"""What errors of SQLAlchemy and of drivers mean: every number, name and state of the tables, and the classes below."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import exc

from asyncio_operator.policies.batching import splits
from asyncio_operator.services.causes import StatementTimeoutError
from asyncio_operator.services.secrets import Secrets
from enrichers.sql.causes import (
    BUSY,
    FULL,
    LOST,
    MYSQL,
    NOT_REACHABLE,
    STATEMENT,
    UNKNOWN,
    VALUE,
    cause_of,
    is_lost,
    lookup_error,
)


class DriverError(Exception):
    sqlstate: str | None = None


def raised(driver: BaseException, kind: Any = exc.OperationalError, *, lost: bool = False) -> Any:
    return kind("SELECT s3cret", {"keys": ["s3cret"]}, driver, connection_invalidated=lost)


@pytest.mark.parametrize("number", MYSQL)
def test_numbers_of_mysql_come_before_classes(number: int) -> None:
    for kind in (exc.OperationalError, exc.ProgrammingError, exc.InternalError):
        assert cause_of(raised(Exception(number, "words"), kind)) is MYSQL[number]
    refused = OSError(111, "refused")
    driver = Exception(number, "words")
    driver.__cause__ = refused
    assert cause_of(raised(driver)) is MYSQL[number]


@pytest.mark.parametrize(
    ("state", "retryable"), [("08006", True), ("22003", False), ("28P01", False), ("40001", True), ("42P01", False)]
)
def test_a_state_says_whether_a_retry_may_help(state: str, retryable: bool) -> None:
    driver = DriverError("words")
    driver.sqlstate = state
    assert cause_of(raised(driver)).retryable is retryable


def test_classes_decide_what_nothing_else_does() -> None:
    driver = Exception("words")
    assert cause_of(raised(driver)) is UNKNOWN
    assert cause_of(exc.OperationalError(None, None, driver)) is BUSY, "it had no statement yet: it was connecting"
    assert cause_of(raised(driver, lost=True)) is LOST
    assert is_lost(raised(driver, exc.InterfaceError))
    assert cause_of(raised(driver, exc.ProgrammingError)) is STATEMENT
    assert cause_of(raised(driver, exc.DataError)) is VALUE
    assert cause_of(OSError("refused")) is NOT_REACHABLE
    assert cause_of(raised(OSError("refused"))) is NOT_REACHABLE
    assert cause_of(raised(Exception(1040, "Too many connections"))) is FULL
    assert cause_of(TimeoutError()).kind is StatementTimeoutError
    assert cause_of(exc.StatementError("words", "SELECT", {}, OverflowError("too large"))).any_key is False
    assert cause_of(ValueError("words")).any_key is False


@given(
    number=st.integers(1000, 6000).filter(lambda number: number not in MYSQL),
    kind=st.sampled_from([exc.OperationalError, exc.ProgrammingError, exc.InternalError, exc.DataError]),
)
def test_X14_a_number_that_is_not_known_may_be_of_one_key(number: int, kind: Any) -> None:
    error = lookup_error(raised(Exception(number, "words"), kind), "SqlEnricher(...)", "2 keys", Secrets())
    assert splits(error)


OF_THE_SERVER = [1040, 1045, 1049, 1053, 1142, 1129, 1203, 1205, 1213, 1290, 1114, 1317, 1836, 1927, 2003, 2006, 2013]
OF_A_ROW = [1139, 1242, 1264, 1267, 1271, 1292, 1365, 1366, 1411, 1690, 1977, 3854, 3140, 3141, 3146, 4038, 1644]


@pytest.mark.parametrize("number", OF_THE_SERVER + OF_A_ROW)
def test_X14_only_what_is_known_to_be_of_the_server_fails_a_whole_batch(number: int) -> None:
    error = lookup_error(raised(Exception(number, "words")), "SqlEnricher(...)", "2 keys", Secrets())
    assert splits(error) is (number in OF_A_ROW)


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
    error = lookup_error(raised(caught.value), "SqlEnricher(...)", "2 keys", Secrets())
    assert (splits(error), error.retryable) == (not whole, False)


def test_X5_a_message_has_the_words_of_the_driver_and_neither_statement_nor_secrets() -> None:
    error = lookup_error(raised(Exception(1064, "near s3cret-Pw")), "SqlEnricher(...)", "key 7", Secrets(["s3cret-Pw"]))
    assert str(error) == "SqlEnricher(...): the server refuses the statement (near ***, error 1064)"
    assert error.__cause__ is None
