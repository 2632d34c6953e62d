"""Connection strings: checked before asyncpg gets them, shown without secrets, and hidden in other texts.

Only the URI form is accepted, ``postgresql://user:password@host:port/database?option=value``. A text that can be read
in two ways (an unescaped ``@``, ``/``, ``?`` or ``#`` in a password) is refused, because asyncpg could read a piece of
the password as a host or a database, and show it in its errors. No error raised here shows any part of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import parse_qsl, unquote, urlsplit

from asyncio_operator.services.secret_source import SecretSource, checked_text
from asyncio_operator.services.secrets import Secrets, of_url

Dsn = str | Callable[[], str]

OWN_SESSION = "pg_catalog.pg_backend_pid() = {process}"
"""In SQL, with the process number that the driver knows: whether a session is this client's own. A pooler, such as
PgBouncer, gives its clients numbers of its own, and a session serves several of them: nothing may be set there."""

_OF_LIBPQ = re.compile(r"\s*[a-z_]+\s*=")

_DRIVERS = ("asyncpg", "psycopg", "psycopg2", "psycopg2cffi", "psycopg_async", "pg8000", "aiopg", "py-postgresql")
"""Drivers as SQLAlchemy names them. Another text is not shown, it may be a part of a secret."""

_HOST = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^:\[\]]*)(:[0-9]+)?")

_PUBLIC = frozenset(
    (
        *("host", "port", "dbname", "database", "user", "application_name", "target_session_attrs", "search_path"),
        *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl"),
    )
)


def check_dsn(dsn: object, argument: str = "dsn") -> str:
    """The connection string, if it can be read in one way only. Else ConfigurationError: it says what is wrong, and
    does not show it."""
    form = (
        ". It must look like postgresql://user:password@host:port/database, with @ : / ? # % inside of a user name, a "
        "password or a database name percent-encoded, as urllib.parse.quote(password, safe='') does it"
    )
    return checked_text(argument, dsn, _problem, form)


DSN = SecretSource("dsn", "connection string", check_dsn)
"""A connection string, or a function that returns it."""


def location(dsn: str) -> str:
    """The server and database of a checked connection string, for messages: ``host:port/database``."""
    parts, options = urlsplit(dsn), options_of(dsn)
    hosts = unquote(parts.netloc.rpartition("@")[2]) or options.get("host", "")
    if "port" in options and ":" not in hosts:
        hosts += f":{options['port']}"
    database = unquote(parts.path[1:]) or options.get("dbname", options.get("database", ""))
    return secrets_of(dsn).hide(f"{hosts}/{database}")


def secrets_of(dsn: str) -> Secrets:
    """The parts of a checked connection string that must not be shown."""
    return of_url(dsn, _PUBLIC)


def _problem(dsn: str) -> str | None:
    if dsn.startswith("jdbc:"):
        return "it is a URL for JDBC: leave out `jdbc:`, and write user and password before the host"
    if _OF_LIBPQ.match(dsn):
        return "it is a list of name=value, as libpq takes it: write it as a URL, postgresql://user:password@host:port/dbname"
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return "its host cannot be read"
    scheme, plus, driver = parts.scheme.partition("+")
    if plus and driver in _DRIVERS and scheme in ("postgresql", "postgres"):
        return f"it is a URL for SQLAlchemy: leave out +{driver}"
    if parts.scheme not in ("postgresql", "postgres"):
        return "it does not begin with postgresql://"
    if "#" in dsn:
        return "it holds a #"
    credentials, _, hosts = parts.netloc.rpartition("@")
    ambiguous = "@" in credentials or (parts.netloc and not credentials and "@" in parts.path + parts.query)
    if ambiguous or "@" in parts.path:
        return "it holds an @ in a place other than between the password and the host"
    if not all(_HOST.fullmatch(host) for host in hosts.split(",")):
        return "the port after its host is not a number"
    try:
        options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError:
        return "its options are not of the form name=value&name=value"
    if not all(port.isdecimal() for port in options.get("port", "0").split(",")):
        return "its port is not a number"
    if re.sub("[-_']", "", options.get("client_encoding", "UTF8")).upper() not in ("UTF8", "UNICODE"):
        return "its client_encoding is not UTF8, as which each text is read: leave client_encoding out of it"
    return None


def options_of(dsn: str) -> dict[str, str]:
    """The options of a checked connection string."""
    return dict(parse_qsl(urlsplit(dsn).query))
