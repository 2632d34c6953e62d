"""What Spark's own UI says about the jobs that this package runs itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from asyncio_operator.spark.driver.sessions import context_of

DESCRIPTION = "spark.job.description"


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Jobs that this thread runs here have this description, unless the user has set one. Not on Spark Connect."""
    context = context_of(spark)
    if context is None or context.getLocalProperty(DESCRIPTION) is not None:
        yield
        return
    context.setJobDescription(text)
    try:
        yield
    finally:
        context._jsc.setLocalProperty(DESCRIPTION, None)
