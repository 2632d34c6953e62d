"""Texts among keys that the database cannot hold: no row has them, so their keys are misses (law L9).

The encoding of the database may lack a character, and no text of PostgreSQL has U+0000 or half of a surrogate pair. The
server itself is asked which texts these are, after it, or the driver, has refused the text of a batch. So keys that it
holds cost nothing. Such a refusal may also be about a value of a row: then no text of a key is unheld.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any

import asyncpg

from enrichers.postgres.arrow_keys import AskedKeys

PROBE = "SELECT $1::text[] IS NULL"


class UnheldError(Exception):
    """Some keys of a batch hold texts that no row can hold."""

    def __init__(self, texts: Collection[str]) -> None:
        super().__init__(f"{len(texts)} texts of keys that the database cannot hold")
        self.texts = texts

    def holds(self, key: Any) -> bool:
        """Whether a key holds one of them."""
        return any(part in self.texts for part in _texts_of(key))


async def unheld_texts(
    fetch: Callable[..., Awaitable[Any]], error: Exception, keys: Sequence[Any] | AskedKeys
) -> set[str]:
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
