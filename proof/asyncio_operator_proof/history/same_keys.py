"""When two keys are the same (law L10): keys of a history in one form that can be compared and hashed.

NaN is NaN, 0.0 and -0.0 are one key, instants are compared in UTC, decimals by value, text by code points. Numbers of a
column have one type, so 1 and 1.0 are one key; true is another.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Hashable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any


def canonical(key: Any) -> Hashable:
    """The form of a key; None if any part of it is null: such a key is never looked up.

    Raises:
        ValueError: it is not a key of the format.
    """
    kind = type(key)
    if kind is str or kind is int:
        return key  # type: ignore[no-any-return]
    if kind is list:
        parts = tuple(map(_part, key))
        if None in parts:
            return None
        # A list with one part is that part.
        return parts[0] if len(parts) == 1 else parts
    return _part(key)


def _part(value: Any) -> Hashable:
    kind = type(value)
    if kind is str or kind is int or value is None:
        return value  # type: ignore[no-any-return]
    if kind is float and math.isfinite(value):
        return value or 0
    if kind is bool:
        return ("bool", value)
    if kind is dict and len(value) == 1:
        [(tag, text)] = value.items()
        if type(text) is str:
            return _tagged(tag, text)
    raise ValueError(f"{reprlib.repr(value)} is not a key, or a part of one")


def _tagged(tag: str, text: str) -> Hashable:
    try:
        match tag:
            case "float":
                if text in ("nan", "inf", "-inf"):
                    return ("float", text)
            case "decimal":
                number = Decimal(text)
                if number.is_snan():
                    raise ValueError
                # Decimals of one value are equal and have one hash, however they are written. NaN equals nothing.
                return ("decimal", "nan" if number.is_nan() else number)
            case "instant":
                moment = datetime.fromisoformat(text)
                return ("instant", moment.astimezone(UTC) if moment.tzinfo else moment)
            case "bytes":
                return ("bytes", bytes.fromhex(text))
    except (ArithmeticError, ValueError):
        pass
    raise ValueError(f"{reprlib.repr(tag)}: {reprlib.repr(text)} is not a key, or a part of one")


def text_of(key: Any) -> str:
    """A short text of a key, for sentences."""
    text = repr(key)
    return text if len(text) <= 60 else text[:57] + "..."
