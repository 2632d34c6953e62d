"""The asynchronous wait operator: elements in, results out. See `asyncio_operator.operator.wait_operator`."""
