"""Rows from any database that SQLAlchemy reaches through an asynchronous driver.

| module | what it knows |
| --- | --- |
| `enricher` | `SqlEnricher`: its arguments, a batch of keys from start to end |
| `connections` | the engine of one worker; how connections are made, and statements cancelled and limited |
| `inspection` | the columns of a table or a query, from the database; the query that a message advises |
| `key_select` | the SELECT for a batch, in pieces that the dialect can take |
| `column_types` | types of columns to Arrow, and values and keys |
| `urls`, `causes` | URLs; what errors of SQLAlchemy and its drivers mean |
| `spellings` | how dates and times may be written in SQLite |
"""

from asyncio_operator.enricher import needs

with needs("SqlEnricher", "sqlalchemy[asyncio]", "sql", "sqlalchemy", "greenlet"):
    import greenlet  # noqa: F401  # SQLAlchemy installs without it, and then its asynchronous engine does not work
    import sqlalchemy.ext.asyncio  # noqa: F401

from enrichers.sql.enricher import SqlEnricher

__all__ = ["SqlEnricher"]
