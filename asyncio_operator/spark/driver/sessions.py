"""The session of a job: a classic one has a driver in this process, and Spark Connect has none.

With a driver, Spark's own UI says what the jobs are for that this package runs itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext
from pyspark.sql import SparkSession

DESCRIPTION = "spark.job.description"


def context_of(spark: SparkSession) -> SparkContext | None:
    """The context of a session, whose driver is this process; None on Spark Connect."""
    try:
        return spark.sparkContext
    except Exception:  # Each version of Spark Connect has its own error.
        return None


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
