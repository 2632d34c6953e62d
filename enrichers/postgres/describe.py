"""Asks a server for the columns of a table or a query, and builds the statement for lookups.

The server describes ``SELECT * FROM table``, or the query, without running it. The catalog resolves its types. EXPLAIN
of the finished statement shows whether the privileges are sufficient. Every problem is one `ConfigurationError` that
names the problem and the existing tables or columns. Only names and types are read, and nothing is written.

The type modifiers of a table, the 10 and 2 of ``numeric(10,2)``, are in the catalog. Those of a query are not: the
server sends them with the description of a statement, and asyncpg ignores them. While the statement is prepared, a
`Listener` is between the connection's transport and its protocol, and reads them from the bytes. That uses two private
attributes of asyncpg, because no public way works with every server: a read-only transaction, and so every standby,
refuses a temporary table or view; ``pg_prepared_statements`` has the types without modifiers; ``cursor_to_xmlschema``
leaves out those of arrays, and needs a server built with libxml.

If another version of asyncpg has changed these attributes, nothing breaks: the modifiers are unknown, a numeric becomes
the widest decimal with the guard for unknown sizes, and a warning is logged.

Source: PostgreSQL documentation, "Message Formats": RowDescription, NoData.
"""

from __future__ import annotations

import asyncio
import logging
import re
import struct
from collections.abc import Awaitable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from struct import unpack_from
from typing import Any

import asyncpg

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import did_you_mean
from asyncio_operator.services.postgres_client import source_error
from enrichers.databases.enricher import added_columns, check_columns
from enrichers.postgres.casts import TEXTS, Chosen, ResultColumn, needs_cast, result_columns
from enrichers.postgres.statement import Source, Statement, identifier, make_statement, types_of
from enrichers.postgres.types import Column, KeyColumn, Part, PgType, column_of, parameter_of

logger = logging.getLogger("asyncio_operator.postgres")

_TYPE = """
    SELECT t.typname, t.typtype::text AS kind, t.typbasetype, t.typtypmod, n.nspname, e.oid AS element,
        pg_catalog.format_type(t.oid, -1) AS sql
    FROM pg_catalog.pg_type AS t JOIN pg_catalog.pg_namespace AS n ON n.oid = t.typnamespace
        LEFT JOIN pg_catalog.pg_type AS e ON e.oid = t.typelem AND e.typarray = t.oid
    WHERE t.oid = $1
"""
"""A type, and its element if it is the array type of another. With the modifier -1 the server names a type for a cast
that changes nothing: ``bpchar``, where ``character`` would be ``character(1)``."""

_COLUMNS = """
    SELECT attname, atttypid, atttypmod FROM pg_catalog.pg_attribute
    WHERE attrelid = pg_catalog.to_regclass($1) AND attnum > 0 AND NOT attisdropped
"""

_TABLES = """
    SELECT n.nspname, c.relname, pg_catalog.pg_table_is_visible(c.oid) AS visible
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind = ANY ('{r,v,m,f,p}') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
    LIMIT 10000
"""

_FOREIGN_PARAMETER = re.compile(r"%s|%\(\w+\)s|(?<![:\w]):[a-z_]\w*|\{\w*\}|(?<![?@#<|&-])\?(?![?|&])", re.IGNORECASE)
"""Parameters as psycopg, SQLAlchemy, Python's templates and JDBC write them."""


@dataclass(frozen=True)
class Selection:
    """What the user selects: a table or a query, its key columns, and the columns to add as `casts` has them, or None
    for all others. `subject` names it in messages, `dsn` is hidden in them."""

    table: tuple[str, ...] | None
    query: str | None
    key: tuple[str, ...]
    columns: Chosen | None
    subject: str
    dsn: str

    @property
    def parameters(self) -> list[list[Any]]:
        """No keys, as the parameters of the query."""
        return [] if self.query is None else [[] for _ in self.key]


async def describe(connection: asyncpg.Connection, selection: Selection) -> Statement:
    """The statement for a selection.

    Raises:
        ConfigurationError: the table, a column or a privilege is missing, a type cannot be used, the query is wrong.
    """
    sql = selection.query if selection.query is not None else f"SELECT * FROM {identifier(*selection.table or ())}"
    described, parameters = await _describe(connection, sql, selection)
    if selection.query is not None:
        await _check_it_reads(connection, selection)
    names = [name for name, _, _ in described]
    check_columns(selection.subject, names, selection.key)
    added = result_columns(added_columns(selection.subject, names, selection.key, selection.columns))
    needed = {name: added.get(name, ResultColumn(name)) for name in selection.key} | added
    sources = {wanted.source: None for wanted in needed.values()}
    check_columns(selection.subject, names, sources)
    types = {name: await _type(connection, oid, modifier) for name, oid, modifier in described if name in sources}
    source = await _source(connection, selection, needed, types)
    kinds = {
        name: wanted.target if name in source.casts and wanted.target else types[wanted.source]
        for name, wanted in needed.items()
    }
    columns = {name: column for name, kind in kinds.items() if (column := column_of(kind)) is not None}
    unusable = [name for name in kinds if name not in columns]
    if unusable:
        listed = ", ".join(f"the column {name!r} of type {kinds[name].sql}" for name in unusable)
        raise ConfigurationError(
            f"{selection.subject}: Spark has no counterpart for {listed}; "
            + _remedy(selection.table, selection.key, kinds, unusable)
        )
    key = {name: _key_column(selection, name, columns[name], kinds, added) for name in selection.key}
    if selection.query is not None:
        key = await _with_parameters(connection, selection, key, parameters)
    # The types of the columns that the server does not cast; domains are not resolved.
    uncast = [name for name in source.columns if name not in source.casts]
    question = types_of(source.sql, [source.columns[name] for name in uncast])
    row = await _answer(connection.fetchrow(question, *selection.parameters), selection)
    source = replace(source, types=dict(zip(uncast, row, strict=True)))
    statement = make_statement(source, {n: columns[n] for n in added}, key, query=selection.query is not None)
    # Planning checks the operators of the statement, and the privileges to run it.
    await _answer(connection.fetch(f"EXPLAIN {statement.sql}", *([] for _ in key)), selection)
    return statement


async def _describe(
    connection: asyncpg.Connection, sql: str, selection: Selection
) -> tuple[list[tuple[str, int, int]], list[int]]:
    """Name, type and modifier of each column, and the types of the parameters."""
    problem: ConfigurationError
    # The catalog has the modifiers of a table. Those of a query are in its description alone.
    with Listener(connection) if selection.table is None else nullcontext() as listener:
        try:
            prepared = await connection.prepare(sql, name="")
        except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError) as error:
            problem = source_error(
                error, selection.subject, selection.dsn, await _tables_instead(connection, selection)
            )
        except Exception as error:
            # The server reports several statements as a syntax error from this place.
            place = getattr(error, "server_source_function", None)
            if isinstance(error, asyncpg.PostgresSyntaxError) and place == "exec_parse_message":
                problem = _no_select(selection, "more than one statement")
            else:
                problem = source_error(error, selection.subject, selection.dsn, _foreign_parameter(error, sql))
        else:
            attributes = prepared.get_attributes()
            if listener is None:
                catalog = await connection.fetch(_COLUMNS, identifier(*selection.table or ()))
                known = {name: (oid, modifier) for name, oid, modifier in catalog}
                columns = [(a.name, *known.get(a.name, (a.type.oid, -1))) for a in attributes]
            else:
                modifiers = listener.modifiers(len(attributes))
                columns = [(a.name, a.type.oid, modifier) for a, modifier in zip(attributes, modifiers, strict=True)]
            return columns, [parameter.oid for parameter in prepared.get_parameters()]
    raise problem


async def _check_it_reads(connection: asyncpg.Connection, selection: Selection) -> None:
    """Check that the query works as a subquery. The server accepts it alone, so otherwise it is not a SELECT."""
    try:
        await connection.prepare(f"SELECT * FROM {_subquery(selection)} AS t", name="")
        return
    except (asyncpg.PostgresSyntaxError, asyncpg.FeatureNotSupportedError):
        problem = _no_select(selection, "no SELECT, or it writes something")
    except Exception as error:
        problem = source_error(error, selection.subject, selection.dsn)
    raise problem


def _foreign_parameter(error: Exception, sql: str) -> str:
    """The remedy if the server refused a parameter in the style of another library; otherwise empty."""
    found = _FOREIGN_PARAMETER.search(sql) if isinstance(error, asyncpg.PostgresSyntaxError) else None
    if found is None:
        return ""
    return (
        f"; is {found[0]!r} a parameter? Here they are $1, $2, ..., one array for each key column, as in "
        "WHERE id = ANY ($1)"
    )


def _no_select(selection: Selection, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{selection.subject}: the query is {what}; it must be one statement that gives rows and only reads (SELECT, "
        "VALUES, or WITH ... SELECT), because it is run as a subquery"
    )


def _key_column(
    selection: Selection, name: str, column: Column, types: Mapping[str, PgType], added: Collection[str]
) -> Column:
    if column.key is None:
        raise ConfigurationError(
            f"{selection.subject}: the key column {name!r} is of type {types[name].sql}, which cannot be looked up; "
            + _remedy(selection.table, selection.key, types, [name])
        )
    # A column that is added too stands once in an answer, and has one type there.
    return column if name in added else replace(column, arrow=column.key.arrow or column.arrow)


async def _with_parameters(
    connection: asyncpg.Connection, selection: Selection, key: Mapping[str, Column], parameters: Sequence[int]
) -> dict[str, Column]:
    """The key columns of a query, with the kinds of its parameters, which the server has determined."""
    if len(parameters) != len(key):
        raise ConfigurationError(
            f"{selection.subject}: it takes {len(parameters)} parameters, but there are {len(key)} key columns; it "
            "must take one array per key column, as in WHERE id = ANY ($1)"
        )
    result = {}
    for number, ((name, column), oid) in enumerate(zip(key.items(), parameters, strict=True), 1):
        kind = await _type(connection, oid, -1)
        parameter = parameter_of(kind)
        part = Part(column.key.part.column, parameter) if column.key and parameter else None
        if part is None or not part.usable():
            raise ConfigurationError(
                f"{selection.subject}: ${number} is taken for {kind.sql}, but it must be an array of what the key "
                f"column {name!r} holds; write = ANY (${number}), or cast it, as in ${number}::text[]"
            )
        value = column.key.value if column.key else ""
        result[name] = replace(column, key=KeyColumn(part, array="", value=value))
    return result


async def _source(
    connection: asyncpg.Connection,
    selection: Selection,
    needed: Mapping[str, ResultColumn],
    types: Mapping[str, PgType],
) -> Source:
    """The source, and which of its columns the server casts."""
    rows = identifier(*selection.table or ()) if selection.query is None else _subquery(selection)
    sql = f"{rows} AS t"
    own = {name: f"t.{identifier(wanted.source)}" for name, wanted in needed.items()}
    casts = {
        name: (own[name], f"({own[name]}::{wanted.target.sql})")
        for name, wanted in needed.items()
        if wanted.target is not None and needs_cast(wanted.target, types[wanted.source])
    }
    for name in casts:
        await _check_cast(connection, selection, needed[name], types, f"SELECT {casts[name][1]} FROM {sql}")
    return Source(
        sql,
        own | {name: cast for name, (_, cast) in casts.items()},
        {},
        {name: (raw, needed[name].name) for name, (raw, _) in casts.items()},
    )


async def _check_cast(
    connection: asyncpg.Connection, selection: Selection, wanted: ResultColumn, types: Mapping[str, PgType], sql: str
) -> None:
    """Check that the server has the cast, and that it changes no character of a text."""
    kind = types[wanted.source]
    about = f"{selection.subject}: the column {wanted.source!r} of type {kind.sql} cannot be cast to {wanted.name}"
    if wanted.target is not None and wanted.target.name == "bytea" and kind.name in TEXTS:
        raise ConfigurationError(
            f"{about}: the server would read backslashes in it; use a query with "
            f"convert_to({identifier(wanted.source)}, 'UTF8')"
        )
    try:
        await connection.prepare(sql, name="")
        return
    except asyncpg.CannotCoerceError:
        problem = ConfigurationError(f"{about}: the server has no such cast; take it as a 'string', or use a query")
    except Exception as error:
        problem = source_error(error, selection.subject, selection.dsn)
    raise problem


async def _answer(question: Awaitable[Any], selection: Selection) -> Any:
    try:
        return await question
    except Exception as error:
        problem = source_error(error, selection.subject, selection.dsn)
    raise problem


def _subquery(selection: Selection) -> str:
    query = (selection.query or "").rstrip().rstrip(";")
    return f"({query}\n)"


async def _type(connection: asyncpg.Connection, oid: int, modifier: int) -> PgType:
    """A type by its number, domains resolved. A domain's modifier is used if the column has none."""
    row = await connection.fetchrow(_TYPE, oid)
    if row["kind"] == "d":
        return await _type(connection, row["typbasetype"], row["typtypmod"] if modifier < 0 else modifier)
    element = await _type(connection, row["element"], modifier) if row["element"] else None
    name, schema = row["typname"], row["nspname"]
    if schema == "pg_catalog":
        return PgType(name, row["sql"], modifier, row["kind"], element)
    return PgType(f"{schema}.{name}", identifier(schema, name), modifier, row["kind"], element)


async def _tables_instead(connection: asyncpg.Connection, selection: Selection) -> str:
    if selection.table is None:
        return ""
    tables = await connection.fetch(_TABLES)
    names = {row["relname"] for row in tables if row["visible"]} | {f"{row[0]}.{row[1]}" for row in tables}
    return "; " + did_you_mean(".".join(selection.table), sorted(names)) if names else "; the database has no tables"


def _remedy(
    table: Sequence[str] | None, key: Sequence[str], types: Mapping[str, PgType], unusable: Sequence[str]
) -> str:
    """What to do about columns of types that Spark does not have, or that cannot be keys: words that users can copy.

    Args:
        table: the parts of its name; None for a query.
        types: those of all columns that were wanted, by name.
        unusable: the columns that have no counterpart, or cannot be looked up.
    """
    remedies = []
    added = [name for name in unusable if name not in key]
    others = [name for name in types if name not in unusable and name not in key]
    if added:
        if others:
            remedies.append(f"choose the other columns, with columns={others!r}")
        named = " (with the types of the other columns that you want)" if others else ""
        remedies.append(f"let the server cast it, with columns={dict.fromkeys(added, 'string')!r}{named}")
    as_text = {name: f"{identifier(name)}::text" for name in unusable}
    if table is not None:
        remedies.append(f"cast it in a query, with query={_casting(table, key, types, unusable)!r}")
    elif len(added) < len(unusable):
        selected = ", ".join(f"{sql} AS {identifier(name)}" for name, sql in as_text.items())
        found = " AND ".join(f"{as_text[name]} = ANY (${key.index(name) + 1})" for name in unusable if name in key)
        remedies.append(f"cast it in the query, where it is selected and where it is compared: {selected}, {found}")
    else:
        selected = ", ".join(f"{sql} AS {identifier(name)}" for name, sql in as_text.items())
        remedies.append(f"cast it in the query, as in {selected}")
    return ", or ".join(remedies)


def _casting(table: Sequence[str], key: Sequence[str], types: Mapping[str, PgType], unusable: Sequence[str]) -> str:
    """A query with the same result as the table, in which unusable columns are cast to text."""
    selected, compared, parameters = [], [], []
    for name, kind in types.items():
        column = column_of(kind)
        as_text = name in unusable or column is None or (name in key and column.key is None)
        selected.append(f"{identifier(name)}::text AS {identifier(name)}" if as_text else identifier(name))
    for number, name in enumerate(key, 1):
        column = None if name in unusable else column_of(types[name])
        # Keys of an enum are compared as text, so that a label that it does not have is a miss.
        plain = column.key if column and column.key and column.key.element == "{0}" else None
        compared.append(identifier(name) + ("" if plain else "::text"))
        parameters.append((plain.array if plain else "${0}::text[]").format(number))
    if len(key) == 1:
        found = f"{compared[0]} = ANY ({parameters[0]})"
    else:
        found = f"({', '.join(compared)}) IN (SELECT * FROM unnest({', '.join(parameters)}))"
    return f"SELECT {', '.join(selected)} FROM {identifier(*table)} WHERE {found}"


# -- modifiers


class Listener(asyncio.Protocol):
    """Passes data from a connection's transport to its protocol for a while, and keeps a copy of it."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._transport = getattr(connection, "_transport", None)
        self._protocol: Any = getattr(connection, "_protocol", None)
        if not (hasattr(self._transport, "set_protocol") and isinstance(self._protocol, asyncio.Protocol)):
            self._transport = None
        self._received = bytearray()

    def __enter__(self) -> Listener:
        if self._transport is not None:
            self._transport.set_protocol(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._transport is not None:
            self._transport.set_protocol(self._protocol)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._protocol.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()  # type: ignore[no-any-return]

    def modifiers(self, columns: int) -> list[int]:
        """The type modifiers of the described statement; -1 for a column without one, or if it is unknown."""
        try:
            description = self._described()
            # Per column a name, a zero byte, and 18 bytes of numbers.
            (count,) = unpack_from(">h", description)
            found, start = [], 2
            for _ in range(count):
                numbers = description.index(b"\0", start) + 1
                found.append(unpack_from(">ihihih", description, numbers)[4])
                start = numbers + 18
        except (ValueError, IndexError, struct.error):
            found = []
        if len(found) == columns:
            return found
        logger.warning(
            "this version of asyncpg (%s) does not show the precision and scale of a numeric: all are taken for "
            "decimal(38,18), and a value that does not fit is an error",
            asyncpg.__version__,
        )
        return [-1] * columns

    def _described(self) -> bytes:
        """The body of the first RowDescription, or an empty one for a statement without a result."""
        start = 0
        while start + 5 <= len(self._received):
            (length,) = unpack_from(">i", self._received, start + 1)
            match chr(self._received[start]):
                case "T":
                    return bytes(self._received[start + 5 : start + 1 + length])
                case "n":
                    return _NO_COLUMNS
            start += 1 + length
        return b""


_NO_COLUMNS = b"\0\0"
