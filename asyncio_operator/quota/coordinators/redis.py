"""A budget in Redis, or in a server with the same protocol: one hash for each budget.

Its key is ``asyncio-operator:budget:NAME``. Its fields are ``version``, ``state`` and, for each message that waits, its
identity (`exchange`). Two scripts of the server post a message, and swap the state. Time is that of the server. The key
of a budget without a spend limit expires some time after its last use.

A user of the server with limited rights needs the commands TIME, EVAL, HGET, HGETALL, HSET, HDEL, PEXPIRE and PERSIST
for these keys. With INFO too, a failover to a server that was behind is noticed before it grants anything: a server has
another replication id after each failover and restart.
"""

from __future__ import annotations

from typing import Any

from asyncio_operator.errors import shown_address
from asyncio_operator.hints import needs
from asyncio_operator.quota.coordinators.exchange import ServerCoordinator, Stored
from asyncio_operator.quota.terms import ASK_TIMEOUT, Answer

with needs("a budget in Redis", "redis", "redis"):
    from redis.exceptions import ConnectionError as LostConnectionError

from asyncio_operator.services.causes import Cause
from asyncio_operator.services.redis_client import RedisClient, Url, cause_of, check_url, secrets_of
from asyncio_operator.services.secrets import Secrets

__all__ = ["PREFIX", "RedisCoordinator", "check_url"]

PREFIX = "asyncio-operator:budget:"

# With other limits before, the key may have been one that expires.
EXPIRE = "if ARGV[1] == '0' then redis.call('PERSIST', KEYS[1]) else redis.call('PEXPIRE', KEYS[1], ARGV[1]) end"

SERVER = """
local info = redis.pcall('INFO', 'replication')
local server = type(info) == 'string' and string.match(info, 'master_replid:(%w+)') or ''
"""

POST = f"""
{SERVER}
local time = redis.call('TIME')
local posted = time[1] .. '.' .. string.format('%06d', time[2])
redis.call('HSET', KEYS[1], ARGV[2], posted .. ' ' .. ARGV[3])
{EXPIRE}
return {{redis.call('HGETALL', KEYS[1]), posted, server}}
"""

SWAP = f"""
{SERVER}
if (redis.call('HGET', KEYS[1], 'version') or '') ~= ARGV[2] or server ~= ARGV[3] then
    local time = redis.call('TIME')
    return {{redis.call('HGETALL', KEYS[1]), time[1] .. '.' .. string.format('%06d', time[2]), server}}
end
redis.call('HSET', KEYS[1], 'version', ARGV[4], 'state', ARGV[5])
for place = 6, #ARGV do redis.call('HDEL', KEYS[1], ARGV[place]) end
{EXPIRE}
return 1
"""


class RedisCoordinator(ServerCoordinator):
    """One budget in one Redis. The state is kept for `expire_after` seconds after its last use; None: for ever."""

    lost = (LostConnectionError,)

    def __init__(self, source: Url, name: str, answer: Answer, *, expire_after: float | None) -> None:
        self._key = PREFIX + name
        super().__init__(shown_address(source), f"the key {self._key!r}", answer)
        self._source = source
        self._milliseconds = 0 if expire_after is None else round(1000 * expire_after)
        self._client: RedisClient | None = None

    async def connect(self) -> None:
        if self._client is None or self._client.redis is None:
            self._client = client = RedisClient(self._source, connect_timeout=ASK_TIMEOUT, again=0)
            await client.open()
            async with client.redis.client():
                pass  # A connection was made, and stays in the pool.

    async def post(self, identity: str, message: str) -> Stored:
        return _stored(*await self._run(POST, identity, message))

    async def swap(self, stored: Stored, new_version: str, text: str, answered: list[str]) -> Stored | None:
        found = await self._run(SWAP, stored.version, stored.server, new_version, text, *answered)
        return None if found == 1 else _stored(*found)

    async def _run(self, script: str, *arguments: str) -> Any:
        assert self._client is not None
        return await self._client.redis.eval(script, 1, self._key, self._milliseconds, *arguments)

    def cause_of(self, error: Exception) -> tuple[Cause, Secrets, str]:
        return cause_of(error), secrets_of("" if self._client is None else self._client.url), ""

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def _stored(fields: list[bytes], now: bytes, server: bytes) -> Stored:
    texts = [field.decode("utf-8", "replace") for field in fields]
    found = dict(zip(texts[::2], texts[1::2], strict=True))
    return Stored(found.pop("version", ""), found.pop("state", ""), found, float(now), server.decode())
