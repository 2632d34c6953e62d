"""The daemon that forks the Python workers of the tests: it has imported what all of them need, but for this package.

Spark's own imports nothing before it forks, so that a new worker computes for half a second before its first row; after
every failed task there is a new one. The programs that tests start have Spark's own.
"""

from __future__ import annotations

import asyncio  # noqa: F401

import numpy  # noqa: F401
import pandas  # noqa: F401
import pyarrow  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

if __name__ == "__main__":
    manager()
