"""One form for values that are compared: those of the service, of the answers of calls, and of the rows that leave.

Arrow changes values on their way: the scale of a decimal, the zone of a timestamp, a tuple to a list, the absent fields
of a struct. So every value is compared as a column of its type gives it back, as plain data.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

_AS_THEY_ARE = {pa.string(): str, pa.int64(): int, pa.float64(): float, pa.bool_(): bool}
"""Types whose columns give back the values of these very classes unchanged."""


def as_arrow(value: Any, kind: pa.DataType) -> Any:
    """A value as a column of this type gives it back. Raises an error of any type if it does not fit."""
    if value is None or type(value) is _AS_THEY_ARE.get(kind):
        return value
    try:
        return pa.array([value], kind)[0].as_py()
    except NotImplementedError:
        # Arrow can read such a column, and cannot make it of Python's values.
        return value


def plain(value: Any) -> Any:
    """A value as JSON has it. Equal values have equal ones, whatever their zone or scale; and so have two NaN."""
    match value:
        case None | bool():
            return value
        case str():
            return str.__str__(value)
        case int():
            return int(value)
        case float():
            return float(value) if value == value else "NaN"
        case Decimal():
            return repr(value.as_integer_ratio()) if value.is_finite() else repr(value)
        case dt.datetime():
            return (value if value.tzinfo is None else value.astimezone(dt.UTC)).isoformat()
        case Mapping():
            return {str(name): plain(one) for name, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
    return repr(value)


def row_of(row: Mapping[str, Any], schema: pa.Schema) -> list[Any]:
    """The values of a row in the order of the columns, in their types, as plain data. An absent one is null."""
    return [plain(as_arrow(row.get(field.name), field.type)) for field in schema]
