"""The statement that answers a batch of keys, and how its rows are assigned to keys. This module uses no server.

From a table, for one key, for many, and for many of several columns (an index on the key columns serves both):

    SELECT columns, keys, problem FROM "table" AS t WHERE t."id" = $1::int8 AND types
    SELECT columns, keys, problem FROM "table" AS t WHERE t."id" = ANY ($1::int8[]) AND types
    SELECT columns, keys, problem FROM unnest((SELECT $1::int8[]), (SELECT $2::text[])) AS k (k0, k1)
        JOIN "table" AS t ON t."a" = k.k0 AND t."b" = k.k1 AND types

A single key has its own statement, because one with an array is planned again each time, which takes as long as running
it. The inner SELECT hides the length of an array from the planner, which then uses an existing index. A planner that
knows of a thousand keys would scan all of 100,000 rows. Without an index it uses a hash in both cases.

A query of the user becomes ``SELECT columns, keys, problem FROM (query) AS t WHERE types``, which keeps the order of
its rows. The column ``problem`` exists if a column has a guard: it is null, or the number of the first column whose
value cannot be converted, a colon, and that value as text.

``types`` is always true, and costs nothing: the planner drops what is ORed with true. But the server looks up its
operators first, and so refuses the statement if a column has got another type since the driver described it:

    (true OR array_fill(t."n", NULL::int4[]) && NULL::integer[] OR ...)

Two arrays of different types never have this operator, while most functions would take other types, by a cast.
``array_fill`` makes an array of any type but an array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import pyarrow as pa

from enrichers.databases.key_kinds import NAN, canonical_keys
from enrichers.postgres.columns import packing
from enrichers.postgres.types import Column, KeyColumn, Part

Collect = Callable[[Sequence[Any], dict[Any, Any], Callable[[Any, str], NoReturn]], None]


@dataclass(frozen=True)
class Source:
    """The source of rows.

    Attributes:
        sql: valid after FROM.
        columns: for each column the SQL of its value.
        types: for each column whose type must not change the name of its type.
        casts: for each column that the server casts the SQL of what is cast and the name of the type.
    """

    sql: str
    columns: Mapping[str, str]
    types: Mapping[str, str]
    casts: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Statement:
    """Everything that a worker must know of the source. It is made on the driver and sent to the workers.

    Attributes:
        schema: the columns of a row.
        key_schema: the key columns.
        sql: takes one array per key column.
        single: the same for one key, which takes one value per key column; "" if there is none.
        packed: the same as `sql` with its result in columns (see `columns`), for a table with array literals as
            parameters (see `arrow_keys`); "" if there is none.
        whole: the same as `sql` for all rows that have a key; "" for a query, which takes keys.
        whole_packed: the same as `whole` with its result in columns, in several records; "" if there is none.
        key: how keys are sent and recognised in the result.
        guarded: whether the last column of the result is the problem.
        types: for each column whose type must not change the name of the type.
        types_now: the types that these columns have now, in one row; takes the parameters of a query, for no keys.
        casts: for each column that the server casts: the name of the type; the statements for the value before the
            cast, as text, and for its cast, which take what `sql` takes.
    """

    schema: pa.Schema
    key_schema: pa.Schema
    sql: str
    single: str
    packed: str
    whole: str
    whole_packed: str
    key: tuple[Part, ...]
    guarded: bool
    types: Mapping[str, str]
    types_now: str
    casts: Mapping[str, tuple[str, str, str]]

    @cached_property
    def answer(self) -> pa.Schema:
        """The columns of an answer in columns: those of a row, and the key columns that are not among them."""
        return pa.schema([*self.schema, *(field for field in self.key_schema if field.name not in self.schema.names)])

    @cached_property
    def row_type(self) -> pa.StructType:
        """`answer` as the type of a row."""
        return pa.struct(list(self.answer))

    @cached_property
    def places(self) -> list[int]:
        """For each column of `answer`, its place in a row."""
        keys = [len(self.schema) + i for i, name in enumerate(self.key_schema.names) if name not in self.schema.names]
        return [*range(len(self.schema)), *keys]

    def canonical(self, keys: Sequence[Any]) -> Sequence[Any]:
        """See `key_kinds.canonical_keys`."""
        return canonical_keys(keys, [part.column.canonical_many for part in self.key])

    def key_of(self, row: Sequence[Any]) -> Any:
        """The key of a row: a tuple for several parts."""
        key = tuple(row[len(self.schema) : len(self.schema) + len(self.key)])
        return key if len(key) > 1 else key[0]

    @property
    def takes_literals(self) -> bool:
        """Whether `packed` takes array literals. The parameters of a query are its author's."""
        return bool(self.whole)

    def call(self, canonical: Sequence[Any]) -> tuple[str, Sequence[Any]] | None:
        """SQL and its parameters for canonical keys, or None if there is nothing to ask the server."""
        if len(canonical) == 1 and self.single:
            key = canonical[0]
            if key is None:
                return None
            values = (key,) if len(self.key) == 1 else key
            sent = [part.to_send((value,))[0] for part, value in zip(self.key, values, strict=True)]
            return None if None in sent else (self.single, sent)
        arrays = self.arrays(canonical)
        return (self.sql, arrays) if arrays[0] else None

    def arrays(self, canonical: Sequence[Any]) -> list[Sequence[Any]]:
        """The parameters for canonical keys: one array per key column, without keys that cannot be found."""
        if len(self.key) == 1:
            sent = self.key[0].to_send(canonical)
            return [[key for key in sent if key is not None] if None in sent else sent]
        # A join returns the rows of a key twice if the key occurs twice, so keys are made distinct.
        asked = [key for key in dict.fromkeys(canonical) if key is not None]
        columns = [part.to_send([key[i] for key in asked]) for i, part in enumerate(self.key)]
        rows = [row for row in zip(*columns, strict=True) if None not in row]
        return [[row[i] for row in rows] for i in range(len(columns))]


def identifier(*parts: str) -> str:
    """A quoted name for SQL: the server takes it exactly as it is."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def make_statement(
    source: Source, columns: Mapping[str, Column], key: Mapping[str, Column], *, query: bool
) -> Statement:
    """The statement that selects `columns` of a source by `key`; every key column must have a `KeyColumn`."""
    key_columns = [column.key for column in key.values() if column.key]
    names = [source.columns[name] for name in key]
    values = [column.value.format(source.columns[name]) for name, column in columns.items()]
    values += [column.value.format(name) for name, column in zip(names, key_columns, strict=True)]
    cases = [
        f"WHEN NOT {column.guard.format(source.columns[name])} "
        f"THEN '{number}:' || left({source.columns[name]}::text, 200)"
        for number, (name, column) in enumerate(columns.items())
        if column.guard
    ]
    problem = f"CASE {' '.join(cases)} END" if cases else ""
    select = f"SELECT {', '.join([*values, problem] if problem else values)} "
    everything = f"FROM {source.sql}"
    # A condition that is true, for which the server needs the types of the columns.
    compared = []
    for name, kind in source.types.items():
        value, is_array = source.columns[name], kind.endswith("[]")
        array = value if is_array else f"pg_catalog.array_fill({value}, NULL::int4[])"
        compared.append(f"{array} OPERATOR(pg_catalog.&&) NULL::{kind if is_array else kind + '[]'}")
    types = f"({' OR '.join(['true', *compared])})"
    keyed = " AND ".join(f"({value}) IS NOT NULL" for value in values[len(columns) :])
    packed = [(source.columns[name], column) for name, column in (dict(columns) | dict(key)).items()]
    head, tail = packing(packed)
    head_of_parts, tail_of_parts = packing(packed, parts=True)
    whole = f"{everything} WHERE {keyed} AND {types}"
    literals = [column.literal() for column in key_columns]
    by_key = f"{everything} WHERE {types}" if query else _by_key(source.sql, names, key_columns, types)
    return Statement(
        pa.schema([(name, column.arrow) for name, column in columns.items()]),
        pa.schema([(name, column.arrow) for name, column in key.items()]),
        select + by_key,
        "" if query else _single(select + everything, names, key_columns, types),
        head + (by_key if query else _by_key(source.sql, names, literals, types)) + tail if head else "",
        "" if query else select + whole,
        "" if query or not head else head_of_parts + whole + tail_of_parts,
        tuple(column.part for column in key_columns),
        bool(problem),
        source.types,
        types_of(source.sql, [source.columns[name] for name in source.types]),
        {
            name: (shown, f"SELECT left({raw}::text, 200) {by_key}", f"SELECT {source.columns[name]} {by_key}")
            for name, (raw, shown) in source.casts.items()
        },
    )


def types_of(source: str, columns: Sequence[str]) -> str:
    """A statement for the types of columns in one row, by their names. It reads nothing of the source."""
    names = ", ".join(f"pg_catalog.pg_typeof({column})::text" for column in columns)
    return f"SELECT {names} FROM (VALUES (1)) AS one (n) LEFT JOIN {source} ON false"


def _by_key(table: str, names: Sequence[str], key: Sequence[KeyColumn], types: str) -> str:
    arrays = [column.array.format(number) for number, column in enumerate(key, 1)]
    if len(key) == 1:
        return f"FROM {table} WHERE {names[0]} = ANY ({_one_array(arrays[0], key[0])}) AND {types}"
    parts = [f"k{number}" for number in range(len(key))]
    conditions = [
        f"{name} = {column.element.format('k.' + part)}" for name, column, part in zip(names, key, parts, strict=True)
    ]
    keys = ", ".join(f"(SELECT {array})" for array in arrays)
    return f"FROM unnest({keys}) AS k ({', '.join(parts)}) JOIN {table} ON {' AND '.join([*conditions, types])}"


def _single(select: str, names: Sequence[str], key: Sequence[KeyColumn], types: str) -> str:
    if any(column.element != "{0}" for column in key):
        return ""  # planning would convert the key before it is known to be one
    values = [column.array.format(number).replace("[]", "") for number, column in enumerate(key, 1)]
    conditions = [f"{name} = {value}" for name, value in zip(names, values, strict=True)]
    return f"{select} WHERE {' AND '.join([*conditions, types])}"


def _one_array(array: str, column: KeyColumn) -> str:
    if column.element == "{0}":
        return array
    return f"ARRAY(SELECT {column.element.format('u.e')} FROM unnest({array}) AS u (e))"


def make_collect(statement: Statement) -> Collect:
    """A function that groups the rows of a result by key: ``collect(records, found, refuse)``.

    `found` maps a canonical key (a tuple for several parts) to its row, or to the list of its rows. `refuse` is called
    with a key and its problem. The function is generated for the columns of the statement, like a `namedtuple`. A row
    then takes half of the time of ``dict(zip(names, record))``, and rows take most of the client's time.
    """
    columns = [f"c{number}" for number in range(len(statement.schema))]
    parts = [f"k{number}" for number in range(len(statement.key))]
    canonical = [part.column.from_row.format(name) for part, name in zip(statement.key, parts, strict=True)]
    row = ", ".join(f"{name!r}: {column}" for name, column in zip(statement.schema.names, columns, strict=True))
    unpacked = [*columns, *parts, *(["problem"] if statement.guarded else [])]
    lines = [
        "def collect(records, found, refuse):",
        f"    for {', '.join(unpacked)} in records:",
        f"        key = {canonical[0] if len(parts) == 1 else '(' + ', '.join(canonical) + ')'}",
        *(["        if problem is not None: refuse(key, problem)"] if statement.guarded else []),
        f"        row = {{{row}}}",
        "        if key in found: found[key] = with_another(found[key], row)",
        "        else: found[key] = row",
    ]
    names: dict[str, Any] = {**NAN, "with_another": _with_another}
    exec("\n".join(lines), names)
    collect: Collect = names["collect"]
    return collect


def _with_another(found: Any, row: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a key, with another row. A list was made by this function, so it may be extended."""
    if isinstance(found, list):
        found.append(row)
        return found
    return [found, row]
