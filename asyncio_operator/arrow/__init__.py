"""Arrow without Spark: schemas, columns built from answers, and the keys of a batch."""
