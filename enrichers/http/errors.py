"""The one place where statuses of HTTP, and errors of aiohttp, become errors of this package.

`STATUSES` says of a status whether the same request may succeed later, whether the service has too much to do, and
whether any other key would have got it. A status that is not there is judged by its class: 4xx is final, of 5xx it is
not known. A message shows what the service said, cut and without secrets, because that mostly tells what is wrong.

Source: RFC 9110 (statuses, Retry-After), RFC 6585 (429), RFC 8470 (425).
"""

from __future__ import annotations

import contextlib
import email.utils
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from math import isfinite
from typing import NamedTuple

import aiohttp

from asyncio_operator import EnricherError
from enrichers.http.secrets import Secrets

SHOWN = 200
"""Characters of an answer that a message shows."""


class Cause(NamedTuple):
    """What an error means. `retryable` is None where that is not known; `any_key`: no key is to blame."""

    text: str
    retryable: bool | None = False
    overload: bool = False
    any_key: bool = False


STATUSES = {
    401: Cause("the service refuses the credentials", any_key=True),
    403: Cause("the service forbids it", any_key=True),
    405: Cause("the service does not take this method here", any_key=True),
    407: Cause("the proxy refuses the credentials", any_key=True),
    408: Cause("the service gave up waiting for the request", retryable=True),
    414: Cause("the URL is too long for the service"),
    425: Cause("the service wants the request later", retryable=True),
    429: Cause("the service wants fewer requests", retryable=True, overload=True),
    500: Cause("the service failed", retryable=True),
    501: Cause("the service cannot do this"),
    502: Cause("the service behind a gateway failed", retryable=True),
    503: Cause("the service is not available", retryable=True, overload=True),
    504: Cause("the service behind a gateway did not answer in time", retryable=True),
    505: Cause("the service does not speak HTTP/1.1", any_key=True),
}

# The first class that fits wins.
FAILURES: tuple[tuple[type[BaseException], Cause], ...] = (
    (
        aiohttp.ClientConnectorCertificateError,
        Cause(
            "the certificate of the service does not verify; ssl= takes the file of its authority",
            any_key=True,
        ),
    ),
    (aiohttp.ClientSSLError, Cause("TLS with the service failed", retryable=None, any_key=True)),
    (aiohttp.ClientProxyConnectionError, Cause("the proxy is not reachable", retryable=True, any_key=True)),
    (aiohttp.ServerTimeoutError, Cause("no connection came about in time", retryable=True, any_key=True)),
    (aiohttp.ClientConnectorError, Cause("the service is not reachable", retryable=True, any_key=True)),
    (aiohttp.ClientConnectionError, Cause("the connection was lost", retryable=True)),
    (aiohttp.ClientPayloadError, Cause("the answer broke off", retryable=True)),
    (aiohttp.InvalidURL, Cause("the URL cannot be used")),
    (aiohttp.ClientResponseError, Cause("the answer is no HTTP", retryable=None)),
    (TimeoutError, Cause("no connection came about in time", retryable=True, any_key=True)),
    (OSError, Cause("the connection was lost", retryable=True)),
)

UNKNOWN = Cause("the request failed", retryable=None)


def cause_of_status(status: int) -> Cause:
    """What a status means that is not a success."""
    known = STATUSES.get(status)
    if known is not None:
        return known
    return Cause("the service failed", retryable=None) if status >= 500 else Cause("the service refuses the request")


def status_error(subject: str, status: int, headers: Mapping[str, str], body: bytes, secrets: Secrets) -> EnricherError:
    """The error of an answer with a status that is no success. `subject` names the enricher and the key."""
    cause = cause_of_status(status)
    with contextlib.suppress(ValueError):
        cause = cause._replace(text=f"{cause.text} ({status} {HTTPStatus(status).phrase})")
    text = cause.text if str(status) in cause.text else f"{cause.text} (status {status})"
    return EnricherError(
        f"{subject}: {text}{said(body, secrets)}",
        retryable=cause.retryable,
        retry_after=None if cause.retryable is False else retry_after(headers),
        overload=cause.overload,
        any_key=cause.any_key,
    )


def failure(error: Exception, subject: str, secrets: Secrets) -> EnricherError:
    """The error of a request that got no answer. What caused it is kept unless that would show a secret."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        cause = cause_of_status(error.status)._replace(text=f"the proxy answered with status {error.status}")
    else:
        cause = next((cause for kind, cause in FAILURES if isinstance(error, kind)), UNKNOWN)
    raised = EnricherError(
        f"{subject}: {cause.text}{_words(error, secrets)}",
        retryable=cause.retryable,
        overload=cause.overload,
        any_key=cause.any_key,
    )
    if not secrets.told_by(error):
        raised.__cause__ = error
    raised.__suppress_context__ = True
    return raised


def said(body: bytes, secrets: Secrets) -> str:
    """What a service said, for the end of a message."""
    text = secrets.hide(" ".join(body[: 20 * SHOWN].decode("utf-8", "replace").split()))
    shown = "".join(character if character.isprintable() else "?" for character in text)
    return f": {shown if len(shown) <= SHOWN else shown[: SHOWN - 3] + '...'}" if shown else ""


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that ``Retry-After`` asks for, or None. A date is read by the clock of whoever wrote it."""
    value = headers.get("Retry-After", "").strip()
    if not value:
        return None
    with contextlib.suppress(ValueError):
        seconds = float(value)
        return max(seconds, 0.0) if isfinite(seconds) else None
    moment, now = _date(value), _date(headers.get("Date", ""))
    return None if moment is None else max((moment - (now or datetime.now(UTC))).total_seconds(), 0.0)


def _date(text: str) -> datetime | None:
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError, OverflowError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _words(error: Exception, secrets: Secrets) -> str:
    """The error's own words; those of the system where there are any, because aiohttp's may hold the URL."""
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    text = getattr(inner, "strerror", None) or ("" if isinstance(error, aiohttp.InvalidURL) else str(inner))
    text = secrets.hide(" ".join(str(text).split()))
    return f" ({text if len(text) <= SHOWN else text[: SHOWN - 3] + '...'})" if text else f" ({type(error).__name__})"
