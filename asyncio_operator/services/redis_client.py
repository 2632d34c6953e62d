"""The client of one Redis server, or of a cluster, made from a URL or from a function that returns one.

``redis://user:password@host:port/database?option=value``, ``rediss://`` for TLS, or ``unix://user:password@/path``. A
text that can be read in two ways is refused: the client could take a piece of the password for the host, and show it in
its errors. No error of a URL shows any part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from asyncio_operator.errors import ConfigurationError
from asyncio_operator.hints import did_you_mean
from asyncio_operator.services.closing import closed_in_time
from asyncio_operator.services.secret_source import SecretSource, checked_text
from asyncio_operator.services.secrets import Secrets, of_url

Url = str | Callable[[], str]

_SECRET_OPTIONS = {"password", "ssl_password", "ssl_ca_data"}

OPTIONS = frozenset(
    (
        *("db", "username", "protocol", "client_name", "lib_name", "lib_version", "encoding", "encoding_errors"),
        *("decode_responses", "health_check_interval", "retry_on_timeout", "socket_read_size"),
        *("socket_timeout", "socket_connect_timeout", "socket_keepalive"),
        *("ssl_keyfile", "ssl_certfile", "ssl_cert_reqs", "ssl_ca_certs", "ssl_ca_path", "ssl_check_hostname"),
        *("ssl_min_version", "ssl_ciphers", "ssl_include_verify_flags", "ssl_exclude_verify_flags", *_SECRET_OPTIONS),
    )
)
"""Options of redis-py for one connection whose values can be written as text."""

_PUBLIC = OPTIONS - _SECRET_OPTIONS


def check_url(url: object, argument: str = "url") -> str:
    """The URL, if it can be read in one way only. `argument` is its name in a message.

    Raises:
        ConfigurationError: the message says what is wrong with the URL, and does not show it.
    """
    form = (
        ". It must look like redis://user:password@host:6379/0, rediss://... for TLS or unix://.../path, with "
        "@ : / ? # % inside of a password percent-encoded, as urllib.parse.quote(password, safe='') does it"
    )
    return checked_text(argument, checked_text(argument, url, _problem, form), _problem_of_options)


URL = SecretSource("url", "URL", check_url)
"""A URL, or a function that returns it."""


def _problem(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018
    except ValueError:
        return "its host or its port cannot be read"
    if parts.scheme not in ("redis", "rediss", "unix"):
        return "it does not begin with redis://, rediss:// or unix://"
    if "#" in url or any(character <= " " for character in url):
        return "it holds a #, a blank or a control character"
    if parts.netloc.count("@") > 1 or "@" in parts.path + parts.query:
        return "it holds an @ in a place other than between the password and the host"
    if parts.scheme == "unix":
        if not parts.path.strip("/"):
            return "it has no path"
    elif parts.path.strip("/") and not parts.path.strip("/").isdecimal():
        return "its path is not the number of a database"
    return None


def _problem_of_options(url: str) -> str | None:
    parts = urlsplit(url)
    try:
        names = [name for name, _ in parse_qsl(parts.query, strict_parsing=True)] if parts.query else []
    except ValueError:
        return "its options are not of the form name=value&name=value"
    for name in names:
        if name not in OPTIONS:
            hint = "use the argument pool_size" if name == "max_connections" else did_you_mean(name, sorted(OPTIONS))
            return f"redis-py does not take its options: {name!r} is none of them; {hint}"
        if name.startswith("ssl_") and parts.scheme != "rediss":
            return f"redis-py does not take its options: {name!r} is for TLS, and so for rediss://"
    try:
        parse_url(url)
    except ValueError as error:
        return f"redis-py does not take its options: {error}"  # which names the option
    return None


def check_cluster_url(url: str) -> None:
    """Check that a checked URL can lead to a cluster.

    Raises:
        ConfigurationError: it names a socket, or a database other than 0. The message does not show the URL.
    """
    parts = urlsplit(url)
    number = parts.path.strip("/") or dict(parse_qsl(parts.query)).get("db", "0")
    if parts.scheme == "unix" or int(number):
        raise ConfigurationError(
            "url (not shown, it may hold a password): a cluster has database 0 only, and no socket of a file; write "
            "redis://user:password@host:6379 with cluster=True"
        )


def secrets_of(url: str) -> Secrets:
    """The parts of a checked URL that must not be shown."""
    return of_url(url, _PUBLIC)


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
