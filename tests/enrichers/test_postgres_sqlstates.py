"""What the server's own errors mean: each class of SQLSTATE raised by a real server, in the middle of a lookup."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator

import asyncpg
import pytest

from asyncio_operator.policies.batching import splits
from enrichers import PostgresEnricher
from tests.enrichers.conftest import Database
from tests.enrichers.helpers import failure

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
    "22000",
    "22003",
    "22012",
    "22021",
    "22P02",
    "23502",
    "23505",
    "23514",
    "40002",
    "54000",
    "58P01",
    "P0001",
    "0A000",
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


@pytest.mark.parametrize("state", RETRYABLE)
async def test_what_passes_is_retryable_as_a_whole_batch(failing: PostgresEnricher, state: str) -> None:
    error = await failure(failing, "fine", state)
    assert error.retryable is True
    assert error.any_key
    assert not splits(error)
    assert error.overload is (state == "53300")
    assert getattr(error.__cause__, "sqlstate", None) == state
    assert "2 keys" not in str(error), "no key is to blame"
    assert await failing.lookup("fine") == {"v": 1}


@pytest.mark.parametrize("state", FOR_ANY_KEY)
async def test_what_every_key_would_get_is_neither_repeated_nor_split(failing: PostgresEnricher, state: str) -> None:
    error = await failure(failing, "fine", state)
    assert error.retryable is False
    assert error.any_key
    assert not splits(error)
    assert await failing.lookup("fine") == {"v": 1}


@pytest.mark.parametrize("state", OF_A_KEY)
async def test_what_a_key_may_be_to_blame_for_splits_a_batch(failing: PostgresEnricher, state: str) -> None:
    error = await failure(failing, "fine", state)
    assert error.retryable is False
    assert splits(error)
    assert f"key {state!r}: " in str(await failure(failing, state))
    assert await failing.lookup("fine") == {"v": 1}


async def test_an_internal_error_is_of_unknown_hope_and_is_split(failing: PostgresEnricher) -> None:
    error = await failure(failing, "XX000")
    assert error.retryable is None
    assert splits(error)


async def test_a_state_that_nobody_knows_is_not_retryable(failing: PostgresEnricher) -> None:
    error = await failure(failing, "ZZ999")
    assert error.retryable is False
    assert "raised on purpose" in str(error)


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
