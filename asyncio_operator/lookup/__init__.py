"""Looking keys up through an enricher: cache, sharing, batches, calls, outcomes. It knows no Spark.

`Lookup` is the public face for programs of their own; `asyncio_operator.spark.enrich` is that for DataFrames.
"""

from asyncio_operator.lookup.client import Lookup

__all__ = ["Lookup"]
