"""Asks a server for the columns of a table or a query, and builds the statement for lookups.

The server describes ``SELECT * FROM table``, or the query, without running it. The catalog resolves its types. EXPLAIN
of the finished statement shows whether the privileges are sufficient. Every problem is one `ConfigurationError` that
names the problem and the existing tables or columns. Only names and types are read, and nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import asyncpg

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import did_you_mean
from asyncio_operator.services.postgres_causes import source_error
from enrichers.postgres.keys import Part
from enrichers.postgres.modifiers import Listener
from enrichers.postgres.statement import Source, Statement, identifier, make_statement
from enrichers.postgres.types import Column, KeyColumn, PgType, column_of, parameter_of

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
    """What the user selects: a table or a query, its key columns, and the columns to add, or None for all others.

    `subject` names it in messages, `dsn` is hidden in them.
    """

    table: tuple[str, ...] | None
    query: str | None
    key: tuple[str, ...]
    columns: tuple[str, ...] | None
    subject: str
    dsn: str


async def describe(connection: asyncpg.Connection, selection: Selection) -> Statement:
    """The statement for a selection.

    Raises:
        ConfigurationError: the table, a column or a privilege is missing, a type cannot be used, the query is wrong.
    """
    sql = selection.query if selection.query is not None else f"SELECT * FROM {identifier(*selection.table or ())}"
    described = await _describe(connection, sql, selection)
    if selection.query is not None:
        await _check_it_reads(connection, selection)
    names = [name for name, _, _ in described.columns]
    chosen = _chosen(selection, names)
    types = {
        name: await _type(connection, oid, modifier) for name, oid, modifier in described.columns if name in chosen
    }
    columns = _columns(selection, types)
    key = {name: _key_column(selection, name, columns[name], types[name]) for name in selection.key}
    if selection.query is not None:
        key = await _with_parameters(connection, selection, key, described.parameters)
    source = _source(selection, names)
    added = selection.columns or [name for name in chosen if name not in selection.key]
    statement = make_statement(source, {n: columns[n] for n in added}, key, query=selection.query is not None)
    await _explain(connection, statement, selection)
    return statement


@dataclass
class _Described:
    columns: Sequence[tuple[str, int, int]]
    parameters: Sequence[int]


async def _describe(connection: asyncpg.Connection, sql: str, selection: Selection) -> _Described:
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
            several = _no_select(selection, "more than one statement") if _is_several(error) else None
            problem = several or source_error(error, selection.subject, selection.dsn, _foreign_parameter(error, sql))
        else:
            attributes = prepared.get_attributes()
            if listener is None:
                catalog = await connection.fetch(_COLUMNS, identifier(*selection.table or ()))
                known = {name: (oid, modifier) for name, oid, modifier in catalog}
                columns = [(a.name, *known.get(a.name, (a.type.oid, -1))) for a in attributes]
            else:
                modifiers = listener.modifiers(len(attributes))
                columns = [(a.name, a.type.oid, modifier) for a, modifier in zip(attributes, modifiers, strict=True)]
            return _Described(columns, [parameter.oid for parameter in prepared.get_parameters()])
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


def _is_several(error: Exception) -> bool:
    """Whether the server found more than one statement. It reports that as a syntax error from this place."""
    place = getattr(error, "server_source_function", None)
    return isinstance(error, asyncpg.PostgresSyntaxError) and place == "exec_parse_message"


def _no_select(selection: Selection, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{selection.subject}: the query is {what}; it must be one statement that gives rows and only reads (SELECT, "
        "VALUES, or WITH ... SELECT), because it is run as a subquery"
    )


def _chosen(selection: Selection, names: Sequence[str]) -> list[str]:
    """The columns that are needed, in the source's order."""
    needed = {*names} if selection.columns is None else {*selection.columns, *selection.key}
    for name in [*selection.key, *(selection.columns or ())]:
        if name not in names:
            raise ConfigurationError(f"{selection.subject}: there is no column {name!r}; {did_you_mean(name, names)}")
    for name in names:
        if name in needed and names.count(name) > 1:
            raise ConfigurationError(
                f"{selection.subject}: the result has {names.count(name)} columns {name!r}; name them apart with AS"
            )
    if needed == {*selection.key} and selection.columns is None:
        raise ConfigurationError(
            f"{selection.subject}: it has no column besides the key; name the ones you want, as in "
            f"columns={list(selection.key)!r}"
        )
    return [name for name in names if name in needed]


def _columns(selection: Selection, types: Mapping[str, PgType]) -> dict[str, Column]:
    columns = {name: column for name, kind in types.items() if (column := column_of(kind)) is not None}
    unusable = [name for name in types if name not in columns]
    if unusable:
        listed = ", ".join(f"the column {name!r} of type {types[name].sql}" for name in unusable)
        others = [name for name in columns if name not in selection.key]
        remedies = [f"choose the other columns, with columns={others!r}"] if others else []
        remedies.append(f"cast it in a query, with query={_casting(selection, types, unusable)!r}")
        raise ConfigurationError(
            f"{selection.subject}: Spark has no counterpart for {listed}; {', or '.join(remedies)}"
        )
    return columns


def _casting(selection: Selection, types: Mapping[str, PgType], unusable: Sequence[str]) -> str:
    """A query with the same result, in which unusable types are cast to text. Users can copy it."""
    sql = {name: identifier(name) + ("::text" if name in unusable else "") for name in types}
    selected = ", ".join(sql[name] + (f" AS {identifier(name)}" if name in unusable else "") for name in types)
    if selection.table is None:
        return f"SELECT {selected} FROM ..."
    keys, arrays = [], []
    for number, name in enumerate(selection.key, 1):
        column = None if name in unusable else column_of(types[name])
        plain = column is not None and column.key is not None and column.key.element == "{0}"
        keys.append(identifier(name) + ("" if plain else "::text"))
        arrays.append((column.key.array if plain else "${0}::text[]").format(number))
    found = f"{keys[0]} = ANY ({arrays[0]})" if len(keys) == 1 else _among(keys, arrays)
    return f"SELECT {selected} FROM {identifier(*selection.table)} WHERE {found}"


def _among(keys: Sequence[str], arrays: Sequence[str]) -> str:
    return f"({', '.join(keys)}) IN (SELECT * FROM unnest({', '.join(arrays)}))"


def _key_column(selection: Selection, name: str, column: Column, kind: PgType) -> Column:
    if column.key is None:
        raise ConfigurationError(
            f"{selection.subject}: the key column {name!r} is of type {kind.sql}, which cannot be looked up; use a "
            "query that casts it, as in query='SELECT ... WHERE ...::text = ANY ($1)'"
        )
    return column


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


def _source(selection: Selection, names: Sequence[str]) -> Source:
    if selection.query is None:
        return Source(f"{identifier(*selection.table or ())} AS t", {name: f"t.{identifier(name)}" for name in names})
    columns = [f"c{number}" for number in range(len(names))]
    return Source(
        f"{_subquery(selection)} AS t ({', '.join(columns)})",
        {name: f"t.{column}" for name, column in zip(names, columns, strict=True)},
    )


def _subquery(selection: Selection) -> str:
    query = (selection.query or "").rstrip().rstrip(";")
    return f"({query}\n)"


async def _explain(connection: asyncpg.Connection, statement: Statement, selection: Selection) -> None:
    """Plan the statement. This checks its operators, and the privileges to run it."""
    try:
        await connection.fetch(f"EXPLAIN {statement.sql}", *([] for _ in statement.key))
        return
    except Exception as error:
        problem = source_error(error, selection.subject, selection.dsn)
    raise problem


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
