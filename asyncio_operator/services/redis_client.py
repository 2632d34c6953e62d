"""The client of one Redis server, or of a cluster, made from a URL or from a function that returns one."""

from __future__ import annotations

from typing import Any

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from asyncio_operator.errors import ConfigurationError
from asyncio_operator.services.closing import closed_in_time
from asyncio_operator.services.redis_url import URL, Url
from asyncio_operator.services.secret_source import SecretSource


class RedisClient:
    """A client on the loop that opened it.

    Args:
        connect_timeout: seconds to make a connection, and for a function to return the URL; 0: no limit.
        again: the number of times that a command is sent again at once if its connection is lost.
        kind: what the URL is called in messages, and how it is checked.
        cluster: whether the URL leads to a node of a cluster, from which the client learns the others. A node that does
            not answer a command within `connect_timeout` is then taken for lost.

    Attributes:
        url: the URL that was used last, so that it can be hidden in errors.
        redis: redis-py's client, once it is open.
    """

    def __init__(
        self,
        source: Url,
        *,
        connect_timeout: float,
        again: int,
        kind: SecretSource[str] = URL,
        cluster: bool = False,
    ) -> None:
        self._source = source
        self._kind = kind
        self._connect_timeout = connect_timeout
        self._again = again
        self._cluster = cluster
        self.redis: Any = None
        self.url = source if isinstance(source, str) else ""

    async def open(self) -> None:
        """Make the client. It connects at the first command.

        Raises:
            ConfigurationError: a function for the URL returns none in time, or redis-py does not take an option of it.
        """
        self.url = await self._kind.get(self._source, self._connect_timeout or None)
        options: dict[str, Any] = {
            "socket_connect_timeout": self._connect_timeout,
            "socket_timeout": None,  # A command that passes its deadline is cancelled.
            "retry": Retry(NoBackoff(), self._again),
            **parse_url(self.url),
        }
        options.pop("decode_responses", None)
        if callable(self._source) and options.pop("password", None) is not None:
            options.pop("username", None)
            options["credential_provider"] = _Credentials(self)
        kind = options.pop("connection_class", None)
        if self._cluster:
            self.redis = self._of_cluster(options, tls=kind is SSLConnection)
            return
        # The caller limits the connections. A cancellation may lose a place in the pool, so it must have more.
        pool: Any = ConnectionPool(max_connections=2**31, **({"connection_class": kind} if kind else {}), **options)
        try:
            pool.make_connection()
        except Exception as error:
            problem = ConfigurationError(
                f"{self._kind.argument}: redis-py does not take its options ({type(error).__name__})"
            )
        else:
            pool.reset()
            self.redis = Redis.from_pool(pool)
            return
        raise problem

    def _of_cluster(self, options: dict[str, Any], *, tls: bool) -> Any:
        """The client of a cluster. It learns the nodes at the first command."""
        # Without a limit, a node that hangs would not be left when another one takes its place.
        limit = {"socket_timeout": self._connect_timeout or None, "max_connections": 2**31, "ssl": tls}
        try:
            return RedisCluster(**limit | {name: value for name, value in options.items() if value is not None})
        except Exception as error:
            problem = ConfigurationError(
                f"{self._kind.argument}: redis-py does not take its options for a cluster ({type(error).__name__})"
            )
        raise problem

    async def credentials(self) -> tuple[str] | tuple[str, str]:
        """User and password from the function for the URL, which is called for every new connection."""
        self.url = await self._kind.get(self._source, self._connect_timeout or None)
        options = parse_url(self.url)
        password = str(options.get("password", ""))
        return (str(options["username"]), password) if options.get("username") else (password,)

    async def close(self) -> None:
        """Close every connection."""
        client, self.redis = self.redis, None
        if client is not None:
            await closed_in_time(client.aclose())


class _Credentials(CredentialProvider):
    """Gives redis-py the credentials for every new connection."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        raise NotImplementedError("the client is asynchronous")

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return await self._client.credentials()
