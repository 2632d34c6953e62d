"""Names in Redis, made of keys by a template: ``airport:{key}``, or ``{origin}:{hour}`` for a composite key.

Parts stand in a name as they are: names are binary, and the protocol sends their length, so nothing has to be escaped
and nothing can break out. It knows no client.
"""

from __future__ import annotations

import uuid
from datetime import date, datetime
from string import Formatter
from typing import Any

from asyncio_operator import ConfigurationError, EnricherError
from asyncio_operator.enricher import describe

LONGEST = 512 * 1024 * 1024
"""Bytes of the longest name that Redis can hold."""


class Names:
    """The name of each key.

    Args:
        template: a text with a field for each part of a key.
        parts: their names, in the order of a key's parts.

    Raises:
        ConfigurationError: the template lacks a part, or has another field.
    """

    def __init__(self, template: str, parts: tuple[str, ...]) -> None:
        try:
            parsed = list(Formatter().parse(template)) if isinstance(template, str) else []
            literals = [literal.encode() for literal, _, _, _ in parsed]
        except ValueError:
            parsed, literals = [], []
        fields = [name for _, name, _, _ in parsed if name is not None]
        if {*fields} != {*parts} or any(form or conversion for _, _, form, conversion in parsed):
            wanted = " and ".join(f"{{{name}}}" for name in parts)
            raise ConfigurationError(
                f"key_template is {describe(template)}; it must be a text that holds {wanted} and no other field; "
                "braces that are meant are doubled"
            )
        self._parts = parts
        self._places = [parts.index(name) for name in fields]
        self._literals = [b""]
        for literal, (_, field, _, _) in zip(literals, parsed, strict=True):
            self._literals[-1] += literal
            if field is not None:
                self._literals.append(b"")

    def of(self, key: Any) -> bytes | None:
        """The name of a key, or None where there can be none.

        Raises:
            EnricherError: the key has another number of parts, or one of a type with several spellings.
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


def _text(part: Any) -> bytes | None:
    """A part of a key as it stands in a name; None for null, and for text that no name can hold."""
    if isinstance(part, str):
        try:
            return part.encode()
        except UnicodeEncodeError:
            return None
    if part is None or isinstance(part, bytes):
        return part
    plain = isinstance(part, int | uuid.UUID) and not isinstance(part, bool)
    if plain or (isinstance(part, date) and not isinstance(part, datetime)):
        return str(part).encode()
    raise EnricherError(
        f"the key {describe(part)} is of type {type(part).__name__}, which can be written in several ways; make a "
        "string of it as it stands in Redis (integers, dates, binary and UUIDs are taken too)",
        retryable=False,
    )
