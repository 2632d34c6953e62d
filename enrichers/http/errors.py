"""The one place where HTTP statuses, and errors of aiohttp, become errors of this package.

For each status, `STATUSES` says whether the same request may succeed later, whether the service has too much load, and
whether every other key would have got it. A status that is not listed is judged by its class: 4xx is final, and of 5xx
it is not known. A message shows what the service said, cut and without secrets, because that often names the problem.

Source: RFC 9110 (statuses), RFC 6585 (429), RFC 8470 (425). 529 is Anthropic's "overloaded".
"""

from __future__ import annotations

from functools import partial
from http.client import responses

import aiohttp

from asyncio_operator import EnricherError
from asyncio_operator.services.causes import Cause, lookup_error
from asyncio_operator.services.secrets import Secrets

SHOWN = 200
"""How many characters of an answer a message shows."""


OfKey = partial(Cause, any_key=False)
"""Causes that another key might not have."""

STATUSES = {
    401: Cause("the service refuses the credentials"),
    403: Cause("the service forbids it"),
    405: Cause("the service does not accept this method for this URL"),
    407: Cause("the proxy refuses the credentials"),
    408: OfKey("the service did not get the whole request in time", retryable=True),
    414: OfKey("the URL is too long for the service"),
    425: OfKey("the service does not accept the request yet", retryable=True),
    429: OfKey("the service wants fewer requests", retryable=True, overload=True),
    500: OfKey("the service failed", retryable=True),
    501: OfKey("the service does not support this request"),
    502: OfKey("the service behind a gateway failed", retryable=True),
    503: OfKey("the service is not available", retryable=True, overload=True),
    504: OfKey("the service behind a gateway did not answer in time", retryable=True),
    505: Cause("the service does not speak HTTP/1.1"),
    529: OfKey("the service has too much load", retryable=True, overload=True),
}

# The first class that fits wins.
FAILURES: tuple[tuple[type[BaseException], Cause], ...] = (
    (
        aiohttp.ClientConnectorCertificateError,
        Cause("the certificate of the service does not verify; ssl= takes the file of its authority"),
    ),
    (aiohttp.ClientSSLError, Cause("TLS with the service failed", retryable=None)),
    (aiohttp.ClientProxyConnectionError, Cause("the proxy is not reachable", retryable=True)),
    (aiohttp.ServerTimeoutError, Cause("no connection came about in time", retryable=True)),
    (aiohttp.ClientConnectorError, Cause("the service is not reachable", retryable=True)),
    (aiohttp.ClientConnectionError, OfKey("the connection was lost", retryable=True)),
    (aiohttp.ClientPayloadError, OfKey("the answer broke off", retryable=True)),
    (aiohttp.InvalidURL, OfKey("the URL cannot be used")),
    (aiohttp.ClientResponseError, OfKey("the answer is not HTTP", retryable=None)),
    (TimeoutError, Cause("no connection came about in time", retryable=True)),
    (OSError, OfKey("the connection was lost", retryable=True)),
)

UNKNOWN = OfKey("the request failed", retryable=None)


def cause_of_status(status: int) -> Cause:
    """What a status means that is not a success."""
    known = STATUSES.get(status)
    if known is not None:
        return known
    return OfKey("the service failed", retryable=None) if status >= 500 else OfKey("the service refuses the request")


def status_error(
    subject: str,
    status: int,
    body: bytes,
    secrets: Secrets,
    *,
    wait: float | None,
    lasting: str | None,
    target: str = "",
) -> EnricherError:
    """The error for an answer whose status is not a success.

    Args:
        subject: names the enricher and the key.
        wait: the seconds after which the request may be repeated, if the answer says so.
        target: the host of a redirect that is not followed.
        lasting: why no attempt helps, if the answer says so: then the status does not decide.
    """
    # GitHub refuses with 403 what others refuse with 429. Only a limit says when to return.
    cause = cause_of_status(429 if status == 403 and wait is not None else status)
    number = f"{status} {responses[status]}" if status in responses else f"status {status}"
    cause = cause._replace(text=f"{cause.text} ({number})")
    if target:
        # Not its path, which may hold a token.
        text = (
            f'it is redirected to {target}, and redirects="never" forbids to follow (status {status}); use the new URL'
        )
        cause = cause._replace(text=text)
    if lasting is not None:
        # Every other key would get the same.
        cause = Cause(f"not retried, because {lasting} (status {status})")
    wait = None if cause.retryable is False else wait
    error = cause.error(f"{subject}: {cause.text}{said(body, secrets)}", retry_after=wait, billed=False, code=status)
    error.reported = True  # See `Reports.heard`.
    return error


def failure(error: Exception, subject: str, secrets: Secrets) -> EnricherError:
    """The error for a request without an answer. The original error is kept as cause, unless it would show a secret."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        cause = cause_of_status(error.status)._replace(text=f"the proxy answered with status {error.status}")
    else:
        cause = next((cause for kind, cause in FAILURES if isinstance(error, kind)), UNKNOWN)
    # The system's words are preferred, because aiohttp's may contain the URL.
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    words = str(getattr(inner, "strerror", None) or ("" if isinstance(error, aiohttp.InvalidURL) else inner))
    return lookup_error(error, cause, subject, secrets, words=words)


def said(body: bytes, secrets: Secrets) -> str:
    """The words of the service, for the end of a message."""
    shown = secrets.line(body[: 20 * SHOWN].decode("utf-8", "replace"), SHOWN)
    return f": {shown}" if shown else ""
