"""The services of the works: a PostgreSQL with the flights' planes, near and distant, and a failing HTTP service.

Each measurement has a new service, so that no side meets the failures or the rate window of the previous one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np

from asyncio_operator.testing import FakeService
from benchmarks.peers.task import Task
from examples.enrich_flights import read_data, tables
from examples.stage import embedded_postgres
from tests.faults.proxy import Proxy

DISTANCE = 0.002
"""Seconds by which a round trip to the distant server is longer."""

RATE = 200
ASKED = 180
"""The rate of a peer with a rate limit, in requests per second. It is below the service's own limit, because requests
that are sent evenly do not arrive evenly."""

FAILING = 0.05
LATENCY = 0.01


@contextmanager
def postgres(directory: Path) -> Iterator[dict[str, Task]]:
    """The tasks "postgres" and "distant" without their rows.

    ``planes.json``, beside their keys, holds the keys that have a row.
    """
    import pyarrow.parquet as pq

    data = read_data()
    # Flights are in the order of their days, so the first thousands would know few planes.
    flights = data["flights"].take(np.random.default_rng(1).permutation(data["flights"].num_rows))
    table, keys = directory / "flights.parquet", directory / "keys.json"
    pq.write_table(flights, table)
    keys.write_text(json.dumps(flights.column("tailnum").to_pylist()), encoding="utf-8")
    (directory / "planes.json").write_text(json.dumps(data["planes"]["tailnum"].to_pylist()), encoding="utf-8")
    with embedded_postgres(directory) as dsn, tables(dsn, data, keep=False) as schema:
        parts = urlsplit(dsn)
        socket = f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432"
        with Proxy(socket) as proxy:
            proxy.delay(DISTANCE)
            near = Task(
                "",
                "postgres",
                0,
                dsn=dsn,
                planes=f"{schema}.planes",
                keys=str(keys),
                table=str(table),
                column="tailnum",
            )
            user = f"{parts.username or 'postgres'}:{parts.password or ''}"
            yield {
                "postgres": near,
                "distant": replace(near, dsn=f"postgresql://{user}@{proxy.host}:{proxy.port}{parts.path}"),
            }


@contextmanager
def http(rows: int) -> Iterator[FakeService]:
    """A service that takes `RATE` requests a second, after 10 ms each, and fails one in twenty."""
    names = {str(key): {"name": f"row {key}"} for key in range(rows)}
    with FakeService(names, latency=LATENCY, errors={503: FAILING}, rate_limit=RATE) as service:
        yield service
