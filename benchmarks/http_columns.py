"""What columns would save in the answers of an HTTP service to batches of keys.

A task of `enrich` runs here without Spark: from the record batches of its input to those of its output. The server runs
in its own process. The CPU time of this process is measured. The sides run in turns, and the median of the turns is
taken.
"""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Iterator
from functools import cache
from operator import itemgetter
from statistics import median
from time import process_time

import pyarrow as pa
from aiohttp import web

from asyncio_operator import Batching
from asyncio_operator.arrow.answer_tables import AnswerTables
from asyncio_operator.arrow.key_arrays import key_values
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.spark.worker.links import ChainTask, EnrichTask
from asyncio_operator.spark.worker.rows import Layout
from benchmarks import Rows
from benchmarks.measuring import http_server
from enrichers import HttpEnricher
from enrichers.names import opened

BATCH, BATCHES = 10_000, 2
TURNS = 9
COLUMNS = {
    2: "name string, price double",
    8: "name string, price double, kind long, active boolean, city string, score double, rank int, note string",
}

_numbers = itertools.count()


def http_batches() -> Rows:
    """Batches of 1,000 and of 100 keys: CPU microseconds for a key by `lookup_columns`, which `HttpEnricher` does not
    have, compared with rows."""
    with http_server(_respond) as url:
        for size in (1000, 100):
            for columns in COLUMNS:
                sides = [_task(kind, url, columns, size) for kind in (_InColumns, HttpEnricher)]
                first, second = (pa.Table.from_batches(list(_outputs(side))) for side in sides)
                assert first == second
                times = [[_cost(side) for side in sides] for _ in range(TURNS)]
                ours, theirs = (median(one) for one in zip(*times, strict=True))
                what = f"HTTP, batches of {size:,}, {columns} columns, CPU for a key: by columns / by rows"
                yield "", what, f"{ours:.2f} us", f"{theirs:.2f} us", ours / theirs, ""


class _InColumns(HttpEnricher):
    """Objects that never become rows: what `lookup_columns` would be at its best. It knows no `extract`, no miss and no
    value that must be converted."""

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        exchange, plan = opened(self._exchange, self), opened(self._plans, self).batch
        assert plan is not None
        values = key_values(keys)
        entries = await exchange._entries(exchange._request(plan, (values,), values), values)
        assert {*map(type, entries)} == {dict}
        columns = [keys]
        for field in self.schema():
            items = list(map(itemgetter(field.name), entries))
            assert {*map(type, items)} <= {str, float, int, bool}
            columns.append(pa.array(items, field.type))
        return pa.table(columns, names=["key", *self.schema().names])


def _task(kind: type[HttpEnricher], url: str, columns: int, size: int) -> EnrichTask:
    enricher = kind(
        url + "/products/{key}",
        schema=COLUMNS[columns],
        batch_url=f"{url}/{columns}",
        batch_json_body={"keys": "{keys}"},
        max_batch=size,
    )
    schema = enricher.schema()
    tables = None if enricher.lookup_columns is None else AnswerTables(pa.schema([("key", pa.int64())]), schema)
    options = LookupOptions(batching=Batching(size), capacity=4, buffer=BATCH * BATCHES)
    name = f"http_batches {next(_numbers)}"
    return EnrichTask(enricher, name, Layout((0,), schema), options, schema, name, tables=tables)


def _outputs(task: EnrichTask) -> Iterator[pa.RecordBatch]:
    keys = pa.array(range(BATCH * BATCHES))
    return ChainTask([task])(pa.record_batch({"id": keys[i * BATCH : (i + 1) * BATCH]}) for i in range(BATCHES))


def _cost(task: EnrichTask) -> float:
    """Microseconds of CPU for a key."""
    gc.collect()
    started, rows = process_time(), 0
    for batch in _outputs(task):
        rows += batch.num_rows
    assert rows == BATCH * BATCHES
    return (process_time() - started) / rows * 1e6


async def _respond(request: web.BaseRequest) -> web.Response:
    body = _answer(int(request.path[1:]), await request.read())
    return web.Response(body=body, content_type="application/json")


@cache
def _answer(columns: int, body: bytes) -> bytes:
    """Made once: the server is not what is measured, but it takes time."""
    return json.dumps({key: dict(list(_product(key).items())[:columns]) for key in json.loads(body)["keys"]}).encode()


def _product(key: int) -> dict[str, str | float]:
    return {
        "name": f"product {key}",
        "price": key / 8,
        "kind": key % 7,
        "active": key % 2 == 0,
        "city": f"city {key % 100}",
        "score": key / 3,
        "rank": key,
        "note": f"a note on the product {key}",
    }
