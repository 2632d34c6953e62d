"""Keys of a typed column: which Python values match a column's values.

A `Kind` belongs to a key column of a database. It gives each key its canonical form: the form that a value of the
column has, so that rows are matched to keys by equality in Python, as Spark's join and the server match them. The forms
are those of `canonical_key`. A kind adds what the type of its column decides, as `key_fit` does for columns of Arrow:

| column | keys that match | how |
| --- | --- | --- |
| integer | int, float, Decimal | by value, exactly; 1.0 is 1, and 1.5 is not a key |
| float | int, float, Decimal | by the nearest double |
| decimal | int, float, Decimal | by value; a float is the shortest decimal that reads back as it |
| text, boolean, bytes, date | the same type | |
| timestamp without a zone | datetime without a zone | by the clock face |
| timestamp with a zone | datetime with a zone | by the instant in UTC |

None means a key that no row can hold (2**40 for an ``int4``, "x" for a ``uuid``): it is a miss. A key of a type
that cannot be compared with the column at all is a `TypeError`.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from numbers import Integral
from struct import pack, unpack
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator.enricher import canonical_key, key_family

NAN = {"nan": canonical_key(math.nan), "decimal_nan": canonical_key(Decimal("NaN"))}
"""The canonical forms of not-a-number, under the names that they have in `Kind.from_row`."""

_DIGITS = "(?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}"
_UUID = re.compile(rf"{_DIGITS}|\{{{_DIGITS}\}}")
"""PostgreSQL's rule: a hyphen may follow every four digits. Python's own reader also takes blanks, 0x, urn: and digits
of other scripts, for which the server would find nothing."""

_WIDE = Context(prec=10_000)
"""For all digits of a column: PostgreSQL declares at most 1,000 before the point, and as many after it."""


class Kind:
    """The keys of one type of column.

    Attributes:
        family: kinds of one family can be compared with each other.
        takes: the types of keys, without `but`: for Python True is an int, and a datetime is a date.
        exact: a type of which most values are canonical as they are.
        from_row: the canonical form of a row's value, as a Python expression.
    """

    family: ClassVar[str]
    takes: ClassVar[tuple[type, ...]] = (int, float, Decimal)
    but: ClassVar[tuple[type, ...]] = (bool,)
    exact: ClassVar[type | None] = None
    from_row: ClassVar[str] = "{}"

    def canonical(self, key: Any) -> Any:
        """The canonical form of a key, or None if no row can hold it."""
        if isinstance(key, self.takes) and not isinstance(key, self.but) and self._is_taken(key):
            return self._canonical(key)
        raise TypeError(f"a key of type {type(key).__name__} cannot be compared with a column of type {self.family}")

    def canonical_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        """The canonical forms of many keys, aligned with them; None stays None."""
        if self.exact is not None and {*map(type, keys)} == {self.exact} and self._are_canonical(keys):
            return keys
        return [None if key is None else self.canonical(key) for key in keys]

    def _is_taken(self, key: Any) -> bool:
        """Whether a key of one of the types can be compared with the column."""
        return True

    def _canonical(self, key: Any) -> Any:
        """The canonical form of a key that is taken."""
        return canonical_key(key)

    def _are_canonical(self, keys: Sequence[Any]) -> bool:
        """Whether all keys, of the type `exact`, are canonical as they are."""
        return True


@dataclass(frozen=True)
class Integers(Kind):
    """Whole numbers of 16, 32 or 64 bits."""

    bits: int
    family = "number"
    takes = (Integral, float, Decimal)
    exact = int

    def _canonical(self, key: Any) -> int | None:
        if not isinstance(key, Integral) and (not math.isfinite(key) or key != int(key)):
            return None
        return number if self._are_canonical([number := int(key)]) else None

    def _are_canonical(self, keys: Sequence[Any]) -> bool:
        limit = 1 << (self.bits - 1)
        return bool(-limit <= min(keys) and max(keys) < limit)


@dataclass(frozen=True)
class Floats(Kind):
    """Floating-point numbers; of single precision only where the server would round a key to it."""

    single: bool = False
    family = "number"
    from_row = "({0} if {0} == {0} else nan)"

    def _canonical(self, key: Any) -> Any:
        try:
            number = float(key)
            if math.isinf(number) and key != number:
                return None  # a Decimal, which becomes infinite where an int is an error
            if self.single and number == number and unpack("f", pack("f", number))[0] != number:
                return None
        except OverflowError:
            return None
        return canonical_key(number)


@dataclass(frozen=True)
class Numerics(Kind):
    """Exact decimal numbers, of any size or of one; a float means the shortest decimal that reads back as it."""

    precision: int | None = None
    scale: int = 0
    family = "number"
    most_digits: ClassVar[int] = 131_072  # before the point; asyncpg would send a number of more as another one
    from_row = "({0} if {0} == {0} else decimal_nan)"

    def _canonical(self, key: Any) -> Any:
        canonical = canonical_key(Decimal(repr(key)) if isinstance(key, float) else Decimal(key))
        return canonical if canonical.is_nan() or self._holds(canonical) else None

    def _holds(self, number: Decimal) -> bool:
        if self.precision is None:
            return number.adjusted() < self.most_digits
        if not number or not number.is_finite():
            return not number
        fits = number.adjusted() < self.precision - self.scale
        return fits and number == number.quantize(Decimal(1).scaleb(-self.scale), context=_WIDE)


@dataclass(frozen=True)
class Texts(Kind):
    """Text, and what is compared as text: varchar, name, enum labels. `padded`: blanks at the end do not count."""

    padded: bool = False
    family = "text"
    takes = (str,)
    exact = str

    def _canonical(self, key: Any) -> Any:
        return key.rstrip(" ") if self.padded else key

    def _are_canonical(self, keys: Sequence[Any]) -> bool:
        return not self.padded


@dataclass(frozen=True)
class Uuids(Kind):
    """UUIDs in the spellings that PostgreSQL accepts; canonical is the server's, lower case with hyphens."""

    family = "text"
    takes = (str, uuid.UUID)

    def _canonical(self, key: Any) -> str | None:
        return str(uuid.UUID(str(key))) if isinstance(key, uuid.UUID) or _UUID.fullmatch(key) else None


@dataclass(frozen=True)
class Booleans(Kind):
    """True and False."""

    family = "boolean"
    takes, but = (bool,), ()
    exact = bool


@dataclass(frozen=True)
class Binaries(Kind):
    """Bytes."""

    family = "binary"
    takes = (bytes, bytearray, memoryview)
    exact = bytes

    def _canonical(self, key: Any) -> bytes:
        return bytes(key)


@dataclass(frozen=True)
class Dates(Kind):
    """Days."""

    family = "date"
    takes, but = (date,), (datetime,)
    exact = date


@dataclass(frozen=True)
class Timestamps(Kind):
    """Times without a zone; datetimes must not have one."""

    family = "timestamp without time zone"
    takes = (datetime,)

    def _is_taken(self, key: datetime) -> bool:
        return key.tzinfo is None


@dataclass(frozen=True)
class Instants(Kind):
    """Times with a zone, compared by the instant in UTC."""

    family = "timestamp with time zone"
    takes = (datetime,)
    exact = datetime

    def _is_taken(self, key: datetime) -> bool:
        return key.utcoffset() is not None

    def _canonical(self, key: datetime) -> datetime | None:
        moment: datetime = canonical_key(key)
        # A moment that keeps another offset is outside the years 1 to 9999 in UTC.
        return None if moment.utcoffset() else moment

    def _are_canonical(self, keys: Sequence[Any]) -> bool:
        # A zone of the user's need not have a hash.
        return all(key.tzinfo is UTC for key in keys)


@dataclass(frozen=True)
class Others(Kind):
    """Values of a type that is not in the table above, compared by `canonical_key` and ``==``."""

    family = "other"
    takes, but = (object,), ()


def canonical_keys(keys: Sequence[Any], parts: Sequence[Callable[[Sequence[Any]], Sequence[Any]]]) -> Sequence[Any]:
    """The canonical keys, aligned with `keys`: None for a key that no row can have. Keys of several `parts` are tuples.
    Raises TypeError or ValueError if a key cannot be compared with the key columns."""
    if len(parts) == 1:
        return parts[0](keys)
    if [key for key in keys if not (isinstance(key, tuple) and len(key) == len(parts))]:
        raise ValueError(f"a key is a tuple of {len(parts)} parts")
    columns = zip(*keys, strict=True) if keys else [()] * len(parts)
    made = [canonical_many(values) for canonical_many, values in zip(parts, columns, strict=True)]
    return [None if None in key else key for key in zip(*made, strict=True)]


def kind_of(data_type: pa.DataType) -> Kind:
    """The kind of a key column in Arrow."""
    if kinds.is_integer(data_type):
        return Integers(data_type.bit_width + kinds.is_unsigned_integer(data_type))
    if kinds.is_decimal(data_type):
        return Numerics()
    return _KINDS.get(key_family(data_type) or "", Others())


_KINDS = {
    "number": Floats(),
    "text": Texts(),
    "boolean": Booleans(),
    "binary": Binaries(),
    "date": Dates(),
    "timestamp": Timestamps(),
    "instant": Instants(),
}
"""By the family of the column's type in Arrow."""
