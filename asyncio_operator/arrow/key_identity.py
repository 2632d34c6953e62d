"""When two keys are the same: one rule for rows, running lookups, caches, tables and joins.

The rule is that of Spark's join and of PostgreSQL's ``=``:

    float           every NaN is one key; 0.0 and -0.0 are one key
    Decimal         by value, whatever the scale: 1.10 is 1.1
    datetime        with a zone: by the instant in UTC, whatever the zone and `fold`; without a zone: by the clock face
    str             by code points
    tuple           part by part, nested tuples too; with None in a part it is not a key, unless the part is optional
    anything else   by ``==``

Values of different types are different keys: 1, True and 1.0 are three.

The rule is applied in two steps. `canonical_key` returns the value that all spellings of a key share. Enrichers get
this value. Python can then compare and hash canonical keys of one type. If types may be mixed, `identity` adds the
types. `key_arrays` does the first step for Arrow columns. The bytes of `state.keys` follow the same rule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, date, datetime, timezone
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

NAN: Final = float("nan")
"""The one NaN. Dictionaries and tuples compare by ``is`` before ``==``, so they find it, and no other NaN."""

DECIMAL_NAN: Final = Decimal("NaN")  # The one NaN among decimals.


def canonical_key(key: Any) -> Any:
    """The canonical value of a key: equal for all its spellings. None if the key, or a part of it, is None.

    A datetime with a zone is converted to UTC, -0.0 to 0.0, NaN to `NAN`, a ``numpy.float64`` to a float, a Timestamp
    of pandas without nanoseconds to a datetime, NaT and NA of pandas and NumPy to None. Other values stay as they are.
    """
    kind = type(key)
    if kind is str or kind is int:
        return key
    canonical = _CANONICAL.get(kind)
    if canonical is not None:
        return canonical(key)
    if kind.__name__ in ("NaTType", "NAType") or (kind.__name__ in ("datetime64", "timedelta64") and key != key):
        return None
    if isinstance(key, datetime) and not getattr(key, "nanosecond", 0):
        return _datetime(datetime.combine(key.date(), key.timetz()))
    for base in (datetime, float, tuple):
        if isinstance(key, base):
            return _CANONICAL[base](key)
    return key


def canonical_optional(key: Any, optional: Collection[int]) -> Any:
    """As `canonical_key`, for keys whose parts at these positions may be None (law L1)."""
    if not optional or not isinstance(key, tuple):
        return canonical_key(key)
    parts = tuple(map(canonical_key, key))
    if any(part is None and (i not in optional or isinstance(key[i], tuple)) for i, part in enumerate(parts)):
        return None
    return parts


def storable(key: Any) -> Any:
    """The key with an empty tuple, which no other key has, instead of each None: stores refuse None in a key."""
    if type(key) is tuple and None in key:
        return tuple([() if part is None else part for part in key])
    return key


def identity(key: Any) -> Any:
    """A dictionary key for a canonical key. Two are equal if and only if their keys are the same.

    It can be hashed if the key can.
    """
    kind = type(key)
    if kind is str or kind is int:
        return key
    if not isinstance(key, tuple):
        return key, kind
    kinds = tuple(map(type, key))
    if kind is tuple and _COMPARABLE.issuperset(kinds):
        return key, kinds
    parts = tuple(map(identity, key))
    return (parts, kinds) if kind is tuple else (parts, kinds, kind)


def _float(key: float) -> float:
    return float(key) + 0.0 if key == key else NAN


def _decimal(key: Decimal) -> Decimal:
    if key.is_nan():
        return DECIMAL_NAN
    return key or key.copy_abs()


def _datetime(key: datetime) -> datetime:
    offset = None if key.tzinfo is None else key.utcoffset()
    if offset is None:
        return key.replace(tzinfo=None, fold=0) if key.fold or key.tzinfo is not None else key
    try:
        return key.astimezone(UTC)
    except OverflowError:
        # In UTC it is before the year 1 or after 9999. With a fixed offset Python compares by the instant.
        return key.replace(tzinfo=timezone(offset), fold=0)


def _tuple(key: tuple[Any, ...]) -> tuple[Any, ...] | None:
    parts = tuple(map(canonical_key, key))
    if any(part is None for part in parts):
        return None
    make: Callable[[Any], tuple[Any, ...]] = getattr(key, "_make", tuple)  # which named tuples have
    return parts if type(key) is tuple else make(parts)


_CANONICAL: dict[type, Callable[[Any], Any]] = {float: _float, Decimal: _decimal, datetime: _datetime, tuple: _tuple}

_COMPARABLE = frozenset((str, int, float, bool, bytes, Decimal, date, datetime, UUID))
"""Types whose canonical values Python compares by the rule. A part of another type may contain values of mixed
types."""
