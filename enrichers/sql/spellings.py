"""How dates and times may be written in SQLite, which has no type for them and compares texts.

`CURRENT_TIMESTAMP`, Python's `sqlite3`, SQLAlchemy, Django and `isoformat` write the same moment in different ways. A
key is looked up in all of these spellings, by the index of the column, so it finds every row that has this moment.

| part | ways |
| --- | --- |
| between date and time | a blank, T |
| seconds | left out if the time has whole minutes |
| their fraction | any number of digits up to six, and nine, if the others are zeros |
| midnight | the date alone |
| UTC, where times have a zone | +00:00, Z |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

MOST = 40
"""A moment has at most this many spellings."""

SEPARATORS = (" ", "T")
ZONES = ("+00:00", "Z")
DIGITS = (1, 2, 3, 4, 5, 6, 9)


def spellings_of(arrow: pa.DataType, dialect: str) -> Callable[[Any], Sequence[str]] | None:
    """A function that gives all spellings of a key, or None if a key has one form only."""
    if dialect != "sqlite":
        return None
    if kinds.is_date(arrow):
        return lambda key: (key.isoformat(),)
    if kinds.is_timestamp(arrow):
        return zoned if arrow.tz is not None else moments
    return None


def moments(key: datetime) -> list[str]:
    """The spellings of a time without a zone."""
    day, times = key.date().isoformat(), [f"{key:%H:%M:%S}{fraction}" for fraction in _fractions(key.microsecond)]
    if not (key.second or key.microsecond):
        times.append(f"{key:%H:%M}")
    found = [f"{day}{separator}{time}" for separator in SEPARATORS for time in times]
    return found if any((key.hour, key.minute, key.second, key.microsecond)) else [*found, day]


def zoned(key: datetime) -> list[str]:
    """The spellings of a time in UTC."""
    return [f"{text}{zone}" for text in moments(key.replace(tzinfo=None)) if len(text) > 10 for zone in ZONES]


def _fractions(microsecond: int) -> list[str]:
    digits = f"{microsecond:06}000"
    found = [f".{digits[:count]}" for count in DIGITS if not digits[count:].strip("0")]
    return found if microsecond else ["", *found]


def other_spelling(values: Sequence[Any], arrow: pa.DataType) -> Any:
    """The first of the values of a column that is a number or a time, but which no key can find; None if there is
    none. Other texts are no times, so no key is missed."""
    return next((value for value in values if not _is_found(value, arrow)), None)


def _is_found(value: Any, arrow: pa.DataType) -> bool:
    if not isinstance(value, str):
        return not isinstance(value, int | float)
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        return True
    if kinds.is_date(arrow):
        return value == read.date().isoformat()
    if arrow.tz is None:
        return read.tzinfo is None and value in moments(read)
    return read.tzinfo is not None and value in zoned(read.astimezone(UTC))
