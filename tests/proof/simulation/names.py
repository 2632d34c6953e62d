"""An enricher that asks the simulated service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncio_operator import Enricher
from asyncio_operator.enricher import as_schema


class Names(Enricher):
    """Asks the simulated service."""

    max_batch = 3

    def __init__(self, client: Any) -> None:
        self._client = client

    def schema(self) -> Any:
        return as_schema("name string")

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        found: list[Any] = await self._client.ask(keys)
        return found
