"""Asks a database, on the driver, for the columns of a table, and whether the statement for lookups works.

The columns of a table come from its catalog, through SQLAlchemy's inspector, unless the user names their types. A query
has no catalog, so its user names them. The statement is then run without keys: it finds nothing, and fails if a name,
a privilege or the syntax is wrong. Every problem is one `ConfigurationError` that names it and the existing tables or
columns.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.ext.asyncio import AsyncConnection

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import describe as shown
from asyncio_operator.enricher import did_you_mean, shown_type, spark_type
from asyncio_operator.services.secrets import Secrets
from enrichers.databases.enricher import added_columns, check_columns
from enrichers.databases.key_kinds import Instants, Texts, Uuids
from enrichers.sql.causes import source_error
from enrichers.sql.column_types import Column, column_for, column_of
from enrichers.sql.connections import dialect_name
from enrichers.sql.key_select import KEYS, Described, Statement, table_of
from enrichers.sql.spellings import other_spelling, spellings_of

LOOKED_AT = 1000
"""How many values of a key column of SQLite are read, to see how times are written there: some milliseconds."""

WRITTEN = {pa.date32().id: "2024-02-29", pa.timestamp("us").id: "2024-02-29 12:30:00"}

FLOAT = 4
"""The number of the type FLOAT in the protocol of MySQL."""

MYSQLS = ("mysql", "mariadb")

TEXT = {"mysql": "CHAR", "mariadb": "CHAR", "sqlite": "TEXT", "postgresql": "TEXT"}
"""The type of texts in a CAST, by dialect."""

GEOMETRIES = ("geometry", "point", "linestring", "polygon", "collection")
"""How the names of those types of MySQL and MariaDB end that no CAST makes a text of."""


@dataclass(frozen=True)
class Selection:
    """What the user selects: a table or a query, its key columns, the columns to add (None: all others), and the types
    of columns that the user has named. `subject` names it in messages."""

    table: Sequence[str] | None
    query: str | None
    key: Sequence[str]
    columns: Sequence[str] | None
    schema: pa.Schema | None
    subject: str


async def describe(connection: AsyncConnection, selection: Selection, secrets: Secrets) -> Described:
    """What a worker must know of the source.

    Raises:
        ConfigurationError: a table, a column or a privilege is missing, a type cannot be used, the query is wrong.
    """
    await _check_of_mysql(connection, selection)
    if selection.schema is None:
        columns = await _reflected(connection, selection, secrets)
    else:
        columns = {field.name: column_for(field.type) for field in selection.schema}
    names = [*columns]
    for name in selection.columns or ():
        if name not in columns:
            raise ConfigurationError(
                f"{selection.subject}: schema= has no column {name!r} of columns=; {did_you_mean(name, names)}"
            )
    added = added_columns(selection.subject, names, selection.key, selection.columns)
    given = selection.schema or pa.schema([(name, columns[name].arrow) for name in added])
    schema = pa.schema([given.field(name) for name in added])
    key = {name: columns.get(name, column_for(pa.null())) for name in selection.key}
    described = Described(schema, key, dialect_name(connection.dialect))
    described = replace(described, without_row_values=await _splits_rows(connection, described, selection))
    short_floats = await _check(connection, described, selection, secrets)
    if selection.table is not None:
        await _check_spellings(connection, described, selection)
    return replace(described, short_floats=short_floats) if short_floats else described


async def _check_of_mysql(connection: AsyncConnection, selection: Selection) -> None:
    """Raise if a time is declared with a zone, which would find other rows, or if the server would send question marks
    for what the character set of the connection does not have."""
    if dialect_name(connection.dialect) not in MYSQLS:
        return
    if zoned := [one.name for one in selection.schema or () if isinstance(column_for(one.type).kind, Instants)]:
        raise ConfigurationError(
            f"{selection.subject}: column {zoned[0]!r} is timestamp in schema=, and times of MySQL and MariaDB have no "
            "zone; declare it as timestamp_ntz"
        )
    sets = "@@character_set_client, @@character_set_connection, @@character_set_results"
    found = {*(await connection.exec_driver_sql(f"SELECT {sets}")).one()} - {"utf8mb4"}
    if found:
        raise ConfigurationError(
            f"{selection.subject}: the connection uses the character set {min(map(str, found))}, and the server sends "
            "'?' for each character that it does not have; leave charset= out of url and connect_args, or set "
            "charset=utf8mb4, also in an init_command"
        )


async def _splits_rows(connection: AsyncConnection, described: Described, selection: Selection) -> bool:
    """Whether a composite key has a text in another character set than that of the connection. MariaDB 10.11 converts
    such texts in `id = 'x'` and `id IN ('x', 'y')`, but in `(id, n) IN (('x', 1), ('y', 2))` it misses rows."""
    texts = {name for name, column in described.key.items() if isinstance(column.kind, Texts)}
    if len(described.key) == 1 or not texts or selection.table is None or described.dialect not in MYSQLS:
        return False
    sets = await _catalog(connection, "character_set_name", selection.table)
    return any(sets.get(name, "") not in ("utf8mb4", None) for name in texts)


async def _catalog(connection: AsyncConnection, what: str, name: Sequence[str]) -> dict[str, Any]:
    """What the catalog of MySQL or MariaDB says of each column of a table."""
    *schemas, table = name
    found = await connection.execute(
        sa.text(
            f"SELECT column_name, {what} FROM information_schema.columns "
            "WHERE table_schema = coalesce(:schema, database()) AND table_name = :table"
        ),
        {"schema": ".".join(schemas) or None, "table": table},
    )
    return {row[0]: row[1] for row in found.all()}


async def _check_spellings(connection: AsyncConnection, described: Described, selection: Selection) -> None:
    """Raise if SQLite holds times in a form that no key can find, as numbers or with a zone."""
    for name, column in described.key.items():
        if spellings_of(column.arrow, described.dialect) is None:
            continue
        field = table_of(selection.table or (), [name]).c[name]
        result = await connection.execute(sa.select(field).where(field.is_not(None)).limit(LOOKED_AT))
        value = other_spelling([row[0] for row in result], column.arrow)
        if value is not None:
            stored = {int: "bigint", float: "double"}.get(type(value), "string")
            example = WRITTEN[column.arrow.id] + "Z" * isinstance(column.kind, Instants)
            raise ConfigurationError(
                f"{selection.subject}: the key column {name!r} is {shown_type(column.arrow)}, but it holds "
                f"{shown(value)}, which no key of that type finds, because SQLite compares such columns as texts or "
                f"numbers; write it as {example!r}, or name the type that is stored with schema=, as in "
                f"{f'{name} {stored}, ...'!r}, and give keys of that type"
            )


async def _reflected(connection: AsyncConnection, selection: Selection, secrets: Secrets) -> dict[str, Column]:
    """The columns of a table, as far as they are needed."""
    found = await connection.run_sync(_inspected, selection, secrets)
    names = [one["name"] for one in found]
    added = added_columns(selection.subject, names, selection.key, selection.columns)
    needed = [*selection.key, *added]
    check_columns(selection.subject, names, needed)
    dialect = dialect_name(connection.dialect)
    types = {one["name"]: one["type"] for one in found if one["name"] in needed}
    columns = {name: column_of(kind, dialect) for name, kind in types.items()}
    unusable = [name for name, column in columns.items() if column is None]
    if unusable:
        table = selection.table or ()
        named = await _catalog(connection, "data_type", table) if dialect in MYSQLS else {}
        text = _as_text(connection.dialect, dialect, table, selection.key, columns, types, named)
        listed = ", ".join(f"{name!r} of type {_shown(types[name], named.get(name))}" for name in unusable)
        others = [name for name in columns if name not in {*unusable, *selection.key}]
        choice = f"choose the other columns, with columns={others!r}, or "
        choice = "" if not others or {*unusable} & {*selection.key} else choice
        raise ConfigurationError(
            f"{selection.subject}: Spark has no counterpart for the columns {listed}; "
            f"{choice}select them as text, instead of table=: {text}"
        )
    return {name: column for name, column in columns.items() if column is not None}


def _inspected(connection: sa.Connection, selection: Selection, secrets: Secrets) -> Sequence[Mapping[str, Any]]:
    *schemas, table = selection.table or ()
    schema = ".".join(schemas) or None
    inspector = sa.inspect(connection)
    try:
        with warnings.catch_warnings():
            # Our own error names the type.
            warnings.filterwarnings("ignore", "Did not recognize type", exc.SAWarning)
            return inspector.get_columns(table, schema=schema)
    except exc.NoSuchTableError:
        names = _tables(inspector, schema)
        there = did_you_mean(table, names) if names else "the database has no tables"
        problem = ConfigurationError(f"{selection.subject}: there is no such table; {there}")
    except Exception as error:
        problem = source_error(error, selection.subject, secrets)
    raise problem


def _tables(inspector: sa.Inspector, schema: str | None) -> list[str]:
    try:
        return sorted({*inspector.get_table_names(schema=schema), *inspector.get_view_names(schema=schema)})
    except Exception:
        return []


def _shown(kind: Any, named: str | None) -> str:
    if isinstance(kind, sa.types.NullType):
        return named or "unknown to SQLAlchemy"
    try:
        return str(kind)
    except Exception:
        return type(kind).__name__


async def _check(
    connection: AsyncConnection, described: Described, selection: Selection, secrets: Secrets
) -> frozenset[str]:
    """Run the statement without keys. Returns the columns of which the server would send six digits only."""
    statement = Statement(described, selection.table, selection.query)
    try:
        result = await connection.execute(*statement.without_keys())
        names = [*result.keys()]
    except exc.ResourceClosedError:
        problem = ConfigurationError(
            f"{selection.subject}: the query returns no rows; it must be a SELECT with the parameter :{KEYS}"
        )
    except Exception as error:
        problem = source_error(error, selection.subject, secrets)
    else:
        # MySQL and MariaDB write six digits of a FLOAT: 16777216 comes as 16777200.
        found = result.cursor.description if described.dialect in MYSQLS and result.cursor is not None else ()
        short_floats = frozenset(name for name, kind, *_ in found if kind == FLOAT and name in described.names)
        check_columns(selection.subject, names, described.names)
        if selection.query is None or not short_floats:
            return short_floats
        name = min(short_floats)
        problem = ConfigurationError(
            f"{selection.subject}: the column {name!r} of the result is a FLOAT, of which the server sends six digits "
            f"only (16777216 comes as 16777200); select it as a double, as in CAST({name} AS DOUBLE) AS {name}"
        )
    raise problem


def _as_text(
    dialect: sa.Dialect,
    name: str,
    table: Sequence[str],
    key: Sequence[str],
    columns: Mapping[str, Column | None],
    found: Mapping[str, sa.types.TypeEngine[Any]],
    named: Mapping[str, str],
) -> str:
    """The arguments `query` and `schema` that a message advises for columns whose types Spark does not have, which are
    None in `columns`: the query selects them as text. `named` has the names of types that SQLAlchemy does not know."""
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
