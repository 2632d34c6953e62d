"""Calls in flight: lanes, deadlines, attempts, batches. It knows neither Spark nor lookups nor queues of elements."""
