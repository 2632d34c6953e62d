"""`send`: a call for each row of a DataFrame. Its name is `asyncio_operator.spark.send`."""
