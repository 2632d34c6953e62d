"""`OAuth2`: headers with a token that a token service gives to programs (client credentials).

The token is requested with the connections, proxies and certificates of the enricher, before the first request, before
it expires, and once more when the service answers 401. `headers.HeaderSource` decides when.

Source: RFC 6749, section 4.4 (client credentials) and 2.3.1 (Basic, with name and secret percent-encoded); RFC 6750
(bearer tokens).
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote_plus, urlencode

from asyncio_operator import ConfigurationError, EnricherError
from asyncio_operator.enricher import describe, verdict
from asyncio_operator.services.secret_source import SecretSource, checked_text
from asyncio_operator.services.secrets import Secrets
from enrichers.http.bodies import decoded
from enrichers.http.error_bodies import lasting_refusal, parsed_error
from enrichers.http.errors import failure, status_error
from enrichers.http.headers import Fresh, asked, check_headers
from enrichers.http.limit_headers import read_hints
from enrichers.http.redirects import RefusedError
from enrichers.http.request_plan import Request
from enrichers.http.session import Answer, Client
from enrichers.http.url_parts import read_url, shown_url
from enrichers.names import is_utf8

REQUEST_TIMEOUT = 30.0
"""Seconds for a token. Lookups wait for it, within their own deadlines."""

EARLY = 30.0
"""Seconds before it expires, at which a token is replaced; at most a tenth of its life. A request that is on its way
then still arrives in time, and clocks need not agree: only the time since the token came counts."""


def _problem_of_secret(text: str) -> str | None:
    if not text.strip():
        return "it is empty"
    return None if is_utf8(text) else "it holds a character that UTF-8 cannot encode"


_SECRET = SecretSource[str](
    "secret",
    "client secret",
    lambda given: checked_text("secret", given, _problem_of_secret),
    may_await=True,
)

_FORM = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}


@dataclass(frozen=True, slots=True)
class OAuth2:
    """Bearer tokens for `HttpEnricher(headers=...)`, from a token service, for a client with a secret.

    Attributes:
        token_url: the token service; https, unless the network is your own.
        client_id: the name of the client.
        secret: its secret, or a function without arguments that returns it, which keeps it out of the job.
        scope: what the token is for, as the service names it; several are separated by blanks.
        params: more fields of the form, such as ``{"audience": "https://api.example.com"}``.
        send: where name and secret are sent: in a header ("basic") or in the form ("form").
        headers: more headers for each request with the token.

    Raises:
        ConfigurationError: a value is wrong. It is not shown if it may hold a secret.
    """

    token_url: str
    client_id: str
    secret: str | Callable[[], Any] = field(repr=False)
    scope: str | None = None
    params: Mapping[str, str] = field(default_factory=dict, repr=False)
    send: str = "basic"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if read_url(self.token_url, "token_url").authorization is not None:
            raise ConfigurationError("token_url (not shown) holds credentials; pass them as client_id and secret")
        if not isinstance(self.client_id, str) or not self.client_id or not is_utf8(self.client_id):
            raise ConfigurationError(f"client_id is {describe(self.client_id)}; it must be a text, not empty")
        _SECRET.check_source(self.secret)
        if self.scope is not None and not (isinstance(self.scope, str) and is_utf8(self.scope)):
            raise ConfigurationError(f"scope is {describe(self.scope)}; it must be a text, with blanks between scopes")
        if self.send not in ("basic", "form"):
            raise ConfigurationError(f'send is {describe(self.send)}; it must be "basic" or "form"')
        params = self.params
        if not isinstance(params, Mapping) or not all(
            isinstance(text, str) and is_utf8(text) for pair in params.items() for text in pair
        ):
            raise ConfigurationError("params (not shown) must be a mapping of texts to texts")
        object.__setattr__(self, "params", dict(self.params))
        headers = check_headers(self.headers, "headers of OAuth2")
        if "authorization" in {name.lower() for name in headers}:
            raise ConfigurationError("headers of OAuth2 contain Authorization, where the token is sent: leave it out")
        object.__setattr__(self, "headers", headers)

    def __hash__(self) -> int:
        return hash((self.token_url, self.client_id, self.scope))

    async def fresh(self, client: Client) -> Fresh:
        """Headers with a new token, and for how many seconds it may be used.

        Args:
            client: open; it sends the request.

        Raises:
            EnricherError: there is no token. No key causes this error.
        """
        subject = f"the token service {shown_url(read_url(self.token_url, 'token_url'))}"
        secret = await asked(_SECRET, self.secret)
        secrets = Secrets([secret, quote_plus(secret)], public=[self.client_id])
        problem: EnricherError
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                answer = await client.fetch(*self._request(secret))
            if not 200 <= answer.status < 300:
                parsed = parsed_error(answer.body)
                hints = read_hints(answer.status, answer.headers.items(), parsed, datetime.now(UTC).timestamp())
                lasting = lasting_refusal(answer.status, answer.body, parsed)
                problem = status_error(subject, answer.status, answer.body, secrets, wait=hints.wait, lasting=lasting)
            else:
                return self._read(answer, secrets)
        except TimeoutError:
            problem = EnricherError(f"{subject}: no answer within {REQUEST_TIMEOUT:g} s", retryable=True)
        except (RefusedError, _UnreadableError) as error:
            problem = EnricherError(f"{subject}: {error}", **verdict(error))
        except Exception as error:
            problem = failure(error, subject, secrets)
        # Outside of the handlers: a frame of theirs holds the secret.
        raise EnricherError(str(problem), **(verdict(problem) | {"any_key": True})) from problem.__cause__

    def _request(self, secret: str) -> tuple[Request, dict[str, str]]:
        form = {"grant_type": "client_credentials", **({} if self.scope is None else {"scope": self.scope})}
        headers = dict(_FORM)
        if self.send == "form":
            form |= {"client_id": self.client_id, "client_secret": secret}
        else:
            pair = f"{quote_plus(self.client_id)}:{quote_plus(secret)}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        return Request("POST", self.token_url, headers, urlencode({**form, **self.params}).encode()), headers

    def _read(self, answer: Answer, secrets: Secrets) -> Fresh:
        try:
            given = json.loads(decoded(answer.body, answer.headers.get("Content-Type", "")))
        except ValueError:
            given = None
        token = given.get("access_token") if isinstance(given, dict) else None
        if not isinstance(token, str) or not token:
            raise _UnreadableError("its answer has no access_token")
        kind = given.get("token_type", "Bearer")
        if not isinstance(kind, str) or kind.lower() != "bearer":
            secrets.add([token])
            raise _UnreadableError(f"its token_type is {secrets.show(kind)}; only bearer tokens can be sent")
        headers = {**self.headers, "Authorization": f"Bearer {token}"}
        try:
            check_headers(headers, "the token")
        except ConfigurationError:
            raise _UnreadableError("its access_token cannot be sent in a header") from None
        return Fresh(headers, _seconds(given.get("expires_in")))


class _UnreadableError(Exception):
    """A token that cannot be used; the message shows nothing of it."""

    retryable = False


def _seconds(expires_in: object) -> float | None:
    """For how long a token may be used; None if its service does not say it."""
    try:
        life = float(expires_in)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return life - min(EARLY, life / 10) if life > 0 else None
