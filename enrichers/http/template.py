"""Templates: texts in which ``{name}`` is replaced by a part of the key.

    ``{key}``, ``{origin}``    a part of the key, if the specification has a part with this name
    ``{keys}``                 the keys of a batch
    ``{{name}}``               the text ``{name}``
    any other brace            stays, so JSON and GraphQL can be written as they are

A template is taken apart once. Filling it joins texts and calls one function for each part. That function decides how a
value is written, which depends on the place (see `keys`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import did_you_mean
from enrichers.http.keys import UnsendableError, json_inner, json_inner_list, json_of, json_text

MARK = re.compile(r"\{\{([^\W\d]\w*)\}\}|\{([^\W\d]\w*)\}")

KEYS = "keys"

Values = Sequence[Any]
"""The parts of one key; for a batch a single item, the list of its keys."""

Write = Callable[[Any], str]
Piece = str | Callable[[Values], str]


class Slot(NamedTuple):
    """The place of a part of the key."""

    name: str


class Names:
    """The names that braces may contain: the parts of one key, each with its position, `KEYS`, or both.

    Args:
        parts: the names of the parts of a key.
        optional: the parts that may be null.
        one, many: whether the names are for a request for one key, for a batch, or for both.
    """

    def __init__(self, parts: Sequence[str], *, one: bool, many: bool, optional: Sequence[str] = ()) -> None:
        self.parts = parts
        self.optional = optional
        self.positions = {name: i for i, name in enumerate(parts)}
        if len(parts) == 1:
            self.positions.setdefault("key", 0)
        self.taken = [*(self.positions if one else ()), *([KEYS] if many else ())]

    def take_apart(self, text: str, where: str, secret: bool = False) -> list[str | Slot]:
        """Texts and slots, in their order.

        Raises:
            ConfigurationError: a name in braces is none of the names. A `secret` text is not shown.
        """
        pieces: list[str | Slot] = []
        end = 0
        for mark in MARK.finditer(text):
            pieces.append(text[end : mark.start()])
            pieces.append(f"{{{mark[1]}}}" if mark[1] else self._slot(mark[2], where, secret))
            end = mark.end()
        return [piece for piece in [*pieces, text[end:]] if piece]

    def _slot(self, name: str, where: str, secret: bool) -> Slot:
        if name in self.taken:
            return Slot(name)
        if name == KEYS:
            problem = "{keys} needs a batch_url, where it is replaced by all keys of a batch; for one key write "
            problem += f"{{{self.parts[0]}}}"
        elif name in self.positions:
            problem = f"{{{name}}} is of one key; for the list of the keys of a batch write {{keys}}"
        else:
            # The name may be a piece of a secret.
            shown, hint = f"{{{name}}}", did_you_mean(name, self.taken)
            wanted = f"key={name!r}" if [*self.parts] == ["key"] else f"key={[*self.parts, name]}"
            if secret:
                shown, hint, wanted = "a name in braces", "", "key="
            near = f" ({hint})" if hint.startswith("did") else ""
            by_key = "" if self.taken == [KEYS] else f", or name the parts of the key by {wanted}"
            problem = (
                f"{shown} is not a key field; the key fields are: {', '.join(self.taken)}{near}: "
                f"write {{{self.taken[0]}}}{by_key}; to send it unchanged, "
                "double its braces"
            )
        raise ConfigurationError(f"{where}: {problem}")

    def optional_in(self, used: Iterable[str]) -> tuple[int, ...]:
        """The positions of the parts among these names that may be null."""
        return tuple(self.positions[name] for name in used if name in self.optional)

    def fill_in(self, pieces: Iterable[str | Slot], one: Write, many: Write) -> list[Piece]:
        """The pieces, with each slot replaced by a function: `one` writes a part, `many` writes the list of keys."""
        return [piece if isinstance(piece, str) else self.writer(piece, one, many) for piece in pieces]

    def writer(self, slot: Slot, one: Write, many: Write) -> Callable[[Values], str]:
        """The function that writes the value of a slot."""
        position, write = (0, many) if slot.name == KEYS else (self.positions[slot.name], one)
        return lambda values: write(values[position])


def lacks(positions: Sequence[int], values: Values) -> bool:
    """Whether one of these parts of a key is null."""
    return any(values[position] is None for position in positions)


def slots(pieces: Iterable[str | Slot]) -> set[str]:
    """The names of the slots."""
    return {piece.name for piece in pieces if isinstance(piece, Slot)}


def merged(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """The same pieces, with neighbouring texts joined."""
    result: list[Piece] = []
    for piece in pieces:
        if result and isinstance(piece, str) and isinstance(result[-1], str):
            result[-1] += piece
        else:
            result.append(piece)
    return tuple(result)


def fill(pieces: Sequence[Piece], values: Values) -> str:
    """The text for one key, or for a list of keys."""
    return "".join([piece if type(piece) is str else piece(values) for piece in pieces])  # type: ignore[operator]


def json_pieces(names: Names, value: Any, where: str, used: set[str]) -> list[Piece]:
    """JSON with slots in its strings. A string that is only one slot becomes the value, with its own JSON type.

    Raises:
        ConfigurationError: the value is not JSON.
    """
    if isinstance(value, str):
        return _json_string(names, value, where, used, whole=True)
    if isinstance(value, Mapping):
        items: list[Piece] = ["{"]
        for i, (name, item) in enumerate(value.items()):
            if not isinstance(name, str):
                raise ConfigurationError(f"{where} has the name {name!r}; names in JSON are strings")
            items += ["," if i else "", *_json_string(names, name, where, used, whole=False), ":"]
            items += json_pieces(names, item, where, used)
        return [*items, "}"]
    if isinstance(value, list | tuple):
        items = ["["]
        for i, item in enumerate(value):
            items += ["," if i else "", *json_pieces(names, item, where, used)]
        return [*items, "]"]
    try:
        return [json_of(value)]
    except UnsendableError as error:
        raise ConfigurationError(f"{where} cannot be written as JSON: {error}") from None


def _json_string(names: Names, text: str, where: str, used: set[str], whole: bool) -> list[Piece]:
    pieces = names.take_apart(text, where)
    used |= slots(pieces)
    if whole and len(pieces) == 1 and isinstance(pieces[0], Slot):
        return [names.writer(pieces[0], json_of, json_of)]
    try:
        texts = [json_text(piece)[1:-1] if isinstance(piece, str) else piece for piece in pieces]
    except UnsendableError as error:
        raise ConfigurationError(f"{where} cannot be written as JSON: {error}") from None
    return ['"', *names.fill_in(texts, json_inner, json_inner_list), '"']
