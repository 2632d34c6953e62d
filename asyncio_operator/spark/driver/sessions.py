"""What kind of session it is: a classic one has a driver in this process, and Spark Connect has none."""

from __future__ import annotations

from pyspark import SparkContext
from pyspark.sql import SparkSession


def context_of(spark: SparkSession) -> SparkContext | None:
    """The context of a session, whose driver is this process; None on Spark Connect."""
    try:
        return spark.sparkContext
    except Exception:  # Each version of Spark Connect has its own error.
        return None
