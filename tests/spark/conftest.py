"""What several modules of tests on a real Spark start, stop or kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from asyncio_operator import Journal
from tests.servers import PostgresServer
from tests.spark.helpers import Hanging, jobs, kill_workers
from tests.spark.journals import Calls


@pytest.fixture
def server() -> Iterator[Hanging]:
    """A server that never answers."""
    hanging = Hanging()
    yield hanging
    hanging.close()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that a test may kill, and whose statements may be left running."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def alone(spark: SparkSession) -> Iterator[SparkSession]:
    """The session without a worker, so that jobs of one partition make one and use it again and again."""
    kill_workers()
    yield spark
    kill_workers()


@pytest.fixture
def no_job_starts(spark: SparkSession) -> Iterator[None]:
    before = jobs(spark)
    yield
    assert jobs(spark) == before


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(tmp_path / "calls")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")
