"""The SELECT that answers a batch of keys, and how its rows are assigned to keys. This module uses no server.

    SELECT columns, keys FROM "table" WHERE "id" IN (?, ?, ...)
    SELECT columns, keys FROM "table" WHERE ("a", "b") IN ((?, ?), ...)
    SELECT columns, keys FROM "table" WHERE "a" = ? AND "b" IN (?, ?, ...) OR "a" = ? AND "b" IN (...)

The third form is for databases without row values, and for MySQL and MariaDB if a key column has another character set
than utf8mb4: there row values miss rows that the other forms find. Keys are always parameters. SQLAlchemy quotes names
where they need it. A query of the user has the parameter ``:keys``, which becomes the list in brackets.

Rows of a table whose key was not asked for are ignored: a collation that ignores case, or blanks at the end, finds rows
whose key is another one for Spark. In the result of a query such rows are an error, because a query that changes its
keys would look like one that finds nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import types

from enrichers.databases.key_kinds import Others, canonical_keys
from enrichers.sql.column_types import Column, as_parameter, canonical_values, parameter_type, values_of
from enrichers.sql.spellings import MOST, spellings_of
from enrichers.typed import MisfitError

KEYS = "keys"
"""The parameter of a query."""

MOST_PARAMETERS = {
    "mssql": 2_000,
    "oracle": 1_000,
    "postgresql": 32_000,
    "sqlite": 32_766 if sqlite3.sqlite_version_info >= (3, 32) else 999,
}
"""How many parameters, or elements of a list, a statement may have, by dialect."""

OTHERWISE = 30_000
"""The same for other dialects. MySQL has a limit of bytes only."""

WITHOUT_ROW_VALUES = frozenset(("mssql",))
"""Dialects that have no row values."""


class StrangerError(Exception):
    """The result of a query has a row whose key was not asked for. The argument is the key."""


class AbsentError(Exception):
    """The result has no longer a column of this name."""


@dataclass(frozen=True)
class Described:
    """Everything that a worker must know of the source. It is made on the driver and sent to the workers.

    Attributes:
        schema: the columns of a row.
        key: the key columns by name.
        dialect: its name, which SQLAlchemy knows for sure only when it is connected.
        short_floats: the columns of which the server would send six digits only. They are selected as doubles.
        without_row_values: whether row values find the keys of this table less surely than their parts do.
    """

    schema: pa.Schema
    key: Mapping[str, Column]
    dialect: str
    short_floats: frozenset[str] = frozenset()
    without_row_values: bool = False

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns. A null type is open."""
        return pa.schema([(name, column.arrow) for name, column in self.key.items()])

    @property
    def names(self) -> list[str]:
        """The columns of a result: those of a row, and the key columns that are not among them."""
        return [*self.schema.names, *(name for name in self.key if name not in self.schema.names)]

    def canonical(self, keys: Sequence[Any]) -> Sequence[Any]:
        """See `key_kinds.canonical_keys`."""
        return canonical_keys(
            keys, [partial(canonical_values, column.kind, self.dialect) for column in self.key.values()]
        )


class Statement:
    """The statement of one worker.

    Args:
        table: the schema, or None, and the name of a table.
        query: SQL instead of `table`.
    """

    def __init__(self, described: Described, table: Sequence[str] | None, query: str | None) -> None:
        dialect = described.dialect
        self._described = described
        self._key = [*described.key.values()]
        self._dialect = dialect
        self._strict = query is not None
        self._types = [parameter_type(column, dialect) for column in self._key]
        without = dialect in WITHOUT_ROW_VALUES or described.without_row_values
        self._grouped = query is None and len(self._key) > 1 and without
        parts = len(self._key)
        self._spell = [spellings_of(column.arrow, dialect) for column in self._key]
        ways = prod(1 if spell is None else MOST for spell in self._spell)
        self._most = max(1, MOST_PARAMETERS.get(dialect, OTHERWISE) // ((parts + self._grouped) * ways))
        keys = sa.bindparam(KEYS, expanding=True, type_=self._types[0] if parts == 1 else types.TupleType(*self._types))
        self._condition: Any = None
        if query is not None:
            self._select: Any = sa.text(query).bindparams(keys)
            return
        source = table_of(table or (), described.names)
        self._columns = [source.c[name] for name in described.key]
        # With all digits: a product with 1 is a double in all versions, as `CAST ... AS DOUBLE` is not.
        doubles = {name: (source.c[name] * sa.literal_column("1e0")).label(name) for name in described.short_floats}
        self._select = sa.select(*(doubles.get(name, source.c[name]) for name in described.names))
        if not self._grouped:
            left = self._columns[0] if parts == 1 else sa.tuple_(*self._columns)
            self._condition = self._select.where(left.in_(keys))

    def calls(self, canonical: Sequence[Any]) -> Iterator[tuple[Any, dict[str, Any], Sequence[Any]]]:
        """Statements, their parameters and their keys, for canonical keys, each key once."""
        keys = list(dict.fromkeys(key for key in canonical if key is not None))
        for start in range(0, len(keys), self._most):
            part = keys[start : start + self._most]
            if self._grouped:
                yield self._select.where(self._groups(part)), {}, part
            else:
                yield self._select if self._strict else self._condition, {KEYS: self._parameters(part)}, part

    def without_keys(self) -> tuple[Any, dict[str, Any]]:
        """A statement that finds nothing, but checks names and privileges."""
        return (self._select, {KEYS: []}) if self._strict else (self._select.where(sa.false()), {})

    def whole(self) -> Any:
        """The statement for all rows of a table."""
        return self._select

    def collect(self, names: Sequence[str], records: Sequence[Any], asked: Sequence[Any] | None) -> dict[Any, Any]:
        """The rows of a result by their canonical keys: one row, or a list of several.

        Args:
            names: the columns of the result.
            asked: the canonical keys that were asked for; None if all rows are wanted.

        Raises:
            AbsentError, MisfitError, StrangerError: see there.
        """
        found: dict[Any, Any] = {}
        if not records:
            return found
        absent = [name for name in self._described.names if name not in names]
        if absent:
            raise AbsentError(absent[0])
        columns: dict[str, Sequence[Any]] = dict(zip(names, zip(*records, strict=True), strict=True))
        parts = []
        for name, column in self._described.key.items():
            values: Sequence[Any] = columns[name]
            field = pa.field(name, column.arrow)
            if not isinstance(column.kind, Others):
                values = self._values(values, field, [record[names.index(name)] for record in records])
            parts.append(canonical_values(column.kind, self._dialect, values))
        keys = [*parts[0]] if len(parts) == 1 else [None if None in key else key for key in zip(*parts, strict=True)]
        schema = self._described.schema
        chosen = [self._values(columns[field.name], field, keys) for field in schema]
        known = None if asked is None else {*asked}
        for key, row in zip(keys, zip(*chosen, strict=True), strict=True):
            if key is None or (known is not None and key not in known):
                if self._strict:
                    raise StrangerError(key)
                continue
            made = dict(zip(schema.names, row, strict=True))
            before = found.setdefault(key, made)
            if type(before) is list:
                before.append(made)
            elif before is not made:
                found[key] = [before, made]
        return found

    def _values(self, column: Sequence[Any], field: pa.Field, keys: Sequence[Any]) -> Sequence[Any]:
        try:
            return values_of(column, field)
        except MisfitError as error:
            error.row = keys[error.row]
            raise

    def _parameters(self, keys: Sequence[Any]) -> Sequence[Any]:
        if len(self._key) == 1:
            [spell] = self._spell
            if spell is not None:
                return [text for key in keys for text in spell(key)]
            return as_parameter(keys, self._key[0], self._dialect)
        columns = zip(*keys, strict=True)
        made = zip(*(as_parameter(v, c, self._dialect) for v, c in zip(columns, self._key, strict=True)), strict=True)
        if self._spell.count(None) == len(self._spell):
            return [*made]
        return [
            one
            for key in made
            for one in product(*(s(part) if s else (part,) for s, part in zip(self._spell, key, strict=True)))
        ]

    def _groups(self, keys: Sequence[Any]) -> Any:
        """The condition for composite keys without row values: keys with equal first parts share a list."""
        groups: dict[tuple[Any, ...], list[Any]] = {}
        for *first, last in self._parameters(keys):
            groups.setdefault((*first,), []).append(last)
        *columns, column = self._columns
        *kinds, kind = self._types
        return sa.or_(
            *(
                sa.and_(
                    *(c == sa.literal(value, t) for c, value, t in zip(columns, first, kinds, strict=True)),
                    column.in_([sa.literal(value, kind) for value in last]),
                )
                for first, last in groups.items()
            )
        )


def table_of(table: Sequence[str], names: Sequence[str]) -> sa.TableClause:
    """A table of SQLAlchemy whose columns have no type, so that values come as the driver returns them."""
    *schemas, name = table
    return sa.table(name, *map(sa.column, names), schema=".".join(schemas) or None)
