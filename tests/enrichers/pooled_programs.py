"""Programs that a job behind a pooler consists of, for a process of their own: ``DSN NAME ...``. It prints what each
gives."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from asyncio_operator import Budget, Limit
from asyncio_operator.clock import monotonic
from asyncio_operator.quota.coordinators.addresses import coordinator_of
from asyncio_operator.quota.permits import Permits
from enrichers import PostgresEnricher
from tests.enrichers.helpers import opened

KEYS = [1, 2, 9, *range(3, 200)]
QUERY = "SELECT id, mood, moods, price FROM pooled WHERE id = ANY ($1)"


def driver(dsn: str) -> Any:
    """Descriptions of a table and of a query, and a table that does not exist."""
    sources: list[dict[str, Any]] = [{"table": "pooled"}, {"query": QUERY}]
    fields = [
        str(PostgresEnricher(dsn, key="id", statement_cache_size=0, **source).schema().field("price").type)
        for source in sources
    ]
    try:
        PostgresEnricher(dsn, table="poole", key="id", statement_cache_size=0).schema()
    except Exception as error:
        return [*fields, "did you mean 'pooled'" in str(error)]


def worker(dsn: str) -> Any:
    """Lookups by rows, of many batches at a time, and in Arrow columns: made of rows up to some number of keys."""

    async def rows(**source: Any) -> Any:
        async with opened(PostgresEnricher(dsn, key="id", statement_cache_size=0, **source)) as enricher:
            parts = [KEYS[start : start + 7] for start in range(0, 200, 7)]
            found = await asyncio.gather(*map(enricher.lookup_many, parts))
        return _shown([row for answers in found for row in answers])

    async def columns() -> Any:
        enricher = PostgresEnricher(dsn, table="pooled", key="id", columns=["mood", "price"], statement_cache_size=0)
        async with opened(enricher):
            arrays = [pa.array(KEYS[:20], pa.int32()), pa.array(KEYS, pa.int32())]
            return [(await enricher.lookup_columns(keys)).num_rows for keys in arrays]

    async def main() -> Any:
        return [await rows(table="pooled"), await rows(query=QUERY), await columns()]

    return asyncio.run(main())


def _shown(rows: Sequence[Any]) -> Any:
    return [[str(value) for value in row.values()] if row else None for row in rows[:3]] + [len(rows)]


def coordinator(dsn: str) -> Any:
    """Four clients of a budget, at the same time; then its statistics, over a connection of their own."""
    budget = Budget("pooled", Limit(1_000_000), coordinator=dsn)

    async def use(worker: str) -> None:
        permits, client = Permits(budget, worker), coordinator_of(budget)
        try:
            for _ in range(5):
                reply = await client.ask(permits.message(monotonic()))
                permits.answered(reply, reply["sent"], monotonic())
        finally:
            await client.close()

    async def main() -> None:
        await asyncio.gather(*(use(f"{number}") for number in range(4)))

    asyncio.run(main())
    return isinstance(budget.statistics().units, dict)


PROGRAMS = {program.__name__: program for program in (driver, worker, coordinator)}

if __name__ == "__main__":
    print(json.dumps({name: PROGRAMS[name](sys.argv[1]) for name in sys.argv[2:]}))
