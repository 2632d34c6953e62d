"""The enrichers that ask a simulated service: for rows, and for columns."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from asyncio_operator.enricher import Enricher, Found, hint, settle
from asyncio_operator.testing.simulation.simulated_service import KEY, QuotaError, SimulatedService, as_rows
from asyncio_operator.testing.simulation.writing import said_of, settled_of


class SimulatedEnricher(Enricher):
    """Asks a simulated service.

    Args:
        max_batch: keys in a call at most.
    """

    def __init__(self, service: SimulatedService, max_batch: int = 1) -> None:
        self._service = service
        self.max_batch = max_batch

    def schema(self) -> pa.Schema:
        """See `Enricher`."""
        return self._service.schema

    async def open(self) -> None:
        """See `Enricher`."""
        if self._service.behaviour.opens:
            await asyncio.sleep(self._service.behaviour.opens)

    def weigh(self, keys: Sequence[Any]) -> Mapping[str, float]:
        """See `Enricher`."""
        tokens = self._service.behaviour.tokens
        return {"tokens": tokens * len(keys)} if tokens else {}

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        """See `Enricher`."""
        return await self._ask(keys)

    async def _ask(self, keys: Sequence[Any]) -> list[Any]:
        try:
            answers = await self._service.ask(keys)
        except QuotaError as error:
            hint(retry_after=error.retry_after)
            said_of.get([]).append({"wait": error.retry_after})
            raise
        if self._service.behaviour.settles:
            weights = self._service.true_weights(keys)
            settle(weights)
            settled_of.get({}).update(weights)
        left = self._service.headers(keys)
        if left is not None:
            hint({"calls": left})
            said_of.get([]).append(
                {
                    "unit": "calls",
                    "limit": left.limit,
                    "remaining": left.remaining,
                    "reset": left.reset_after,
                    "refills": left.refills,
                }
            )
        return answers


class SimulatedColumns(SimulatedEnricher):
    """The same, which answers in columns."""

    def key_schema(self) -> pa.Schema:
        """See `Enricher`."""
        return self._service.key_schema

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        """See `Enricher`."""
        asked = keys.to_pylist()
        answers = await self._ask(asked)
        given = [*zip(asked, answers, strict=False)]
        names = self._service.schema.names
        if len(answers) < len(asked):
            names = names[:-1]
        if len(answers) > len(asked):
            # A row that belongs to no asked key.
            given.append((type(asked[0])(10**6), self._service.rows_of(asked[0])))
        of_rows = [(key, row) for key, answer in given for row in as_rows(answer)]
        found = [row for _, row in of_rows]
        if found and not set(found[0]) & set(names):
            names = [*found[0]]
        columns = [_array([row.get(name) for row in found], self._service.schema, name) for name in names]
        return pa.table([pa.array([key for key, _ in of_rows], keys.type), *columns], names=[KEY, *names])


def _array(values: list[Any], schema: pa.Schema, name: str) -> pa.Array:
    """The values in the declared type; a lie has another one."""
    try:
        return pa.array(values, schema.field(name).type)
    except (KeyError, pa.ArrowException):
        return pa.array(values)
