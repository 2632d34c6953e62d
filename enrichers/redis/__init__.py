"""Rows from Redis, through redis-py.

| module | what it knows |
| --- | --- |
| `enricher` | `RedisEnricher`: its arguments, a batch of keys from start to end, values to rows |
| `key_names` | the names of keys |
| `connections` | the client, and how many commands run at once; in a cluster keys by slot, and nodes that change |
"""

from asyncio_operator.enricher import not_installed

try:
    import redis.asyncio  # noqa: F401
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "redis":
        raise
    raise not_installed("RedisEnricher", "redis", "redis") from error

from enrichers.redis.enricher import RedisEnricher

__all__ = ["RedisEnricher"]
