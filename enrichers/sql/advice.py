"""The query that a message advises for columns whose types Spark does not have: it selects them as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import types

from asyncio_operator.enricher import spark_type
from enrichers.sql.column_types import Column

TEXT = {"mysql": "CHAR", "mariadb": "CHAR", "sqlite": "TEXT", "postgresql": "TEXT"}
"""The type of texts in a CAST, by dialect."""


def as_text(
    dialect: sa.Dialect,
    name: str,
    table: Sequence[str],
    key: Sequence[str],
    columns: Mapping[str, Column | None],
    found: Mapping[str, types.TypeEngine[Any]],
) -> str:
    """The arguments `query` and `schema` for the key and the columns that have no type of Spark.

    Args:
        name: that of the dialect, MariaDB apart from MySQL.
        columns: by name; None for those without a type of Spark.
        found: their types in the database.
    """
    quote = dialect.identifier_preparer.quote

    def selected(column: str) -> str:
        if columns[column] is not None:
            return quote(column)
        kind = "UNSIGNED" if _is_bits(found[column]) else TEXT.get(name, "VARCHAR(4000)")
        return f"CAST({quote(column)} AS {kind})"

    chosen = dict.fromkeys([*key, *(column for column, known in columns.items() if known is None)])
    terms = (selected(column) + f" AS {quote(column)}" * (columns[column] is None) for column in chosen)
    keys = ", ".join(map(selected, key))
    query = f"SELECT {', '.join(terms)} FROM {'.'.join(map(quote, table))} WHERE "
    query += f"{keys if len(key) == 1 else f'({keys})'} IN :keys"
    schema = ", ".join(f"`{column}` {_named(columns[column], found[column])}" for column in chosen)
    return f"query={query!r}, schema={schema!r}"


def _is_bits(kind: types.TypeEngine[Any]) -> bool:
    return kind.__visit_name__ == "BIT"


def _named(column: Column | None, kind: types.TypeEngine[Any]) -> str:
    if column is None:
        return "decimal(20,0)" if _is_bits(kind) else "string"
    return spark_type(column.arrow) or "string"
