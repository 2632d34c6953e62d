"""Arguments that are names: of columns, of the parts of a key, of a table; and how messages name keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import describe, did_you_mean

_WORD = re.compile(r"[^\W\d]\w*")


def names_of(
    argument: str, value: object, *, words: bool = False, reserved: str = "", repeated: bool = False
) -> tuple[str, ...]:
    """One name, or several, as a tuple.

    Args:
        argument: the name of the argument, for messages.
        words: whether a name is used in braces, so it must consist of letters, digits and underscores.
        reserved: a name that has another meaning.
        repeated: whether a name may occur twice.

    Raises:
        ConfigurationError: there is no name, or a name is invalid.
    """
    if value is None:
        raise ConfigurationError(f"{argument} is required: a column name or a list of names")
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else ()
    good = [name for name in names if isinstance(name, str) and name and "\0" not in name and name != reserved]
    if words:
        good = [name for name in good if _WORD.fullmatch(name)]
    if not names or len(good) < len(names) or (len({*good}) < len(good) and not repeated):
        more = ", of letters, digits and underscores" if words else ""
        more += f", and none of them {reserved!r}" if reserved else ""
        raise ConfigurationError(
            f"{argument} is {describe(value)}; it must be a name, or a list of different names{more}"
        )
    return tuple(good)


def optional_of(optional: str | Sequence[str], parts: Sequence[str]) -> tuple[str, ...]:
    """The parts of a key that may be null.

    Raises:
        ConfigurationError: one is no part of the key, or is its only part.
    """
    names = (optional,) if isinstance(optional, str) else tuple(optional)
    for name in names:
        if name not in parts:
            raise ConfigurationError(f"optional: {describe(name)} is not a key field; {did_you_mean(str(name), parts)}")
    if names and len(parts) == 1:
        raise ConfigurationError(f"optional: {names[0]!r} is the only part of the key, and a null key is a miss")
    return names


class Keys(Protocol):
    """Keys in their order, from 0 on."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Any: ...


def shown_keys(keys: Keys) -> str:
    """The keys of a call, for messages: the only one, or the first and the last."""
    if not len(keys):
        return "all rows"
    last = len(keys) - 1
    return f"{last + 1} keys from {describe(keys[0])} to {describe(keys[last])}" if last else f"key {describe(keys[0])}"
