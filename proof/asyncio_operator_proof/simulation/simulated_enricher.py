"""The enrichers that ask a simulated service: for rows, for columns, and as a table in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from asyncio_operator.enricher import Enricher, Found, hint, settle
from asyncio_operator_proof.simulation.scenario import Key
from asyncio_operator_proof.simulation.simulated_service import QuotaError, SimulatedService, as_rows


class SimulatedEnricher(Enricher):
    """Asks a simulated service.

    Args:
        max_batch: keys in a call at most.
        pair: whether a key has two columns.
    """

    def __init__(self, service: SimulatedService, max_batch: int = 1, pair: bool = False) -> None:
        self._service = service
        self._pair = pair
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
            raise
        if self._service.behaviour.settles:
            settle(self._service.true_weights(keys))
        left = self._service.headers(keys)
        if left is not None:
            hint({"calls": left})
        return answers


class SimulatedColumns(SimulatedEnricher):
    """The same, which answers in columns."""

    def key_schema(self) -> pa.Schema:
        """See `Enricher`."""
        return self._service.key_schema(self._pair)

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        """See `Enricher`."""
        schema, asked = self.key_schema(), self._keys(keys)
        answers = await self._ask(asked)
        given = [*zip(asked, answers, strict=False)]
        names = self._service.schema.names
        if len(answers) < len(asked):
            names = names[:-1]
        if len(answers) > len(asked):
            # A row that belongs to no asked key.
            given.append((_stranger(asked[0]), self._service.rows_of(asked[0])))
        of_rows = [(key, row) for key, answer in given for row in as_rows(answer)]
        found = [row for _, row in of_rows]
        if found and not set(found[0]) & set(names):
            names = [*found[0]]
        columns = [_array([row.get(name) for row in found], self._service.schema, name) for name in names]
        named = [key if self._pair else (key,) for key, _ in of_rows]
        parts = [pa.array([key[place] for key in named], field.type) for place, field in enumerate(schema)]
        return pa.table([*parts, *columns], names=[*schema.names, *names])

    def _keys(self, keys: pa.Array) -> list[Key]:
        return [tuple(key.values()) if self._pair else key for key in keys.to_pylist()]


class SimulatedTable(SimulatedColumns):
    """The same, as a table in memory: it has the rows of all keys that were asked for, and others."""

    in_memory = True

    async def lookup_rows(self, keys: pa.Array) -> tuple[pa.Table, list[int], list[int]]:
        """See `Enricher`."""
        asked = self._keys(keys)
        answers = await self._ask(asked)
        schema, given = self._service.schema, [as_rows(answer) for answer in answers[: len(asked)]]
        # A row before them, which is of no key.
        rows = [{}, *(row for found in given for row in found)]
        positions = [place for place, found in enumerate(given) for _ in found]
        numbers = list(range(1, len(rows)))
        if len(answers) > len(asked):
            positions.append(len(asked))
            numbers.append(0)
        names = schema.names[:-1] if len(answers) < len(asked) else schema.names
        if len(rows) > 1 and not set(rows[1]) & set(names):
            names = [*rows[1]]
        columns = [_array([row.get(name) for row in rows], schema, name) for name in names]
        return pa.table(columns, names=names), numbers, positions


def _stranger(key: Key) -> Key:
    """A key that resembles a given one and has no row."""
    return (_stranger(key[0]), *key[1:]) if type(key) is tuple else type(key)(10**6)


def _array(values: list[Any], schema: pa.Schema, name: str) -> pa.Array:
    """The values in the declared type; a lie has another one."""
    try:
        return pa.array(values, schema.field(name).type)
    except (KeyError, pa.ArrowException):
        return pa.array(values)
