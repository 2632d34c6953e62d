"""Key lookups through an enricher: cache, sharing, batches, calls, outcomes. This package does not know Spark.

Programs without Spark use `Lookup`. For DataFrames there is `asyncio_operator.spark.enrich`.
"""

from asyncio_operator.lookup.client import Lookup

__all__ = ["Lookup"]
