"""How a value of a key is written: as text, in a URL, in a header, as JSON.

The law: a written value is read back as the same value if the reader obeys the rules of its place, and it never ends
that place early. A value for which this cannot be guaranteed raises an `UnsendableError`, which concerns only its key.
The text of a value is a string itself, ``true`` or ``false``, a number (without exponent, except for decimals of more
than 400 digits), an ISO 8601 date or time, or a UUID. JSON has the same texts as strings, but booleans and numbers as
such. Decimals lose no digit.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from decimal import Decimal
from json.encoder import encode_basestring_ascii
from math import isfinite
from typing import Any
from urllib.parse import quote
from uuid import UUID

from enrichers.names import NOT_UTF8, is_utf8

_LARGEST_EXPONENT = 400
"""The largest exponent of a decimal that is written out. No real key has more digits, and more could fill memory."""

_LONGEST_HEADER = 8000
"""Characters; most servers accept headers of 8 KB."""


class UnsendableError(ValueError):
    """A value cannot be written in its place; the message says why."""


def text_of(value: Any) -> str:
    """A value as text. The answer to a batch names values by the same text."""
    if type(value) is str:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal):
        text = _number(value)
        if "e" in text:  # Only floats have a small e; decimals have E.
            text = format(Decimal(text), "f")
            text += "" if "." in text else ".0"
        return text
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if value is None:
        raise UnsendableError(
            "a null (NoneType) has no form as text; a JSON string that is only its name in braces becomes null"
        )
    raise UnsendableError(f"a value of type {type(value).__name__} has no form as text; make it a string first")


def quoted(value: Any) -> str:
    """For a URL: percent-encodes everything except letters, digits and ``_.-~``."""
    text = _sendable(value)
    return text if text.isascii() and text.isalnum() else quote(text, safe="")


def quoted_list(values: Sequence[Any]) -> str:
    """For a URL: the percent-encoded values, joined by commas."""
    return ",".join([quoted(value) for value in values])


def header_text(value: Any) -> str:
    """For a header: printable ASCII. Servers read other characters in different ways."""
    text = text_of(value)
    if not (text.isascii() and text.isprintable()):
        raise UnsendableError("it contains characters that a header cannot hold: only printable ASCII is possible")
    if text != text.strip():
        raise UnsendableError("it begins or ends with a blank, which servers remove from a header")
    if len(text) > _LONGEST_HEADER:
        raise UnsendableError(f"it is longer than the {_LONGEST_HEADER} characters that a header may have")
    return text


def header_list(values: Sequence[Any]) -> str:
    """For a header: the values joined by commas."""
    texts = [header_text(value) for value in values]
    if any("," in text for text in texts):
        raise UnsendableError("it contains a comma, which would end it in a header that lists keys")
    return ",".join(texts)


def json_of(value: Any) -> str:
    """As JSON. Numbers and decimals are numbers; dates, times and UUIDs are strings."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal):
        return _number(value)
    if isinstance(value, Mapping):
        return f"{{{','.join([f'{json_text(name)}:{json_of(item)}' for name, item in value.items()])}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join([json_of(item) for item in value])}]"
    return json_text(value)


def json_text(value: Any) -> str:
    """As a JSON string."""
    return f'"{json_inner(value)}"'


def json_inner(value: Any) -> str:
    """The text between the quotes of a JSON string."""
    return encode_basestring_ascii(_sendable(value))[1:-1]


def json_inner_list(values: Sequence[Any]) -> str:
    """The text between the quotes of a JSON string that lists keys, joined by commas."""
    if any("," in text_of(value) for value in values):
        raise UnsendableError(
            'it contains a comma, which would end it in a text that lists keys; "{keys}" alone is a JSON list'
        )
    return ",".join([json_inner(value) for value in values])


def _number(value: float | Decimal) -> str:
    if isinstance(value, int):
        try:
            return int.__repr__(value)
        except ValueError:
            raise UnsendableError("the number has too many digits") from None
    if isinstance(value, float):
        if not isfinite(value):
            raise UnsendableError(f"{value!r} is not a number that can be written")
        return float.__repr__(value)
    if not value.is_finite():
        raise UnsendableError(f"{value!r} is not a number that can be written")
    return format(value, "f") if abs(value.adjusted()) < _LARGEST_EXPONENT else str(value)


def _sendable(value: Any) -> str:
    text = text_of(value)
    if is_utf8(text):
        return text
    raise UnsendableError(NOT_UTF8)
