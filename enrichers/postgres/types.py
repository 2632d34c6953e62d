"""The conversion of PostgreSQL's types to Arrow's, and the SQL for it.

A `Column` has four pieces of SQL, with ``{0}`` instead of the column: the value to select (cast to text if the client
would only convert it to text, more slowly); a guard that is false for a value that Python or Arrow cannot hold
(infinity, not-a-number, a year before 1); the bytes of a value for a result in columns; and, for a key, the array of
keys to compare it with. A value for which the guard is false never reaches the decoders of rows. A type that is not in
this table must be cast in a query.

Keys are never cast to the length or scale of their column: integers are sent as ``int8``, text without a length,
numerics without a scale. Dates and times are sent as text, because asyncpg sends the last day of the year 9999 as
infinity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from enrichers.databases import key_kinds
from enrichers.databases.enricher import MAX_PRECISION, decimal_size

FREE_KEY = pa.decimal256(2 * MAX_PRECISION, MAX_PRECISION)  # every decimal of Spark fits, of whatever scale


@dataclass(frozen=True)
class PgType:
    """A type of the server. Domains are resolved to their base types.

    Attributes:
        name: as the catalog has it, ``int4``; of a type outside of ``pg_catalog`` with its schema.
        sql: for use in SQL and in messages, quoted and qualified where necessary. A cast to it cuts and rounds nothing.
        modifier: length, or precision and scale; -1 if there is none.
        kind: the catalog's ``typtype``: "b" for a base type, "e" for an enum, "c" for a composite type.
        element: the element type of an array.
    """

    name: str
    sql: str
    modifier: int
    kind: str
    element: PgType | None = None


@dataclass(frozen=True)
class Column:
    """How one type is converted; see the module's docstring."""

    arrow: pa.DataType
    value: str = "{0}"
    guard: str = ""
    key: KeyColumn | None = None
    packed: str = field(kw_only=True)


@dataclass(frozen=True)
class Part:
    """One column of a key: what it holds (`column`), and what the query's parameter takes (`parameter`)."""

    column: key_kinds.Kind
    parameter: key_kinds.Kind

    def usable(self) -> bool:
        """Whether keys of the column can be sent as the parameter."""
        return self.parameter.family in (self.column.family, "text")

    def to_send(self, canonical: Sequence[Any]) -> Sequence[Any]:
        """Parameters for canonical keys, aligned; None for a key that the parameter cannot hold."""
        if self.parameter == self.column or self._is_wider():
            return canonical
        if self.parameter.family == "text" != self.column.family:
            return [None if key is None else _as_text(key) for key in canonical]
        return self.parameter.canonical_many(canonical)

    def _is_wider(self) -> bool:
        """Whether whatever the column holds fits the parameter as it is."""
        match self.column, self.parameter:
            case key_kinds.Integers(bits), key_kinds.Integers(wider):
                return bits <= wider
            case key_kinds.Numerics(), key_kinds.Numerics(None):
                return True
        return False


def _as_text(key: Any) -> str:
    """A canonical key as text that the server casts back without loss, whatever its settings are."""
    match key:
        case bool():
            return "true" if key else "false"
        case bytes():
            return "\\x" + key.hex()
        case date():
            return key.isoformat()
        case _:
            return str(key)


@dataclass(frozen=True)
class KeyColumn:
    """How a column is compared with keys.

    Attributes:
        parts: the kinds of the keys and of the parameter.
        array: the parameter, an array; ``{0}`` is its number.
        element: the SQL that converts one key before the comparison, with ``{0}`` in its place.
        value: the SQL that selects the column, to find the key of a row.
        number: for dates and times, the type of a number since 1970 and the SQL that converts it to a key.
        arrow: the type of the keys, if it is not the column's.
    """

    part: Part
    array: str
    element: str = "{0}"
    value: str = "{0}"
    number: tuple[str, str] | None = None
    arrow: pa.DataType | None = None

    def literal(self) -> KeyColumn:
        """The same, with a parameter that is the text of an array (see `arrow_keys`)."""
        if self.number is None:
            return replace(self, array=self.array.replace("${0}", "${0}::text"))
        kind, element = self.number
        return replace(self, array=f"${{0}}::text::{kind}[]", element=element)


def column_of(kind: PgType) -> Column | None:
    """The column for a type, or None if there is none."""
    if kind.element is not None:
        return _array(kind.element)
    if kind.kind == "e":
        # Casts only labels of the enum: a cast of any other text would be an error.
        sql = kind.sql.replace("{", "{{").replace("}", "}}")
        element = f"CASE WHEN {{0}} = ANY (enum_range(NULL::{sql})::text[]) THEN {{0}}::{sql} END"
        key = _key(key_kinds.Texts(), "${0}::text[]", element=element, value="{0}::text")
        return Column(pa.string(), "{0}::text", key=key, packed=_TEXT)
    if kind.name == "numeric":
        return _numeric(kind.modifier)
    return _PLAIN.get(kind.name) if kind.kind == "b" else None


def parameter_of(kind: PgType) -> key_kinds.Kind | None:
    """The kind of keys that a query's parameter takes, or None if it is not an array of keys."""
    element = kind.element
    if element is None or element.name == "name":
        return None  # a name is cut at 63 bytes
    if element.name == "float4":
        return key_kinds.Floats(single=True)
    column = column_of(element)
    return column.key.part.column if column and column.key else None


def _key(column: key_kinds.Kind, array: str, parameter: key_kinds.Kind | None = None, **more: Any) -> KeyColumn:
    return KeyColumn(Part(column, parameter or column), array, **more)


def _between(first: str, last: str) -> str:
    return f"({{0}} BETWEEN {first} AND {last})"


def _date_like(
    arrow: pa.DataType, name: str, guard: str, kind: key_kinds.Kind, number: tuple[str, str] | None = None
) -> Column:
    value = _guarded("{0}", guard)
    key = _key(kind, f"${{0}}::text[]::{name}[]", key_kinds.Texts(), value=value, number=number or _moment(name))
    return Column(arrow, value, guard, key, packed=f"{name}_send({{0}})")


def _moment(name: str) -> tuple[str, str]:
    """Microseconds since 1970 as a moment. An interval in hours is exact: its product stays within 53 bits."""
    hours, rest = "{0} / 3600000000 * interval '1 hour'", "{0} % 3600000000 * interval '1 microsecond'"
    return "int8", f"({name} '1970-01-01 00:00:00+00' + {hours} + {rest})"


def _guarded(value: str, guard: str) -> str:
    return f"CASE WHEN {guard} THEN {value} END"


def _numeric(modifier: int) -> Column:
    declared = None
    if modifier >= 4:
        # The server packs precision and scale into it: 16 bits, and 11 bits with a sign.
        packed = modifier - 4
        declared = packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 0x400) - 0x400
    precision, scale = decimal_size(*declared or (None, 0))
    key = _key(key_kinds.Numerics(*declared or ()), "${0}::numeric[]")
    if (precision, scale) == declared:
        return Column(pa.decimal128(precision, scale), guard="({0} <> 'NaN'::numeric)", key=key, packed=_TEXT)
    guard = f"(abs({{0}}) < 1e{precision - scale}::numeric AND {{0}} = round({{0}}, {scale}))"
    # More zeros than the decimal has digits may follow the last digit, and Arrow would not drop them.
    value = "trim_scale({0})"
    key = replace(key, value=value, arrow=FREE_KEY)
    return Column(pa.decimal128(precision, scale), value, guard, key, packed=f"textsend({value}::text)")


def _array(element: PgType) -> Column | None:
    column = column_of(element)
    if column is None or element.element is not None:
        return None
    guard = "coalesce(array_ndims({0}), 1) = 1"
    if column.guard:
        guard += f" AND NOT EXISTS (SELECT FROM unnest({{0}}) AS u (e) WHERE NOT {column.guard.format('u.e')})"
    packed = value = f"{{0}}::{element.sql}[]"
    match column.value:
        case "{0}::text":
            packed = value = "{0}::text[]"
        case "trim_scale({0})":
            trimmed = "ARRAY(SELECT trim_scale(u.e) FROM unnest({0}) AS u (e))"
            value = f"CASE WHEN {{0}} IS NOT NULL THEN {trimmed} END"
            # An array of several dimensions stays one, so that the client sees it.
            packed = f"CASE WHEN array_ndims({{0}}) = 1 THEN {trimmed} ELSE {{0}} END"
    if kinds.is_decimal(column.arrow):
        packed = f"({packed})::text[]"
    return Column(pa.list_(column.arrow), _guarded(value, f"({guard})"), f"({guard})", packed=f"array_send({packed})")


_TEXT = "textsend({0}::text)"


def _text_like() -> Column:
    return Column(pa.string(), key=_key(key_kinds.Texts(), "${0}::text[]"), packed="textsend({0})")


def _number(arrow: pa.DataType, kind: key_kinds.Kind, name: str, widest: key_kinds.Kind, send: str) -> Column:
    return Column(arrow, key=_key(kind, f"${{0}}::{name}[]", widest), packed=f"{send}({{0}})")


_INT8, _FLOAT8 = key_kinds.Integers(64), key_kinds.Floats()

_PLAIN = {
    "int2": _number(pa.int16(), key_kinds.Integers(16), "int8", _INT8, "int4send"),
    "int4": _number(pa.int32(), key_kinds.Integers(32), "int8", _INT8, "int4send"),
    "int8": _number(pa.int64(), _INT8, "int8", _INT8, "int8send"),
    "float4": _number(pa.float32(), _FLOAT8, "float8", _FLOAT8, "float4send"),
    "float8": _number(pa.float64(), _FLOAT8, "float8", _FLOAT8, "float8send"),
    "text": _text_like(),
    "varchar": _text_like(),
    "name": _text_like(),
    "bpchar": Column(
        pa.string(),
        key=_key(key_kinds.Texts(padded=True), "${0}::bpchar[]", value="{0}::text"),
        packed="bpcharsend({0})",
    ),
    "char": Column(pa.string(), "{0}::text", packed=_TEXT),
    "bool": Column(pa.bool_(), key=_key(key_kinds.Booleans(), "${0}::bool[]"), packed="boolsend({0})"),
    "bytea": Column(pa.binary(), key=_key(key_kinds.Binaries(), "${0}::bytea[]"), packed="{0}"),
    "uuid": Column(
        pa.string(), "{0}::text", key=_key(key_kinds.Uuids(), "${0}::uuid[]", value="{0}::text"), packed=_TEXT
    ),
    "json": Column(pa.string(), "{0}::text", packed=_TEXT),
    "jsonb": Column(pa.string(), "{0}::text", packed=_TEXT),
    "date": _date_like(
        pa.date32(),
        "date",
        _between("DATE '0001-01-01'", "DATE '9999-12-31'"),
        key_kinds.Dates(),
        ("int4", "(DATE '1970-01-01' + {0})"),
    ),
    "timestamp": _date_like(
        pa.timestamp("us"),
        "timestamp",
        _between("TIMESTAMP '0001-01-01 00:00:00'", "TIMESTAMP '9999-12-31 23:59:59.999999'"),
        key_kinds.Timestamps(),
    ),
    "timestamptz": _date_like(
        pa.timestamp("us", tz="UTC"),
        "timestamptz",
        _between("TIMESTAMPTZ '0001-01-01 00:00:00+00'", "TIMESTAMPTZ '9999-12-31 23:59:59.999999+00'"),
        key_kinds.Instants(),
    ),
}
