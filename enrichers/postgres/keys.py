"""What a key may be: how Python values become parameters of a query, and how rows find their way back to their keys.

A `Kind` belongs to a key column. It gives each key its canonical form: the value that asyncpg would return for a row
of that key, so that rows are matched to keys by equality in Python, as the server matches them. None stands for a key
that no row can hold (2**40 for an ``int4``, "x" for a ``uuid``): it is a miss, and is never sent. A key of a type
that cannot be compared with the column at all is a `TypeError`.
"""

from __future__ import annotations

import math
import operator
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from struct import pack, unpack
from typing import Any, ClassVar

NAN = {"nan": math.nan, "decimal_nan": Decimal("NaN")}
"""One object each, so that not-a-number finds itself in a dictionary. The names are those in `Kind.from_row`."""


class Kind(ABC):
    """The keys of one type of column."""

    family: ClassVar[str]
    """Kinds of one family can be compared with each other."""

    from_row: ClassVar[str] = "{}"
    """The canonical form of a row's value, as a Python expression."""

    @abstractmethod
    def canonical(self, key: Any) -> Any:
        """The canonical form of a key, or None if no row can hold it."""

    def canonical_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        """The canonical forms of many keys, aligned with them; None stays None."""
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
            if self.single and number == number and unpack("f", pack("f", number))[0] != number:
                return None
        except OverflowError:
            return None
        return number if number == number else NAN["nan"]  # type: ignore[return-value]


@dataclass(frozen=True)
class Numerics(Kind):
    """Exact decimal numbers; a float stands for the shortest decimal that reads back as it."""

    family = "number"
    most_digits: ClassVar[int] = 131_072  # before the point; asyncpg would send a number of more as another one
    from_row = "({0} if {0} == {0} else decimal_nan)"

    def canonical(self, key: Any) -> Decimal | None:
        if isinstance(key, bool) or not isinstance(key, int | float | Decimal):
            raise self._mismatch(key)
        number = Decimal(repr(key)) if isinstance(key, float) else Decimal(key)
        if number.is_nan():
            return NAN["decimal_nan"]  # type: ignore[return-value]
        return number if number.adjusted() < self.most_digits else None


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
    """UUIDs in any spelling that `uuid.UUID` reads; canonical is the server's, lower case with hyphens."""

    family = "text"

    def canonical(self, key: Any) -> str | None:
        if isinstance(key, uuid.UUID):
            return str(key)
        if not isinstance(key, str):
            raise self._mismatch(key)
        try:
            return str(uuid.UUID(key))
        except ValueError:
            return None


@dataclass(frozen=True)
class Booleans(Kind):
    """True and False."""

    family = "boolean"

    def canonical(self, key: Any) -> bool:
        if not isinstance(key, bool):
            raise self._mismatch(key)
        return key


@dataclass(frozen=True)
class Binaries(Kind):
    """Bytes."""

    family = "binary"

    def canonical(self, key: Any) -> bytes:
        if not isinstance(key, bytes | bytearray | memoryview):
            raise self._mismatch(key)
        return bytes(key)


@dataclass(frozen=True)
class Dates(Kind):
    """Days."""

    family = "date"

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
    """Times with a zone, compared in UTC: Python takes two equal times in different zones for unequal near a change."""

    family = "timestamp with time zone"

    def canonical(self, key: Any) -> datetime | None:
        if not isinstance(key, datetime) or key.tzinfo is None:
            raise self._mismatch(key)
        try:
            return key.astimezone(UTC)
        except OverflowError:
            return None


@dataclass(frozen=True)
class Part:
    """One column of a key: what it holds (`column`), and what the query's parameter takes (`parameter`)."""

    column: Kind
    parameter: Kind

    def usable(self) -> bool:
        """Whether keys of the column can be sent as the parameter."""
        return self.parameter.family in (self.column.family, "text")

    def to_send(self, canonical: Sequence[Any]) -> Sequence[Any]:
        """Parameters for canonical keys, aligned; None for a key that the parameter cannot hold."""
        if self.parameter == self.column or self._is_wider():
            return canonical
        if self.parameter.family == "text" != self.column.family:
            return [None if key is None else as_text(key) for key in canonical]
        return self.parameter.canonical_many(canonical)

    def _is_wider(self) -> bool:
        """Whether whatever the column holds fits the parameter as it is."""
        match self.column, self.parameter:
            case Integers(bits), Integers(wider):
                return bits <= wider
        return False


def as_text(key: Any) -> str:
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
