"""A schema of its own for each test, in one PostgreSQL for the whole session."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from enrichers.postgres import PostgresEnricher
from tests.servers import PostgresServer, postgres

__all__ = ["database", "postgres"]

_numbers = itertools.count()


class Database:
    """A schema that no other test sees: it comes first in the search path of `dsn`."""

    def __init__(self, server: PostgresServer, connection: asyncpg.Connection, name: str) -> None:
        self.server = server
        self.name = name
        self.dsn = self.with_path(server.dsn)
        self._connection = connection

    def with_path(self, dsn: str) -> str:
        return f"{dsn}{'&' if '?' in dsn else '?'}search_path={self.name}"

    async def execute(self, sql: str) -> None:
        await self._connection.execute(sql)

    async def fetch(self, sql: str, *arguments: Any) -> list[Any]:
        return list(await self._connection.fetch(sql, *arguments))

    @asynccontextmanager
    async def enricher(self, **options: Any) -> AsyncIterator[PostgresEnricher]:
        """An open enricher, whose schema has been asked for before, as Spark does it."""
        enricher = PostgresEnricher(options.pop("dsn", self.dsn), **options)
        enricher.schema()
        await enricher.open()
        try:
            yield enricher
        finally:
            await enricher.close()


@pytest.fixture
async def database(postgres: PostgresServer) -> AsyncIterator[Database]:
    name = f"test_{next(_numbers)}"
    connection = await asyncpg.connect(postgres.dsn)
    await connection.execute(f"CREATE SCHEMA {name}; SET search_path = {name}")
    yield Database(postgres, connection, name)
    await connection.execute(f"DROP SCHEMA {name} CASCADE")
    await connection.close()
