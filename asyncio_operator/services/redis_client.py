"""The client of one Redis server, or of a cluster, made from a URL or from a function that returns one.

``redis://user:password@host:port/database?option=value``, ``rediss://`` for TLS, or ``unix://user:password@/path``. A
text that can be read in two ways is refused: the client could take a piece of the password for the host, and show it in
its errors. No error of a URL shows any part of it.

Here alone errors of redis-py, and of the connection below it, become errors of this package. `CAUSES` is searched from
top to bottom. The first class that matches says what happened, whether the same command may succeed later, and whether
every other key would have got the same answer.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from redis import exceptions
from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from asyncio_operator.errors import ConfigurationError, EnricherError
from asyncio_operator.hints import did_you_mean
from asyncio_operator.services import causes
from asyncio_operator.services.causes import Cause
from asyncio_operator.services.closing import closed_in_time
from asyncio_operator.services.secret_source import SecretSource, checked_text
from asyncio_operator.services.secrets import Secrets, chain, of_url

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
    """The URL, if it can be read in one way only. Else ConfigurationError: it calls the URL `argument`, says what is
    wrong, and does not show it."""
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
    """ConfigurationError, which does not show the URL, if this checked one names a socket, or a database other than
    0."""
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
    """A client on the loop that opened it."""

    def __init__(
        self,
        source: Url,
        *,
        connect_timeout: float,  # Seconds to make a connection, and for a function to return the URL; 0: no limit.
        again: int,  # The number of times that a command is sent again at once if its connection is lost.
        kind: SecretSource[str] = URL,  # What the URL is called in messages, and how it is checked.
        # Whether the URL leads to a node of a cluster, from which the client learns the others. A node that does not
        # answer a command within `connect_timeout` is then taken for lost.
        cluster: bool = False,
    ) -> None:
        self._source = source
        self._kind = kind
        self._connect_timeout = connect_timeout
        self._again = again
        self._cluster = cluster
        self.redis: Any = None  # redis-py's client, once it is open.
        # The URL that was used last, so that it can be hidden in errors.
        self.url = source if isinstance(source, str) else ""

    async def open(self) -> None:
        """Make the client. It connects at the first command. ConfigurationError if a function for the URL returns none
        in time, or redis-py does not take an option of it."""
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
        try:
            if self._cluster:
                # Without a limit, a node that hangs would not be left when another one takes its place.
                limit: dict[str, Any] = {"socket_timeout": self._connect_timeout or None, "max_connections": 2**31}
                limit |= {name: value for name, value in options.items() if value is not None}
                # It learns the nodes at the first command.
                self.redis = RedisCluster(ssl=kind is SSLConnection, **limit)
                return
            if kind is not None:
                options["connection_class"] = kind
            # The caller limits the connections. A cancellation may lose a place in the pool, so it must have more.
            pool: Any = ConnectionPool(max_connections=2**31, **options)
            pool.make_connection()
            pool.reset()
            self.redis = Redis.from_pool(pool)
            return
        except Exception as error:
            of_cluster = " for a cluster" if self._cluster else ""
            problem = ConfigurationError(
                f"{self._kind.argument}: redis-py does not take its options{of_cluster} ({type(error).__name__})"
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
            if self._cluster:  # redis-py leaves what it opened after it decided to learn the nodes again.
                for nodes in ("nodes_cache", "startup_nodes"):
                    await closed_in_time(client.nodes_manager.aclose(nodes))


class _Credentials(CredentialProvider):
    """Gives redis-py the credentials for every new connection."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return await self._client.credentials()


CREDENTIALS = Cause(
    "the server refuses the credentials: check user and password of the URL, as in redis://user:password@host, or "
    "redis://:password@host for the user that is called default, both percent-encoded"
)
NO_PASSWORD = Cause(
    "the server refuses the credentials: a password is required; put it into the URL, percent-encoded, as in "
    "redis://:password@host, or redis://user:password@host"
)
NO_PERMISSION = Cause("the permissions do not suffice")
NEEDLESS = Cause(
    "the server refuses the credentials: it has no password for the user that is called default; leave it out of the "
    "URL, or name another user, as in redis://user:password@host"
)
CLUSTER = Cause("the server is one of a cluster: set cluster=True, or ask the cluster's own endpoint")
NO_CLUSTER = Cause("the server is not one of a cluster, or its user may not run CLUSTER SLOTS: leave out cluster=True")
WAITING = Cause("the server cannot answer yet", retryable=True)
NO_WRITES = Cause("the server takes no writes now", retryable=True)

CAUSES: tuple[tuple[type[BaseException], Cause], ...] = (
    (ConfigurationError, Cause("there is no URL", retryable=None)),
    (exceptions.AuthenticationError, CREDENTIALS),
    (exceptions.AuthorizationError, CREDENTIALS),
    (exceptions.AuthenticationWrongNumberOfArgsError, CREDENTIALS),
    (exceptions.BusyLoadingError, WAITING),
    (exceptions.ClusterError, WAITING),
    (exceptions.TryAgainError, WAITING),
    (exceptions.RedisClusterException, WAITING),
    (exceptions.AskError, CLUSTER),
    (exceptions.ClusterCrossSlotError, CLUSTER),
    (exceptions.TimeoutError, Cause("the server did not answer in time", retryable=True)),
    (exceptions.ConnectionError, Cause("the connection was lost, or the server is not reachable", retryable=True)),
    (TimeoutError, Cause("the server did not answer in time", retryable=True)),
    (OSError, Cause("the server is not reachable", retryable=True)),
    (exceptions.ResponseError, Cause("the server refuses the command", any_key=False)),
    (Exception, Cause("the answer cannot be read", retryable=None, any_key=False)),
)

CODES = {
    "WRONGTYPE": Cause("the value is of another type of Redis", any_key=False),
    "NOPERM": NO_PERMISSION,
    "WRONGPASS": CREDENTIALS,
    "NOAUTH": NO_PASSWORD,
    "BUSY": WAITING,
    "LOADING": WAITING,
    "MASTERDOWN": WAITING,
}
"""Causes by the first word of an answer that has no error class of its own."""

CERTIFICATE = Cause("the certificate of the server does not verify")

# Versions of redis-py map error codes to different classes, and servers wrap the errors of scripts in different ways.
# The server's words are the same in all versions.
WORDS = {
    "READONLY ": NO_WRITES,
    "against a read only replica": NO_WRITES,  # in a script, since Redis 7
    "command not allowed when used memory": NO_WRITES,
    "MISCONF ": NO_WRITES,
    "NOREPLICAS ": NO_WRITES,
    "called with the client already authenticated": NO_PASSWORD,
    "Authentication required": NO_PASSWORD,
    "The user executing the script can't": NO_PERMISSION,  # in a script, by Redis up to 6
    "ACL failure in script": NO_PERMISSION,  # by later ones
    "DB index is out of range": Cause("there is no such database"),
    "without any password configured": NEEDLESS,
    "no password is set": NEEDLESS,
    "Cluster mode is not enabled": NO_CLUSTER,
    "max number of clients": Cause("the server has too many clients", retryable=True, overload=True),
}
"""Causes by words of an answer that say more than its class."""


def cause_of(error: BaseException) -> Cause:
    """The cause of an error."""
    if any(isinstance(one, ssl.SSLCertVerificationError) for one in chain(error)):
        return CERTIFICATE
    if isinstance(error, exceptions.RedisClusterException) and error.__cause__ is not None:
        return cause_of(error.__cause__)
    text = str(error)
    for words, cause in WORDS.items():
        if words in text:
            return cause
    if isinstance(error, exceptions.NoPermissionError):
        return CODES["NOPERM"]._replace(any_key="key" not in text)
    code = text.partition(" ")[0]
    if isinstance(error, exceptions.ResponseError) and code in CODES:
        return CODES[code]
    return next(cause for kind, cause in CAUSES if isinstance(error, kind))


def lookup_error(error: Exception, subject: str, key: str, url: str) -> EnricherError:
    """The error of a lookup. `subject` names the enricher, `key` the keys. Secrets of `url` are hidden."""
    answered = isinstance(error, exceptions.ResponseError)
    return causes.lookup_error(error, cause_of(error), subject, secrets_of(url), key=key, answered=answered)
