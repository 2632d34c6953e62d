"""URLs of SQLAlchemy: checked before an engine gets them, and shown without secrets.

``dialect+driver://user:password@host:port/database?option=value``. A text that can be read in two ways (an unescaped
``@``, ``/``, ``?`` or ``#`` in a password) is refused: a driver could take a piece of the password for the host, and
show it in its errors. No error raised here shows any part of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from asyncio_operator import ConfigurationError
from asyncio_operator.services.secret_source import SecretSource, checked_text
from asyncio_operator.services.secrets import Secrets, of_named, of_url

Url = str | Callable[[], str]
Arguments = Mapping[str, Any] | Callable[[], Mapping[str, Any]]

DRIVERS = {
    "mariadb": "mariadb+aiomysql",
    "mssql": "mssql+aioodbc",
    "mysql": "mysql+aiomysql",
    "oracle": "oracle+oracledb",
    "postgresql": "postgresql+asyncpg",
    "sqlite": "sqlite+aiosqlite",
}
"""An asynchronous driver for each dialect of SQLAlchemy."""

_PUBLIC = frozenset(("charset", "driver", "mode", "service_name", "ssl_ca", "sslmode", "timeout", "uri", "use_unicode"))


def check_url(url: object) -> str:
    """The URL, if it can be read in one way only, and names an asynchronous driver.

    Raises:
        ConfigurationError: the message says what is wrong with the URL, and does not show it.
    """
    form = (
        ". It must look like dialect+driver://user:password@host:port/database, with @ : / ? # % inside of a user name "
        "or a password percent-encoded, as urllib.parse.quote(password, safe='') does it"
    )
    return checked_text("url", checked_text("url", url, _problem, form), _problem_of_driver)


def check_arguments(arguments: object) -> Mapping[str, Any]:
    """Arguments of the driver by name.

    Raises:
        ConfigurationError: they are something else. The message does not show them.
    """
    if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
        raise ConfigurationError(
            f"connect_args is of type {type(arguments).__name__} (not shown, it may hold a password); it must be a "
            "mapping of the driver's arguments by name, or a function without arguments that returns one"
        )
    return arguments


URL = SecretSource("url", "URL", check_url)
"""A URL, or a function that returns it."""

CONNECT_ARGS: SecretSource[Mapping[str, Any]] = SecretSource("connect_args", "arguments of the driver", check_arguments)
"""Arguments of the driver, or a function that returns them."""


def _problem(url: str) -> str | None:
    if url.lower().startswith("jdbc:"):
        return "it is a URL for JDBC: leave out `jdbc:`, name the driver, and write user and password before the host"
    try:
        parts, parsed = urlsplit(url), make_url(url)
    except (ArgumentError, ValueError):
        return "it cannot be read"
    if "#" in url or any(character < " " for character in url):
        return "it holds a # or a control character"
    credentials, _, host = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    read = [unquote(user), unquote(password), host.partition(":")[0] if host[:1] != "[" else "[]"]
    also = [parsed.username or "", str(parsed.password or ""), (parsed.host or "") if host[:1] != "[" else "[]"]
    if "@" in credentials or "@" in parts.path + parts.query or read != also:
        return "it can be read in two ways"
    return None


def _problem_of_driver(url: str) -> str | None:
    parsed = make_url(url)
    known = DRIVERS.get(parsed.get_backend_name())
    try:
        dialect = parsed.get_dialect()
        if dialect.get_async_dialect_cls(parsed).is_async:
            return None
    except NoSuchModuleError:
        return f"SQLAlchemy does not know the dialect {parsed.drivername!r}; is a package to be installed for it?"
    except ImportError as error:
        return f"the dialect {parsed.drivername!r} cannot be imported ({error})"
    remedy = f", as in {known}://..." if known else ""
    return f"the driver of {parsed.drivername!r} is not asynchronous; name one that is{remedy}"


def secrets_of(url: str, arguments: Mapping[str, Any]) -> Secrets:
    """The parts of a checked URL, and of the arguments of the driver, that must not be shown."""
    known = of_url(url, _PUBLIC)
    texts = [text for name, value in arguments.items() if isinstance(value, str) for text in of_named(name, value)]
    if not texts:
        return known
    parsed = urlsplit(url)
    password = parsed.netloc.rpartition("@")[0].partition(":")[2]
    return Secrets([*texts, url, password], [unquote(parsed.path[1:]), parsed.netloc.rpartition("@")[2]])
