"""The query that a message advises for columns whose types Spark does not have: it selects them as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import types

from asyncio_operator.enricher import spark_type
from enrichers.databases.key_kinds import Texts, Uuids
from enrichers.sql.column_types import Column

MYSQLS = ("mysql", "mariadb")

TEXT = {"mysql": "CHAR", "mariadb": "CHAR", "sqlite": "TEXT", "postgresql": "TEXT"}
"""The type of texts in a CAST, by dialect."""

GEOMETRIES = ("geometry", "point", "linestring", "polygon", "collection")
"""How the names of those types of MySQL and MariaDB end that no CAST makes a text of."""


def as_text(
    dialect: sa.Dialect,
    name: str,
    table: Sequence[str],
    key: Sequence[str],
    columns: Mapping[str, Column | None],
    found: Mapping[str, types.TypeEngine[Any]],
    named: Mapping[str, str],
) -> str:
    """The arguments `query` and `schema` for the key and the columns that are wanted.

    Args:
        name: that of the dialect, MariaDB apart from MySQL.
        columns: by name; None for those without a type of Spark.
        found: their types in the database.
        named: the names of types that SQLAlchemy does not know.
    """
    terms, selected, schema = {}, [], []
    for column in dict.fromkeys([*key, *columns]):
        known, kind, quoted = columns[column], found[column].__visit_name__, _quoted(dialect, column)
        term, spark = quoted, "string" if known is None else spark_type(known.arrow)
        if named.get(column, "").endswith(GEOMETRIES):
            term = f"ST_AsText({quoted})"
        elif name in MYSQLS and kind == "BIT":
            term, spark = f"CAST({quoted} AS UNSIGNED)", "decimal(20,0)"
        elif known is None or (column in key and _differs(known, kind, name, len(key))):
            term = f"CAST({quoted} AS {TEXT.get(name, 'VARCHAR(4000)')})"
        terms[column] = term
        if name in MYSQLS and kind == "FLOAT":
            term += " * 1e0"  # Of a FLOAT the server sends six digits.
        selected.append(term if term == quoted else f"{term} AS {quoted}")
        schema.append(f"`{column.replace('`', '``')}` {spark}")
    source = ".".join(_quoted(dialect, part) for part in table)
    keys = ", ".join(terms[column] for column in key)
    query = f"SELECT {', '.join(selected)} FROM {source} WHERE {keys if len(key) == 1 else f'({keys})'} IN :keys"
    return f"query={query!r}, schema={', '.join(schema)!r}"


def _differs(column: Column, kind: str, name: str, parts: int) -> bool:
    """Whether a key column compares with a text, as a query sends it, only if it is cast: PostgreSQL has no such
    operator for other types and pads CHAR; MariaDB misses texts of other character sets in row values."""
    differs = parts > 1 if name in MYSQLS else name == "postgresql" and kind not in ("VARCHAR", "TEXT")
    return differs and isinstance(column.kind, Texts | Uuids)


def _quoted(dialect: sa.Dialect, name: str) -> str:
    """A name as a query of the user writes it: there SQLAlchemy doubles per cents itself, and a colon is escaped."""
    quote = dialect.identifier_preparer.quote
    quoted = quote(name).replace("%%", "%") if "%%" in quote("%") else quote(name)
    return quoted.replace(":", "\\:")
