"""A budget in Redis, or in a server with the same protocol: one key for each budget, replaced by compare-and-swap.

The key is ``asyncio-operator:budget:NAME``. Its value is a random version of 16 characters, then the state as JSON. A
script of the server replaces it if the version is still the one that was read; otherwise it returns the present value,
and the decision is made again. So no client ever holds a lock, and one that stalls stops no other. Time is that of the
server. The key of a budget without a spend limit expires some time after its last use.

A user of the server with limited rights needs the commands GET, TIME, EVAL, GETRANGE and SET for these keys.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any

from asyncio_operator.budget.terms import Json
from asyncio_operator.clock import monotonic
from asyncio_operator.coordinators.contract import ASK_TIMEOUT, CHECK_SERVER, Answer, stored_state
from asyncio_operator.errors import CoordinatorError, shown_address
from asyncio_operator.hints import not_installed

try:
    from redis.exceptions import ConnectionError as LostConnectionError
except ImportError as error:
    raise not_installed("a budget in Redis", "redis", "redis") from error

from asyncio_operator.services.causes import caused, own_words
from asyncio_operator.services.redis_causes import cause_of
from asyncio_operator.services.redis_client import RedisClient
from asyncio_operator.services.redis_url import Url, check_url, secrets_of

__all__ = ["PREFIX", "RedisCoordinator", "check_url"]

PREFIX = "asyncio-operator:budget:"

VERSION = 16
"""Characters of a version. It is random: a counter would repeat itself after a restart that lost the state."""

SWAP = f"""
if redis.call('GETRANGE', KEYS[1], 0, {VERSION - 1}) ~= ARGV[1] then
    return {{redis.call('GET', KEYS[1]), redis.call('TIME')}}
end
if ARGV[3] == '0' then
    redis.call('SET', KEYS[1], ARGV[2])
else
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return 1
"""

PAUSE = 0.001
"""Seconds of the longest first pause after a swap that came too late; each later one may be twice as long."""

LONGEST_PAUSE = 0.032


class RedisCoordinator:
    """One budget in one Redis.

    Args:
        expire_after: seconds after its last use in which the state is kept; None: for ever.
    """

    def __init__(self, source: Url, name: str, answer: Answer, *, expire_after: float | None) -> None:
        self.shown = shown_address(source)
        self._source = source
        self._key = PREFIX + name
        self._answer = answer
        self._milliseconds = 0 if expire_after is None else round(1000 * expire_after)
        self._client: RedisClient | None = None

    async def ask(self, message: Json) -> Json:
        try:
            async with asyncio.timeout(ASK_TIMEOUT):
                return await self._ask(message)
        except CoordinatorError:
            raise
        except Exception as error:
            problem = self._problem(error)
        # The address may lead to another server by now, as after a failover.
        await self.close()
        raise problem

    async def _ask(self, message: Json) -> Json:
        if self._client is None:
            client = RedisClient(self._source, connect_timeout=ASK_TIMEOUT, again=0)
            await client.open()
            self._client = client
        sent = monotonic()
        found, now = await self._read()
        pause = PAUSE
        while True:
            version, state = b"", None
            if found is not None:
                version, state = found[:VERSION], stored_state(found[VERSION:], self.shown, f"the key {self._key!r}")
            state, reply = self._answer(state, message, _seconds(now))
            text = secrets.token_hex(VERSION // 2) + json.dumps(state, separators=(",", ":"))
            next_sent = monotonic()
            swapped = await self._client.redis.eval(SWAP, 1, self._key, version, text, self._milliseconds)
            if swapped == 1:
                return {**reply, "sent": sent}
            # Clients that try again at the same moment would meet again.
            await asyncio.sleep(pause * secrets.randbelow(1000) / 1000)
            pause = min(2 * pause, LONGEST_PAUSE)
            sent, (found, now) = next_sent, swapped

    async def _read(self) -> tuple[bytes | None, Any]:
        assert self._client is not None
        for attempt in range(2):
            try:
                async with self._client.redis.pipeline(transaction=False) as pipeline:
                    pipeline.get(self._key)
                    pipeline.time()
                    found, now = await pipeline.execute()
                    return found, now
            except LostConnectionError:
                # The connection may have been lost long ago. To read again changes nothing, unlike a swap.
                if attempt:
                    raise
        raise AssertionError

    def _problem(self, error: Exception) -> CoordinatorError:
        url = self._client.url if self._client is not None else ""
        cause, hidden = cause_of(error), secrets_of(url)
        remedy = CHECK_SERVER if cause.retryable else ""
        message = f"the coordinator {self.shown}: {cause.text}{own_words(error, hidden)}{remedy}"
        return caused(CoordinatorError(message, lasting=cause.retryable is False), error, hidden)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def _seconds(now: Any) -> float:
    seconds, microseconds = now
    return int(seconds) + int(microseconds) / 1e6
