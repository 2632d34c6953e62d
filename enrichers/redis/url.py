"""URLs of Redis: checked before the client sees them, shown without secrets.

``redis://user:password@host:port/database?option=value``, ``rediss://`` for TLS, or ``unix://user:password@/path``. A
text that can be read in two ways is refused, because the client would take a piece of the password for a host, and
name it in its errors. No error raised here shows any part of the text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import gives_coroutines, missing_here, takes

Url = str | Callable[[], str]


def check_url(url: object) -> str:
    """The URL, if it can be read in one way only.

    Raises:
        ConfigurationError: says what is wrong with it without showing it.
    """
    if not isinstance(url, str):
        raise ConfigurationError(
            f"url is of type {type(url).__name__}; it must be a string, or a function without arguments that gives one"
        )
    problem = _problem(url)
    if problem:
        raise ConfigurationError(
            f"url (not shown, it may hold a password): {problem}. It must look like redis://user:password@host:6379/0, "
            "rediss://... for TLS or unix://.../path, with @ : / ? # % inside of a password percent-encoded, as "
            "urllib.parse.quote(password, safe='') does it"
        )
    return url


def check_url_function(function: Callable[[], str]) -> None:
    """Check that a function can give the URL; what it was given before, as a partial, is not shown.

    Raises:
        ConfigurationError: it is a coroutine function, or takes arguments.
    """
    wanted = "it must be an ordinary function without arguments that gives the URL"
    if gives_coroutines(function):
        raise ConfigurationError(f"url is {shown_source(function)}, an `async def` function; {wanted}")
    try:
        takes("url", function)
    except ConfigurationError:
        raise ConfigurationError(f"url is {shown_source(function)}, which takes arguments; {wanted}") from None


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
        return "it holds an @ in a place where it has no meaning"
    if parts.scheme == "unix":
        return None if parts.path.strip("/") else "it has no path"
    if parts.path.strip("/") and not parts.path.strip("/").isdecimal():
        return "its path is not the number of a database"
    return None


def location(url: str) -> str:
    """Where a checked URL leads, for messages."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def without_secrets(text: str, url: str) -> str:
    """The text without the password and the options of a checked URL."""
    parts = urlsplit(url)
    password = parts.netloc.rpartition("@")[0].partition(":")[2]
    values = [option.partition("=")[2] for option in parts.query.split("&")]
    secrets = {secret for part in (password, *values) for secret in (part, unquote(part)) if len(secret) > 3}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def shown_source(source: Url) -> str:
    """A URL, or the function that gives it, without what is secret or captured."""
    if isinstance(source, str):
        return repr(location(source))
    return getattr(source, "__qualname__", type(source).__qualname__)


async def url_of(source: Url) -> str:
    """The checked URL. A function that gives it may block: it runs in a thread.

    Raises:
        ConfigurationError: the function failed, or gave something else.
    """
    if isinstance(source, str):
        return source
    function = f"url: the function {shown_source(source)}"
    try:
        url = await asyncio.to_thread(source)
    except Exception as error:
        # Of other errors nothing more is shown: they may hold a secret.
        missing = missing_here(error)
        why = f": {missing}" if missing else ""
        raise ConfigurationError(f"{function} raised {type(error).__name__}{why}") from (error if missing else None)
    if url is None:
        raise ConfigurationError(f"{function} gave None; is an environment variable not set in this process?")
    return check_url(url)
