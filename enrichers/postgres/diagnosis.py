"""Why the server refused a statement: a column has changed its type, holds what cannot be cast or sent, or fails alone;
or a key holds a text that the database cannot hold.

It asks the server again, so it runs only after an error, and says nothing if the server does not answer.

No row has a text that the database cannot hold, so a key with one is a miss (law L9). The encoding of the database may
lack a character, and no text of PostgreSQL has U+0000 or half of a surrogate pair. The server itself is asked which
texts these are, after it, or the driver, has refused the text of a batch. So keys that it holds cost nothing. Such a
refusal may also be about a value of a row: then no text of a key is unheld.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any

import asyncpg

from asyncio_operator import EnricherError
from enrichers.postgres.arrow_keys import AskedKeys
from enrichers.postgres.statement import Statement, identifier

Fetch = Callable[..., Awaitable[Sequence[Sequence[Any]]]]


async def changed_types(fetch: Fetch, statement: Statement) -> str:
    """Which columns have other types than the driver saw, and which; "" if none has."""
    parameters = () if statement.takes_literals else [()] * len(statement.key)
    try:
        [now] = await fetch(statement.types_now, *parameters)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, EnricherError, OSError):
        return ""
    return ", ".join(
        f"the type of the column {name!r} has changed from {before} to {kind}"
        for (name, before), kind in zip(statement.types.items(), now, strict=True)
        if before != kind
    )


async def accepts(fetch: Fetch, statement: Statement) -> bool:
    """Whether the server takes the statement without keys. Then what it refuses is computed for the row of a key, as by
    a function of the user."""
    try:
        await fetch(statement.sql, *([] for _ in statement.key))
    except (asyncpg.PostgresError, asyncpg.InterfaceError, EnricherError, OSError):
        return False
    return True


async def uncast_value(fetch: Fetch, statement: Statement, keys: Sequence[Any]) -> str:
    """The column of a key that the server cannot cast, with its value and the type; "" if it can."""
    arrays = statement.arrays(keys)
    for name, (kind, raw, cast) in statement.casts.items():
        try:
            await fetch(cast, *arrays)
        except asyncpg.DataError:
            values = [value for (value,) in await fetch(raw, *arrays) if value is not None]
            held = " or ".join(map(repr, dict.fromkeys(values[:3])))
            return f"the column {name!r} holds {held}, which the server does not cast to {kind}"
    return ""


async def unreadable_text(fetch: Fetch, statement: Statement, keys: Sequence[Any]) -> tuple[str, str]:
    """The column of a key that holds a text that is not UTF-8, with its bytes, and what to do; "" if there is none."""
    names = [*statement.schema.names, *statement.key_schema.names]
    columns = [f"c{number}" for number in range(len(names))]
    stored = ", ".join(f"pg_catalog.convert_to({column}::text, 'SQL_ASCII')" for column in columns)
    sql = f"SELECT {stored} FROM ({statement.sql}) AS r ({', '.join(columns)}) WHERE {IN_BYTES}"
    with contextlib.suppress(asyncpg.DataError):  # A text that a query computes is none here either.
        for row in await fetch(sql, *statement.arrays(keys)):
            for name, value in zip(names, row, strict=True):
                if value is not None and "\ufffd" in value.decode(errors="replace"):
                    own = identifier(name)
                    taken = f"convert_to({own}::text, 'SQL_ASCII')"
                    decoded = f"convert_from(convert({taken}, 'LATIN1', 'UTF8'), 'UTF8')"
                    remedy = f"as bytes, {taken} AS {own}, or, if it was written in LATIN1, as {decoded} AS {own}"
                    problem = f"the column {name!r} holds {value[:200]!r}, which is not UTF-8"
                    return problem, f"select it in a query {remedy}"
    return "", ""


IN_BYTES = "pg_catalog.current_setting('server_encoding') IN ('UTF8', 'SQL_ASCII')"
"""Other encodings are checked by the server where text is stored."""


PROBE = "SELECT $1::text[] IS NULL"


class UnheldError(Exception):
    """Some keys of a batch hold texts that no row can hold."""

    def __init__(self, texts: Collection[str]) -> None:
        super().__init__(f"{len(texts)} texts of keys that the database cannot hold")
        self.texts = texts

    def holds(self, key: Any) -> bool:
        """Whether a key holds one of them."""
        return any(part in self.texts for part in _texts_of(key))


async def unheld_texts(fetch: Fetch, error: Exception, keys: Sequence[Any] | AskedKeys) -> set[str]:
    """The texts of keys that the database cannot hold, if an error may come from one; empty for other errors."""
    if not _may_be_unheld(error):
        return set()
    values = keys.values() if isinstance(keys, AskedKeys) else keys
    texts = {text for key in values for text in _texts_of(key) if not text.isascii() or "\0" in text}
    unheld: set[str] = set()
    waiting = [sorted(texts, key=max)] if texts else []
    while waiting:
        some = waiting.pop()
        try:
            await fetch(PROBE, some)
        except Exception as refusal:
            if not _may_be_unheld(refusal):
                return set()
            if len(some) == 1:
                unheld.update(some)
            else:
                waiting += [some[: len(some) // 2], some[len(some) // 2 :]]
    return unheld


def _may_be_unheld(error: Exception) -> bool:
    """Whether a text cannot be converted: by the server, or by the driver before it is sent."""
    refused = (asyncpg.UntranslatableCharacterError, asyncpg.CharacterNotInRepertoireError)
    return isinstance(error, refused) or isinstance(error.__cause__ or error, UnicodeEncodeError)


def _texts_of(key: Any) -> Iterable[str]:
    return (part for part in (key if isinstance(key, tuple) else (key,)) if isinstance(part, str))
