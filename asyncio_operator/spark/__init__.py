"""The DataFrame side: `enrich` and what belongs to it. This package is the only one that knows pyspark."""

from asyncio_operator.spark.enrich import enrich, enrich_with
from asyncio_operator.spark.metrics import EnrichmentMetrics, EnrichmentStatistics

__all__ = ["EnrichmentMetrics", "EnrichmentStatistics", "enrich", "enrich_with"]
