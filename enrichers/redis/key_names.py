"""Names in Redis, made from keys by a template: ``airport:{key}``, or ``{origin}:{hour}`` for a composite key.

Parts of a key are inserted unchanged. Nothing has to be escaped, because names are binary and the protocol sends their
length. This module knows no client.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, datetime
from itertools import chain, starmap
from string import Formatter
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator import ConfigurationError, EnricherError
from asyncio_operator.enricher import describe
from enrichers.names import NOT_UTF8, is_utf8

LONGEST = 512 * 1024 * 1024
"""The number of bytes of the longest name that Redis can hold."""


_WRITTEN_ALIKE = frozenset((str, int, date, uuid.UUID))
"""Types whose values `str.format` writes as `Names.of` does."""


class Names:
    """The name of each key.

    Args:
        template: a text with a field for each part of a key.
        parts: their names, in the order of a key's parts.

    Raises:
        ConfigurationError: the template lacks a part, or has another field. The message says what to write.
    """

    def __init__(self, template: str, parts: tuple[str, ...]) -> None:
        pieces = _pieces(template, parts)
        self._parts = parts
        self._places = [parts.index(field) for _, field in pieces if field is not None]
        self._literals = [b""]
        for literal, field in pieces:
            self._literals[-1] += literal.encode()
            if field is not None:
                self._literals.append(b"")
        # The template with the numbers of parts instead of their names: one step in C writes a name.
        self._write = "".join(
            literal.replace("{", "{{").replace("}", "}}") + ("" if field is None else f"{{{parts.index(field)}}}")
            for literal, field in pieces
        ).format

    def of_many(self, keys: Sequence[Any]) -> list[bytes | None]:
        """The names of keys, aligned with them: as `of` gives them, for most keys in a fraction of the time."""
        rows = [(key,) for key in keys] if len(self._parts) == 1 else keys
        alike = set(map(type, rows)) <= {tuple} and set(map(len, rows)) <= {len(self._parts)}
        if alike and _WRITTEN_ALIKE.issuperset(map(type, chain.from_iterable(rows))):
            with suppress(UnicodeEncodeError):
                names = [name.encode() for name in starmap(self._write, rows)]
                if max(map(len, names), default=0) <= LONGEST:
                    return [*names]
        return list(map(self.of, keys))

    def of(self, key: Any) -> bytes | None:
        """The name of a key, or None if it cannot have one.

        Raises:
            EnricherError: the key has another number of parts, or a part whose type has several spellings.
        """
        if len(self._parts) == 1:
            texts = [_text(key)]
        elif isinstance(key, tuple) and len(key) == len(self._parts):
            texts = [_text(part) for part in key]
        else:
            raise EnricherError(
                f"the key {describe(key)} must have the {len(self._parts)} parts {', '.join(self._parts)}",
                retryable=False,
            )
        name = self._literals[0]
        for place, literal in zip(self._places, self._literals[1:], strict=True):
            text = texts[place]
            if text is None:
                return None
            name += text + literal
        return name if len(name) <= LONGEST else None


def _pieces(template: object, parts: Sequence[str]) -> list[tuple[str, str | None]]:
    """The template as a list of texts, each with the part of the key that follows it."""

    def refused(problem: str) -> ConfigurationError:
        return ConfigurationError(f"key_template is {describe(template)}; {problem}")

    wanted = " and ".join(f"{{{part}}}" for part in parts)
    meant = "braces that are part of the text are doubled, as {{ and }}"
    if not isinstance(template, str):
        raise refused(f"it must be a text that holds {wanted}")
    if not is_utf8(template):
        raise refused(NOT_UTF8)
    try:
        parsed = list(Formatter().parse(template))
    except ValueError:
        raise refused(f"it has a single brace: write {wanted}; {meant}") from None
    fields = list(dict.fromkeys(field for _, field, _, _ in parsed if field is not None))
    for field in fields:
        if field not in parts:
            key = repr(fields if len(fields) > 1 else field)
            named = f", or name the parts in their order, key={key}" if all(map(str.isidentifier, fields)) else ""
            raise refused(
                f"{{{field}}} is not a key field; the key fields are: {', '.join(parts)}: write {wanted}{named}; "
                f"{meant}"
            )
    if any(form or conversion for _, _, form, conversion in parsed):
        raise refused(f"a part of a key is inserted as it is: write {wanted}, without ! and : in the braces")
    for part in parts:
        if part not in fields:
            raise refused(f"{{{part}}} is missing in it, so different keys would have one name: write {wanted}")
    return [(literal, field) for literal, field, _, _ in parsed]


def is_written_in_one_way(kind: pa.DataType) -> bool:
    """Whether `Names.of` writes values of a column's type."""
    taken = (kinds.is_integer, kinds.is_date, kinds.is_string, kinds.is_large_string, kinds.is_binary)
    return kinds.is_large_binary(kind) or any(is_kind(kind) for is_kind in taken)


def _text(part: Any) -> bytes | None:
    """A part of a key as it is written in a name. None for null, and for text that no name can hold."""
    if isinstance(part, str):
        return part.encode() if is_utf8(part) else None
    if part is None or isinstance(part, bytes):
        return part
    plain = isinstance(part, int | uuid.UUID) and not isinstance(part, bool)
    if plain or (isinstance(part, date) and not isinstance(part, datetime)):
        return str(part).encode()
    raise EnricherError(
        f"the key {describe(part)} is of type {type(part).__name__}, which can be written in several ways; make it a "
        "string, as it is written in Redis (integers, dates, binary and UUIDs are taken too)",
        retryable=False,
    )
