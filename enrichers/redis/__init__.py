"""Rows from Redis, through redis-py.

| module | what it knows |
| --- | --- |
| `enricher` | `RedisEnricher`: its arguments, a batch of keys from start to end, values to rows |
| `key_names` | the names of keys |
| `connections` | the client, and how many commands run at once; in a cluster keys by slot, and nodes that change |
"""

from asyncio_operator.enricher import needs

with needs("RedisEnricher", "redis", "redis"):
    import redis.asyncio  # noqa: F401

from enrichers.redis.enricher import RedisEnricher

__all__ = ["RedisEnricher"]
