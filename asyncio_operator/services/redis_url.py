"""URLs of Redis: checked before the client gets them, and shown without secrets.

``redis://user:password@host:port/database?option=value``, ``rediss://`` for TLS, or ``unix://user:password@/path``. A
text that can be read in two ways is refused: the client could take a piece of the password for the host, and show it in
its errors. No error raised here shows any part of the text.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qsl, urlsplit

from redis.asyncio.connection import parse_url

from asyncio_operator.errors import ConfigurationError
from asyncio_operator.hints import did_you_mean
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
