"""`RowCalls`: an enricher whose keys are rows, so that every row has a call of its own (law W1).

The key of a row is its key for the enricher, and its number among the rows with that key. So equal rows are different
keys: none shares the call of another, and a journal has an entry for each. An answer that says no for good is an
answer too: it is in the journal, and is not asked for again.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from asyncio_operator.arrow.key_identity import storable
from asyncio_operator.enricher import Enricher, Row
from asyncio_operator.errors import describe, text_of, verdict
from asyncio_operator.journal.identity import identity_of
from asyncio_operator.state.keys import serialize_key
from asyncio_operator.telemetry.annotations import Attributes

OCCURRENCE = "_occurrence"
"""The last part of a key: the number of a row among those with the same key, from 0."""

ANSWER = pa.schema([("refused", pa.bool_()), ("http_status", pa.int32()), ("message", pa.string())])
"""What a call has brought, if the service has decided."""

LATER = (408, 425, 429)
"""The statuses of class 4xx that ask for another attempt later. They speak of the moment, and not of the row."""


class RowCalls(Enricher):
    """Makes the calls of `send`. A row that was sent, or refused for good, has an answer (`ANSWER`)."""

    idempotent = False

    def __init__(self, enricher: Enricher) -> None:
        self._enricher = enricher
        self.default_retry = enricher.default_retry
        self.max_calls = enricher.max_calls
        self.optional_keys = enricher.optional_keys

    def schema(self) -> pa.Schema:
        # As every caller does: an enricher may learn its columns there.
        self._enricher.schema()
        return ANSWER

    def key_schema(self) -> pa.Schema | None:
        known = self._enricher.key_schema()
        if known is None:
            return None
        # Without metadata: the warning that they ask for was given for the enricher's own key.
        parts = [pa.field(part.name, part.type) for part in known]
        return pa.schema([*parts, pa.field(OCCURRENCE, pa.int64())])

    def check_keys(self, keys: pa.Schema) -> None:
        self._enricher.check_keys(keys.remove(len(keys) - 1))

    def weigh(self, keys: Sequence[Any]) -> Mapping[str, float]:
        return self._enricher.weigh([_own(key) for key in keys])

    def call_attributes(self) -> Attributes:
        return self._enricher.call_attributes()

    def journal_identity(self) -> str:
        return f"send: {identity_of(self._enricher)}"

    async def open(self) -> None:
        await self._enricher.open()

    async def close(self) -> None:
        await self._enricher.close()

    async def lookup(self, key: Any) -> Row:
        """Send a row.

        Raises:
            Exception: it was not sent, and may be sent later.
        """
        try:
            await self._enricher.send(_own(key), row_id(key))
        except Exception as error:
            if not is_refusal(error):
                raise
            code = verdict(error)["code"]
            return {"refused": True, "http_status": code if type(code) is int else None, "message": text_of(error)}
        return {"refused": False}

    def __repr__(self) -> str:
        return describe(self._enricher)


def _own(key: tuple[Any, ...]) -> Any:
    """The key of the enricher."""
    return key[0] if len(key) == 2 else key[:-1]


def row_id(key: tuple[Any, ...]) -> str:
    """The name of a row: equal in every process, attempt and run, and different for all other keys."""
    return str(uuid.UUID(bytes=hashlib.sha256(serialize_key(storable(key))).digest()[:16], version=5))


def is_refusal(error: Exception) -> bool:
    """Whether the service says no for good. Another attempt would have the same answer."""
    said = verdict(error)
    code = said["code"]
    if type(code) is int and code >= 400:
        return code < 500 and code not in LATER and said["retryable"] is not True
    return said["retryable"] is False
