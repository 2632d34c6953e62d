"""Looking keys up through an enricher: batches of keys, calls, outcomes. It knows no Spark and no Arrow."""
