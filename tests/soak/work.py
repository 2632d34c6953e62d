"""The work of the soak: a stream of numbered rows, enriched twice, into files, and what must be in these at the end."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from asyncio_operator import Cache, Enricher, ExponentialBackoff, Retry
from asyncio_operator.spark import enrich
from asyncio_operator.testing import FakeRequest, FakeService
from enrichers import HttpEnricher, PostgresEnricher
from tests.faults.proxy import Proxy
from tests.servers import PostgresServer
from tests.spark.helpers import local_session

ROWS = 500
"""Rows of a file."""

KEYS = 3000

KEY = f"IF(n % 97 = 0, NULL, n * 7919 % {KEYS})"

AHEAD = 8
"""Files that wait for the query at most: it is kept busy, and the end is near when no more come."""

QUERY = "SELECT k AS id, 11 * k AS w FROM unnest($1::int8[]) AS k"

RETRY = Retry(max_attempts=500, backoff=ExponentialBackoff(initial=0.05, maximum=1.0))

ALLOWED: dict[str, Any] = {"retry": RETRY, "attempt_timeout": 3, "timeout": 300, "capacity": 50}


def session(directory: Path) -> SparkSession:
    """Two cores; a task may fail three times, because Python workers are killed."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {"spark.driver.memory": "1g", "spark.local.dir": str(directory / "local")}
    made = local_session("local[2,4]", directory / "warehouse", settings)
    made.sparkContext.setLogLevel("OFF")
    return made


def service(seed: int) -> FakeService:
    """An HTTP service that has bad moments of its own."""

    def answer(request: FakeRequest) -> dict[str, int]:
        return {"v": 7 * int(request.path.removeprefix("/v/"))}

    errors = {500: 0.01, 503: 0.01}
    return FakeService(
        handler=answer, latency=0.005, errors=errors, resets=0.005, truncated=0.005, retry_after=None, seed=seed
    )


class Told(Enricher):
    """Its worker tells where it is when it gets SIGUSR1."""

    async def open(self) -> None:
        faulthandler.register(signal.SIGUSR1)
        await super().open()


class ToldHttpEnricher(Told, HttpEnricher): ...


class ToldPostgresEnricher(Told, PostgresEnricher): ...


class Work:
    """The query, its input and its output.

    Attributes:
        written: rows of the input so far.
        starts: how often the query was started.
        failures: how often it failed.
    """

    def __init__(self, spark: SparkSession, directory: Path, http: Proxy, sql: Proxy, server: PostgresServer) -> None:
        self.written = 0
        self.starts = 0
        self.failures: list[str] = []
        self._spark = spark
        self._directory = directory
        self._files = 0
        self._query: StreamingQuery | None = None
        self._at_work = threading.Lock()
        dsn = server.tcp_dsn().replace(f":{server.port}/", f":{sql.port}/")
        self._http = ToldHttpEnricher(f"http://{http.host}:{http.port}/v/{{key}}", schema="v long")
        self._sql = ToldPostgresEnricher(dsn, query=QUERY, key="id", max_batch=50)
        self._sql.schema()
        (directory / "in").mkdir()

    # -- the input

    def write(self) -> None:
        """One more file, unless enough are waiting."""
        if self._files >= self.committed() + AHEAD:
            return
        lines = "".join(f'{{"n": {n}}}\n' for n in range(self.written, self.written + ROWS))
        part = self._directory / "part"
        part.write_text(lines)
        part.rename(self._directory / "in" / f"{self._files:06}.json")
        self._files += 1
        self.written += ROWS

    def committed(self) -> int:
        """Files whose rows are out: those up to where the latest micro-batch that is over has read.

        A query that is stopped while it plans a micro-batch reads that file and the next in one, when it starts again.
        """
        checkpoint = self._directory / "checkpoint"
        names = [path.name for path in (checkpoint / "commits").glob("*")]
        latest = max((int(name) for name in names if name.isdecimal()), default=None)
        if latest is None:
            return 0
        offset: dict[str, int] = json.loads((checkpoint / "offsets" / str(latest)).read_text().splitlines()[-1])
        return offset["logOffset"] + 1

    @property
    def is_done(self) -> bool:
        return self.committed() == self._files

    # -- the query

    def _enriched(self) -> DataFrame:
        stream = self._spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(f"{self._directory}/in")
        keyed = stream.selectExpr("n", f"{KEY} AS k").repartition(2)
        once = enrich(keyed, self._http, on="k", mode="unordered", cache=self._cache("http"), **ALLOWED)
        return enrich(once, self._sql, on="k", cache=self._cache("sql"), **ALLOWED)

    def _cache(self, name: str) -> Cache:
        return Cache(
            max_rows=KEYS * 2 // 3, expire_after_write=10, store="rocksdb", directory=str(self._directory / name)
        )

    def keep_running(self) -> None:
        """Start the query where it left off, if it does not run."""
        with self._at_work:
            query = self._query
            if query is not None and query.isActive:
                return
            if query is not None and (error := query.exception()):
                self.failures.append(str(error))
            writer = self._enriched().writeStream.format("parquet").option("path", f"{self._directory}/out")
            self._query = writer.option("checkpointLocation", f"{self._directory}/checkpoint").start()
            self.starts += 1

    def stop(self) -> None:
        """In the middle of whatever it does."""
        with self._at_work:
            if self._query is not None:
                self._query.stop()

    # -- the output

    def wrong(self) -> list[str]:
        """What is wrong with the output."""
        self._spark.read.schema("n long, k long, v long, w long").parquet(
            f"{self._directory}/out"
        ).createOrReplaceTempView("enriched")
        [found] = self._spark.sql(
            f"""
            SELECT count(*) AS rows, count(DISTINCT n) AS numbers, min(n) AS first, max(n) AS last,
                   count_if(NOT (k <=> {KEY})) AS keys, count_if(NOT (v <=> 7 * k)) AS http,
                   count_if(NOT (w <=> 11 * k)) AS sql
            FROM enriched
            """
        ).collect()
        checks = {
            f"{self.written} rows went in, {found.rows} came out": found.rows == self.written,
            f"{found.rows - found.numbers} rows are doubled": found.rows == found.numbers,
            f"rows are {found.first} to {found.last}": (found.first, found.last) == (0, self.written - 1),
            f"{found.keys} keys, {found.http} answers of HTTP, {found.sql} of PostgreSQL are wrong": (
                found.keys + found.http + found.sql == 0
            ),
        }
        return [text for text, is_right in checks.items() if not is_right]
