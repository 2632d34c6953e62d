"""Keys of a typed column: which Python values match a column's values.

A `Kind` belongs to a key column of PostgreSQL, or of a table in memory. It gives each key its canonical form: the form
that a value of the column has, so that rows are matched to keys by equality in Python, as Spark's join and the server
match them. The forms are those of `canonical_key`; a kind adds what the type of its column decides:

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
import operator
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from struct import pack, unpack
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator.enricher import canonical_key

NAN = {"nan": canonical_key(math.nan), "decimal_nan": canonical_key(Decimal("NaN"))}
"""The canonical forms of not-a-number, under the names that they have in `Kind.from_row`."""


_DIGITS = "(?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}"
_UUID = re.compile(rf"{_DIGITS}|\{{{_DIGITS}\}}")
"""PostgreSQL's rule: a hyphen may follow every four digits. Python's own reader also takes blanks, 0x, urn: and digits
of other scripts, for which the server would find nothing."""


class Kind(ABC):
    """The keys of one type of column."""

    family: ClassVar[str]
    """Kinds of one family can be compared with each other."""

    from_row: ClassVar[str] = "{}"
    """The canonical form of a row's value, as a Python expression."""

    exact: ClassVar[type | None] = None
    """A type of which every value is canonical as it is."""

    @abstractmethod
    def canonical(self, key: Any) -> Any:
        """The canonical form of a key, or None if no row can hold it."""

    def canonical_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        """The canonical forms of many keys, aligned with them; None stays None."""
        if self.exact is not None and {*map(type, keys)} == {self.exact}:
            return keys
        return [None if key is None else self.canonical(key) for key in keys]

    def _mismatch(self, key: Any) -> TypeError:
        return TypeError(f"a key of type {type(key).__name__} cannot be compared with a column of type {self.family}")


@dataclass(frozen=True)
class Integers(Kind):
    """Whole numbers of 16, 32 or 64 bits."""

    bits: int
    family = "number"

    def canonical(self, key: Any) -> int | None:
        if isinstance(key, float | Decimal):
            if not math.isfinite(key) or key != int(key):
                return None
            key = int(key)
        if isinstance(key, bool) or not hasattr(key, "__index__"):
            raise self._mismatch(key)
        number = operator.index(key)
        return number if -(1 << (self.bits - 1)) <= number < 1 << (self.bits - 1) else None

    def canonical_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        limit = 1 << (self.bits - 1)
        if {*map(type, keys)} == {int} and -limit <= min(keys) and max(keys) < limit:
            return keys
        return super().canonical_many(keys)


@dataclass(frozen=True)
class Floats(Kind):
    """Floating-point numbers; of single precision only where the server would round a key to it."""

    single: bool = False
    family = "number"
    from_row = "({0} if {0} == {0} else nan)"

    def canonical(self, key: Any) -> float | None:
        if isinstance(key, bool) or not isinstance(key, int | float | Decimal):
            raise self._mismatch(key)
        try:
            number = float(key)
            if math.isinf(number) and key != number:
                return None  # a Decimal, which becomes infinite where an int is an error
            if self.single and number == number and unpack("f", pack("f", number))[0] != number:
                return None
        except OverflowError:
            return None
        canonical: float = canonical_key(number)
        return canonical


_WIDE = Context(prec=10_000)
"""For all digits of a column: PostgreSQL declares at most 1,000 before the point, and as many after it."""


@dataclass(frozen=True)
class Numerics(Kind):
    """Exact decimal numbers, of any size or of one; a float means the shortest decimal that reads back as it."""

    precision: int | None = None
    scale: int = 0
    family = "number"
    most_digits: ClassVar[int] = 131_072  # before the point; asyncpg would send a number of more as another one
    from_row = "({0} if {0} == {0} else decimal_nan)"

    def canonical(self, key: Any) -> Decimal | None:
        if isinstance(key, bool) or not isinstance(key, int | float | Decimal):
            raise self._mismatch(key)
        number = Decimal(repr(key)) if isinstance(key, float) else Decimal(key)
        canonical: Decimal = canonical_key(number)
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

    def canonical(self, key: Any) -> str:
        if not isinstance(key, str):
            raise self._mismatch(key)
        return key.rstrip(" ") if self.padded else key

    def canonical_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        if not self.padded and {*map(type, keys)} == {str}:
            return keys
        return super().canonical_many(keys)


@dataclass(frozen=True)
class Uuids(Kind):
    """UUIDs in the spellings that PostgreSQL accepts; canonical is the server's, lower case with hyphens."""

    family = "text"

    def canonical(self, key: Any) -> str | None:
        if isinstance(key, uuid.UUID):
            return str(key)
        if not isinstance(key, str):
            raise self._mismatch(key)
        return str(uuid.UUID(key)) if _UUID.fullmatch(key) else None


@dataclass(frozen=True)
class Booleans(Kind):
    """True and False."""

    family = "boolean"
    exact = bool

    def canonical(self, key: Any) -> bool:
        if not isinstance(key, bool):
            raise self._mismatch(key)
        return key


@dataclass(frozen=True)
class Binaries(Kind):
    """Bytes."""

    family = "binary"
    exact = bytes

    def canonical(self, key: Any) -> bytes:
        if not isinstance(key, bytes | bytearray | memoryview):
            raise self._mismatch(key)
        return bytes(key)


@dataclass(frozen=True)
class Dates(Kind):
    """Days."""

    family = "date"
    exact = date

    def canonical(self, key: Any) -> date:
        if not isinstance(key, date) or isinstance(key, datetime):
            raise self._mismatch(key)
        return key


@dataclass(frozen=True)
class Timestamps(Kind):
    """Times without a zone; datetimes must not have one."""

    family = "timestamp without time zone"

    def canonical(self, key: Any) -> datetime:
        if not isinstance(key, datetime) or key.tzinfo is not None:
            raise self._mismatch(key)
        return key


@dataclass(frozen=True)
class Instants(Kind):
    """Times with a zone, compared by the instant in UTC."""

    family = "timestamp with time zone"

    def canonical(self, key: Any) -> datetime | None:
        if not isinstance(key, datetime) or key.utcoffset() is None:
            raise self._mismatch(key)
        moment: datetime = canonical_key(key)
        # A moment that keeps another offset is outside the years 1 to 9999 in UTC.
        return None if moment.utcoffset() else moment

    def canonical_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        # A zone of the user's need not have a hash.
        if {*map(type, keys)} == {datetime} and all(key.tzinfo is UTC for key in keys):
            return keys
        return super().canonical_many(keys)


@dataclass(frozen=True)
class Others(Kind):
    """Values of a type that is not in the table above, compared by `canonical_key` and ``==``."""

    family = "other"

    def canonical(self, key: Any) -> Any:
        return canonical_key(key)


def kind_of(data_type: pa.DataType) -> Kind:
    """The kind of a key column in Arrow."""
    if kinds.is_integer(data_type):
        return Integers(data_type.bit_width + kinds.is_unsigned_integer(data_type))
    return next((kind for is_kind, kind in _KINDS if is_kind(data_type)), Others())


_KINDS: tuple[tuple[Callable[[pa.DataType], bool], Kind], ...] = (
    (kinds.is_floating, Floats()),
    (kinds.is_decimal, Numerics()),
    (kinds.is_string, Texts()),
    (kinds.is_large_string, Texts()),
    (kinds.is_boolean, Booleans()),
    (kinds.is_binary, Binaries()),
    (kinds.is_large_binary, Binaries()),
    (kinds.is_date, Dates()),
    (lambda data_type: kinds.is_timestamp(data_type) and data_type.tz is not None, Instants()),
    (kinds.is_timestamp, Timestamps()),
)
