"""Rows from PostgreSQL, through asyncpg.

| module | what it knows |
| --- | --- |
| `enricher` | `PostgresEnricher`: its arguments, a batch of keys from start to end |
| `connections` | how a connection is made, a query cancelled or limited, a question asked from the driver |
| `pool` | who gets which connection, when one more is made, what happens when the server gives no more |
| `dsn` | connection strings, and functions that give them; what must never be shown of one |
| `describe` | what a table or a query gives, asked of the server |
| `statement` | the SQL, and what becomes of the rows |
| `types`, `keys` | how columns and keys travel |
| `modifiers` | precision and scale, which asyncpg does not tell |
| `errors`, `connecting` | what asyncpg's errors mean; why a connection string gives no connection |
"""

from asyncio_operator.enricher import not_installed

try:
    import asyncpg  # noqa: F401
except ImportError as error:
    raise not_installed("PostgresEnricher", "asyncpg", "postgres") from error

from enrichers.postgres.enricher import PostgresEnricher

__all__ = ["PostgresEnricher"]
