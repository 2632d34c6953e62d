"""Arguments that several enrichers take: names of columns, of the parts of a key, of a table; functions that weigh.
How messages name keys. And what else all enrichers share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from asyncio_operator import ConfigurationError, Enricher, EnricherError
from asyncio_operator.enricher import describe, did_you_mean, gives_coroutines, takes

T = TypeVar("T")

Weigh = Callable[[Sequence[Any]], Mapping[str, float]]
"""A function of a user in the place of an enricher's method `weigh`."""

_WORD = re.compile(r"[^\W\d]\w*")

NOT_UTF8 = "it holds half of a surrogate pair, which UTF-8 cannot encode"
"""What is wrong with a text that is not `is_utf8`."""


def is_utf8(text: str) -> bool:
    """Whether a text has no half of a surrogate pair, as a variable of the environment has whose bytes are no UTF-8."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def opened(made: T | None, subject: object) -> T:
    """What `open` of an enricher has made."""
    if made is None:
        raise EnricherError(f"{subject} is not open", retryable=False)
    return made


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
    names = () if isinstance(optional, tuple | list) and not optional else names_of("optional", optional)
    for name in names:
        if name not in parts:
            raise ConfigurationError(f"optional: {describe(name)} is not a key field; {did_you_mean(str(name), parts)}")
    if names and len(parts) == 1:
        raise ConfigurationError(f"optional: {names[0]!r} is the only part of the key, and a null key is a miss")
    return names


def weigh_with(enricher: Enricher, weigh: Weigh | None) -> None:
    """Put a function in the place of an enricher's method `weigh`.

    Without a function the method of `Enricher` stays, which the calls of a run can do without.

    Raises:
        ConfigurationError: it is not an ordinary function of one argument.
    """
    if weigh is None:
        return
    if not callable(weigh) or gives_coroutines(weigh):
        raise ConfigurationError(
            f"weigh is {describe(weigh)}; it must be an ordinary function of a list of keys, which returns amounts by "
            'unit, such as {"tokens": 1300}'
        )
    takes("weigh", weigh, "the list of keys")
    object.__setattr__(enricher, "weigh", weigh)  # Some enrichers are frozen.


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
