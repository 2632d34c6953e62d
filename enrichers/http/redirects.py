"""The target of a redirect: resolved as RFC 3986, section 5, says, and otherwise as the service wrote it.

Escapes stay as they are, because a signed URL is signed as it was written. Bytes that no request line can hold, blanks
and those above 127, are percent-encoded one by one. The text of a URL is not shown in errors: it may hold a token.
"""

from __future__ import annotations

import re
from typing import Any

from aiohttp.client import URL  # type: ignore[attr-defined]

from enrichers.http.url_parts import as_written

NO_TARGET = "something that is not a URL of http or https"
_REFERENCE = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.DOTALL)
_UNSENDABLE = re.compile(r"[\x00-\x1f\x7f]")
_NEEDS_ESCAPE = re.compile(rb"[\x20\x80-\xff]")


class RefusedError(Exception):
    """An answer that is not accepted, or a redirect that is not followed; the message says why. `retryable`: whether
    the next answer may be different. `status`: of the answer, if one was read."""

    def __init__(self, problem: str, retryable: bool = False, status: int | None = None) -> None:
        super().__init__(problem)
        self.retryable = retryable
        self.status = status


class TargetError(RefusedError):
    """A redirect leads to something that cannot be requested."""

    def __init__(self) -> None:
        super().__init__(f"it is redirected to {NO_TARGET}")


def target_of(url: URL, location: str) -> URL:
    """Where a redirect leads.

    Args:
        url: of the request that was redirected.
        location: the header, in which surrogates are bytes that are not UTF-8, as `aiohttp` gives it.

    Raises:
        TargetError: it leads to no URL of http or https.
    """
    text = location.strip(" \t")
    found = _REFERENCE.fullmatch(text)
    if found is None or _UNSENDABLE.search(text):
        raise TargetError
    scheme, authority, path, query = found.groups()
    if scheme is not None and (scheme.lower() not in ("http", "https") or not authority):
        raise TargetError
    origin: Any = url.origin()
    if authority is None:
        asked, mark, its_query = url.raw_path_qs.partition("?")
        if not path:
            path, query = asked, its_query if query is None and mark else query
        elif not path.startswith("/"):
            path = asked.rpartition("/")[0] + "/" + path
    else:
        try:
            # An address that can be read in two ways leads to one of two hosts.
            if "\\" in authority or "@" in authority.rpartition("@")[0]:
                raise TargetError
            authority.encode()
            origin = URL(f"{(scheme or url.scheme).lower()}://{authority.rpartition('@')[2]}").origin()
        except ValueError:
            raise TargetError from None
        if not origin.host:
            raise TargetError
    address = _escaped(_without_dots(path)) + ("" if query is None else f"?{_escaped(query)}")
    return as_written(f"{origin}{address}")


def _without_dots(path: str) -> str:
    """The path without the segments ``.`` and ``..``."""
    kept: list[str] = []
    segments = path.split("/")
    for segment in segments:
        if segment == "..":
            del kept[max(1, len(kept) - 1) :]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/".join(kept) or "/"


def _escaped(text: str) -> str:
    """The same bytes, with those percent-encoded that a request line cannot hold."""
    data = text.encode("utf-8", "surrogateescape")
    return _NEEDS_ESCAPE.sub(lambda byte: b"%%%02X" % byte[0][0], data).decode("ascii")
