"""The daemon that forks the Python workers of the tests: it has imported what they need.

Spark's own imports nothing before it forks, so that a new worker computes for a second before its first row; after
every failed task there is a new one. The programs that tests start have Spark's own.
"""

from __future__ import annotations

import asyncio  # noqa: F401
import gc

import numpy  # noqa: F401
import pandas  # noqa: F401
import pyarrow  # noqa: F401
import uvloop  # noqa: F401
from pyspark.daemon import manager

import asyncio_operator.spark.worker.links
import asyncio_operator.spark.worker.table_function
import asyncio_operator.spark.worker.udf_task  # noqa: F401
import enrichers.function
import enrichers.http
import enrichers.postgres  # noqa: F401

# Modules of tests import it, and pytest, where functions of theirs are unpickled.
import tests.spark.helpers  # noqa: F401

if __name__ == "__main__":
    # A worker collects garbage after every task, and would visit all these modules each time.
    gc.collect()
    gc.freeze()
    manager()
