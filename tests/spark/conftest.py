"""What several modules of tests on a real Spark start, stop or kill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.servers import PostgresServer
from tests.spark.helpers import Hanging, kill_workers


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
