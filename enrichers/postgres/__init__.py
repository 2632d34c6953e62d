"""Rows from PostgreSQL, through asyncpg.

| module | what it knows |
| --- | --- |
| `enricher` | `PostgresEnricher`: its arguments, a batch of keys from start to end |
| `connections` | how connections are made, and queries cancelled and limited; queries of the driver |
| `describe` | the columns of a table or a query, from the server; precision and scale, which asyncpg does not show |
| `statement` | the SQL, and how its rows are assigned to keys |
| `casts`, `types` | what the user wants of a column; how columns and keys are converted |
| `diagnosis` | why the server refused a statement |
| `columns`, `arrow_keys` | answers in columns: their format, and keys in Arrow arrays |
"""

from asyncio_operator.enricher import needs

with needs("PostgresEnricher", "asyncpg", "postgres"):
    import asyncpg  # noqa: F401

from enrichers.postgres.enricher import PostgresEnricher

__all__ = ["PostgresEnricher"]
