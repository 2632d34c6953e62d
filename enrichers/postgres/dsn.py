"""Connection strings: checked before the driver sees them, shown without secrets, and kept out of other texts.

Only the URI form is taken, ``postgresql://user:password@host:port/database?option=value``. A text that can be read in
two ways (an unescaped ``@``, ``/``, ``?`` or ``#`` in a password) is refused, because the driver would take a piece
of the password for a host or a database and name it in its errors. No error raised here shows any part of the text.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from asyncio_operator import ConfigurationError

_HOST = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^:\[\]]*)(:[0-9]+)?")

_PUBLIC = {
    *("host", "port", "dbname", "database", "user", "application_name", "target_session_attrs", "search_path"),
    *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl"),
}

_TELLTALE = re.compile("pass|pwd|secret|token|key")

_HIDDEN = "***"

_LONG = 8
"""Characters from which a secret is hidden inside of words too."""


def check_dsn(dsn: object) -> str:
    """The connection string, if it can be read in one way only.

    Raises:
        ConfigurationError: says what is wrong with it without showing it.
    """
    if not isinstance(dsn, str):
        raise ConfigurationError(
            f"dsn is of type {type(dsn).__name__}; it must be a string, or a function without arguments that gives one"
        )
    problem = _problem(dsn)
    if problem:
        raise ConfigurationError(
            f"dsn (not shown, it may hold a password): {problem}. It must look like "
            "postgresql://user:password@host:port/database, with @ : / ? # % inside of a user name, a password or a "
            "database name percent-encoded, as urllib.parse.quote(password, safe='') does it"
        )
    return dsn


def location(dsn: str) -> str:
    """Where a checked connection string leads, for messages: ``host:port/database``."""
    parts, options = urlsplit(dsn), options_of(dsn)
    hosts = unquote(parts.netloc.rpartition("@")[2]) or options.get("host", "")
    if "port" in options and ":" not in hosts:
        hosts += f":{options['port']}"
    database = unquote(parts.path[1:]) or options.get("dbname", options.get("database", ""))
    return without_secrets(f"{hosts}/{database}", dsn)


def without_secrets(text: str, dsn: str) -> str:
    """The text, with whatever in it might be a secret of this checked connection string hidden.

    A short secret is hidden where it stands as a word: its letters are in other words too, and would tell it. One that
    equals a public part (the user is the password, as on many a test server) is told by hiding it.
    """
    for secret in sorted(_secrets(dsn) - _public(dsn), key=len, reverse=True):
        if len(secret) >= _LONG:
            text = text.replace(secret, _HIDDEN)
        else:
            before = r"(?<!\w)" if secret[0].isalnum() else ""
            after = r"(?!\w)" if secret[-1].isalnum() else ""
            text = re.sub(before + re.escape(secret) + after, _HIDDEN, text)
    return text


def names_application(dsn: str) -> bool:
    """Whether the connection string sets its own ``application_name``."""
    return "application_name" in options_of(dsn)


def _problem(dsn: str) -> str | None:
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return "its host cannot be read"
    if parts.scheme not in ("postgresql", "postgres"):
        return "it does not begin with postgresql://"
    if "#" in dsn:
        return "it holds a #"
    credentials, _, hosts = parts.netloc.rpartition("@")
    ambiguous = "@" in credentials or (parts.netloc and not credentials and "@" in parts.path + parts.query)
    if ambiguous or "@" in parts.path:
        return "it holds an @ in a place where it has no meaning"
    if not all(_HOST.fullmatch(host) for host in hosts.split(",")):
        return "what should be a port is not a number"
    return _problem_of_options(parts)


def _problem_of_options(parts: SplitResult) -> str | None:
    try:
        options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError:
        return "its options are not of the form name=value&name=value"
    if not all(port.isdecimal() for port in options.get("port", "0").split(",")):
        return "its port is not a number"
    return None


def options_of(dsn: str) -> dict[str, str]:
    """The options of a checked connection string."""
    return dict(parse_qsl(urlsplit(dsn).query))


def _public(dsn: str) -> set[str]:
    """The user, the database and what options say openly."""
    parts = urlsplit(dsn)
    credentials, _, hosts = parts.netloc.rpartition("@")
    options = [value for name, value in options_of(dsn).items() if name in _PUBLIC]
    return {unquote(credentials.partition(":")[0]), unquote(parts.path[1:]), hosts, *options}


def _secrets(dsn: str) -> set[str]:
    parts = urlsplit(dsn)
    password = parts.netloc.rpartition("@")[0].partition(":")[2]
    raw = {password, unquote(password), dsn}
    for option in parts.query.split("&"):
        name, _, value = option.partition("=")
        if not _is_public(unquote(name), value):
            raw |= {value, unquote(value), unquote(value.replace("+", " "))}
    return {secret for secret in raw if secret}


def _is_public(option: str, value: str) -> bool:
    """An option that the driver does not know may be a misspelt password; a bare number under another name is none."""
    return option in _PUBLIC or (value.isdecimal() and not _TELLTALE.search(option))
