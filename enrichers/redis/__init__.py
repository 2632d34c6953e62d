"""Rows from Redis, through redis-py.

| module | what it knows |
| --- | --- |
| `enricher` | `RedisEnricher`: its arguments, a batch of keys from start to end, values to rows |
| `names` | the names of keys |
| `connections` | the client, and how many commands run at once |
| `url` | where it leads; what must never be shown |
| `errors` | what redis-py's errors mean |
"""

import sys

from asyncio_operator import ConfigurationError

try:
    import redis.asyncio  # noqa: F401
except ImportError as error:
    raise ConfigurationError(
        f"RedisEnricher needs redis, which {sys.executable} has not: pip install 'asyncio-operator[redis]'; "
        "with Spark, in the Python of every worker"
    ) from error

from enrichers.redis.enricher import RedisEnricher

__all__ = ["RedisEnricher"]
