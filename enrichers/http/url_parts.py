"""The URL of a user, taken apart: everything before the path is fixed, path and query are templates.

A key that would make a segment of the path empty, ``.`` or ``..`` cannot be sent: every server would make another path
of it, escaped or not (RFC 3986, 6.2.2.3). Text that the user has escaped stays as it is; other characters that a URL
cannot contain are escaped. A URL that can be read in two ways is refused, because a piece of a password might be taken
for a host. No error shows a URL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

from aiohttp.client import URL  # type: ignore[attr-defined]

from asyncio_operator import ConfigurationError
from asyncio_operator.services.secrets import Secrets, of_named
from enrichers.http.keys import UnsendableError, quoted, quoted_list
from enrichers.http.proxies import basic
from enrichers.http.template import Names, Piece, Values, fill, lacks, merged, slots

_URL = re.compile(r"(https?)://([^/?#]*)([^?#]*)(?:\?([^#]*))?(#.*)?", re.IGNORECASE | re.DOTALL)
_NEVER = re.compile(r"[\x00-\x20\x7f]")
_STRAY_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")
_RESERVED = "%!$&'()*+,;=:@"


class Place(NamedTuple):
    """A URL: its origin, path and query (None: it has no question mark), the header with its credentials, and the
    secret text of these."""

    origin: str
    path: str
    query: str | None
    authorization: str | None
    password: str


def read_url(text: object, where: str) -> Place:
    """Take a URL apart.

    Raises:
        ConfigurationError: it is not a URL. It is not shown, because it may contain a password.
    """
    if not isinstance(text, str):
        unset = "; is an environment variable not set in this process?" if text is None else ""
        raise ConfigurationError(
            f"{where} is of type {type(text).__name__}; it must be a text that begins with http:// or https://{unset}"
        )
    found = _URL.fullmatch(text)
    problem = "it does not begin with http:// or https://"
    if found is not None:
        scheme, authority, path, query, fragment = found.groups()
        credentials, at, host = authority.rpartition("@")
        problem = _problem(authority, credentials, host, path, fragment) or (
            "it contains blanks or control characters; percent-encode them" if _NEVER.search(text) else ""
        )
        if not problem:
            user, _, password = credentials.partition(":")
            try:
                origin = str(URL(f"{scheme.lower()}://{host}").origin())
                return Place(origin, path or "/", query, basic(user, password) if at else None, password or user)
            except ValueError:
                problem = "its host or port cannot be read"
    raise ConfigurationError(f"{where} (not shown, it may hold a secret): {problem}")


def _problem(authority: str, credentials: str, host: str, path: str, fragment: str | None) -> str:
    if fragment is not None:
        return "it contains a #, and the text after it is never sent; write %23 for the character"
    if "{" in authority or "}" in authority:
        return "a part of the key cannot be in its host, port or credentials"
    if not authority:
        return "it has no host"
    if not host or "@" in credentials or "@" in path:
        return "its host is ambiguous; write %40 for an @ in a user, a password or the path"
    return ""


def as_written(text: str) -> URL:
    """A URL with a path, to be sent as it is written."""
    url = URL(text, encoded=True)
    if not text.endswith("?"):
        return url
    # A URL of text loses a question mark with nothing after it, and a path keeps it.
    path = "/" + text.split("/", 3)[3]
    return URL.build(scheme=url.scheme, authority=url.raw_authority, path=path, encoded=True)


def shown_url(place: Place) -> str:
    """A URL for messages, without the values of its query."""
    return place.origin + place.path + ("" if place.query is None else f"?{without_values(place.query, '...')}")


def without_values(query: str, instead: str) -> str:
    """A query with another text instead of each value. An item without a name is a value: it may be a token."""
    items = [item.partition("=") for item in query.split("&")] if query else []
    return "&".join([f"{name}={instead}" if equals else instead for name, equals, _ in items])


def path_pieces(names: Names, path: str, where: str, used: set[str]) -> list[Piece]:
    """The path of a URL. The names in braces that it uses are added to `used`."""
    pieces: list[Piece] = []
    for i, segment in enumerate(path.split("/")):
        taken = names.take_apart(segment, where)
        used |= slots(taken)
        constant = _requoted("".join([text for text in taken if isinstance(text, str)])).upper().replace("%2E", ".")
        texts = [_requoted(text) if isinstance(text, str) else text for text in taken]
        filled = names.fill_in(texts, quoted, quoted_list)
        at_risk = slots(taken) and not constant.strip(".")
        whole = ["/" if i else "", *([_segment(merged(filled))] if at_risk else filled)]
        optional = names.optional_in(slots(taken))
        pieces += [unless_null(merged(whole), optional)] if optional else whole
    return pieces


def unless_null(pieces: tuple[Piece, ...], optional: Sequence[int]) -> Piece:
    """The pieces, or nothing if one of these parts of the key is null."""
    return lambda values: "" if lacks(optional, values) else fill(pieces, values)


def query_of(items: Sequence[tuple[tuple[Piece, ...], tuple[int, ...]]], without: str) -> list[Piece]:
    """The query with its question mark, from its items, each with the optional parts of the key that it has; `without`
    if no item is left."""
    if not items:
        return [without]
    if not any(optional for _, optional in items):
        return [piece for i, (item, _) in enumerate(items) for piece in ("&" if i else "?", *item)]

    def write(values: Values) -> str:
        texts = [fill(item, values) for item, optional in items if not lacks(optional, values)]
        return "?" + "&".join(texts) if texts else without

    return [write]


def _segment(pieces: tuple[Piece, ...]) -> Piece:
    """A segment that a key might make empty, or a step up."""

    def write(values: Values) -> str:
        text = fill(pieces, values)
        if text.upper().replace("%2E", ".") in ("", ".", ".."):
            raise UnsendableError(f"with it a segment of the path would be {text!r}, which leads elsewhere")
        return text

    return write


def query_pieces(names: Names, query: str, where: str, used: set[str], secrets: Secrets) -> tuple[Piece, ...]:
    """The query of a URL, without its question mark."""
    taken = names.take_apart(query, where, secret=True)
    used |= slots(taken)
    for item in query.split("&"):
        name, equals, value = item.partition("=")
        if not equals:
            name, value = "", item
        secrets.add(
            [text for text in names.take_apart(value, where, True) if isinstance(text, str) and of_named(name, text)]
        )
    texts = [_requoted(text, "/?") if isinstance(text, str) else text for text in taken]
    return merged(names.fill_in(texts, quoted, quoted_list))


def _requoted(text: str, more: str = "") -> str:
    """The user's own text of a URL, ready to be sent: escapes in it stay as they are."""
    return quote(_STRAY_PERCENT.sub("%25", text), safe=_RESERVED + more)
