"""`HttpEnricher`: rows from an HTTP service, by key, one request for each key or for a batch of them.

It is a specification: checked when it is made, equal by its arguments. What a worker opens is never pickled. Deadlines
come from outside, as cancellations. Nothing is retried, limited or cached here. Nothing is shown that may be secret:
credentials in a URL, the values of its query, headers, parameters.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from asyncio_operator import ConfigurationError, Enricher, Retry
from asyncio_operator.enricher import (
    Found,
    as_schema,
    describe,
    duration,
    flag,
    function_name,
    named_options,
    one_of,
    positive_int,
    takes,
)
from asyncio_operator.services.secrets import Secrets
from enrichers.http.answers import Answers, Extract
from enrichers.http.budget_reports import Reports, Usage, readers
from enrichers.http.exchange import Exchange
from enrichers.http.headers import HEADERS, Fresh, HeaderFunction, check_headers, from_function
from enrichers.http.oauth2 import OAuth2
from enrichers.http.request_plan import Planner, Plans
from enrichers.http.session import Client
from enrichers.http.template import KEYS
from enrichers.names import Weigh, names_of, opened, optional_of, weigh_with

if TYPE_CHECKING:
    from asyncio_operator.enricher import StructType


METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
REDIRECTS = ("same_host", "any", "never")
EMPTY_KEYS = ("error", "miss")
_LOGIN = (
    "pass headers={'Authorization': ...}, a function that returns headers, headers=OAuth2(...) for tokens of a token "
    "service, or the user and password in the URL"
)
_TLS = "ssl= takes a file of authorities, or a function that returns an SSLContext, also with a client certificate"

ELSEWHERE = {
    **dict.fromkeys(
        ("timeout", "timeouts", "total_timeout", "read_timeout"),
        "the time of a lookup is timeout= of enrich or Lookup, and connect_timeout= limits only making a connection",
    ),
    **dict.fromkeys(("auth", "token", "bearer", "api_key", "username", "password", "oauth2"), _LOGIN),
    **dict.fromkeys(("json", "data", "body", "content"), "the body is json_body=, a JSON value with {key} in it"),
    **dict.fromkeys(("query", "query_params"), "parameters of the query are params="),
    **dict.fromkeys(("verify", "cert", "ssl_context", "verify_ssl"), _TLS),
    **dict.fromkeys(("proxy", "proxies"), "with trust_env=True the proxies of the environment are used"),
    **dict.fromkeys(("allow_redirects", "follow_redirects"), 'redirects= is "same_host", "any" or "never"'),
    **dict.fromkeys(
        ("retry", "retries", "max_retries", "rate_limit", "budget", "cache", "capacity", "circuit_breaker", "hedge"),
        "it is an option of enrich and Lookup",
    ),
    **dict.fromkeys(("cookies",), "pass headers={'Cookie': ...}"),
}
"""Options of other HTTP clients, and of `enrich`, with what belongs where."""

BATCH = 100
"""The default number of keys in a request: this many short keys fit into a URL, and most services accept such lists."""

Headers = Mapping[str, str] | HeaderFunction | OAuth2 | None

RETRY = Retry(3, on="retryable")
"""What is repeated unless the caller says otherwise: 429, 503 and the like, and lost connections. Most of them pass."""


class HttpEnricher(Enricher):
    """Rows from an HTTP service that answers in JSON.

    In `url`, `params`, `headers` and `json_body`, ``{key}`` is replaced by the key, escaped as its place requires. With
    ``key=("origin", "hour")`` the parts are ``{origin}`` and ``{hour}``. In JSON, a string that is only ``"{key}"`` is
    replaced by the key with its own type. Any other brace stays, and ``{{key}}`` is the text ``{key}``.

    Args:
        url: ``https://host/airports/{key}``. The path and the query may contain parts of the key.
        schema: the columns that a found row adds, as a `pyarrow.Schema`, a Spark DDL string or a `StructType`.
        key: the name, or the names, of the parts of the key; "key" by default.
        optional: the parts of a key of several parts that may be null. A null in them is no miss. In JSON it is sent as
            null. A parameter, a header and a segment of the path with it are left out.
        method: GET, POST, PUT, PATCH or DELETE.
        headers: a mapping; or, for tokens that expire, an `OAuth2` or a function that returns a mapping. The function
            may be ``async``. It is called before the first request, after `headers_max_age`, and once more after a 401.
        params: parameters for the query: text, numbers, booleans, or lists of these.
        json_body: a JSON value that is sent as the body.
        extract: where the row is in the answer: a dotted path, or a function from the parsed answer to a row, a list of
            rows, or None. In the answer to a batch it is applied to the entry of each key. An object with fields, but
            with none of the columns, is an error; an empty object is a row of nulls.
        missing_statuses: statuses that mean that there is no such row.
        empty_key: with "miss", a key that is an empty text, or has an empty text in a part, is a miss without a
            request. With "error" it is sent, or is an error if the path has no place for it.
        coerce: whether a column of strings accepts numbers, as the answer writes them, and a column of integers accepts
            ``1e18``, also inside of arrays, maps and structs. By default nothing is converted.
        batch_url: the URL for several keys. ``{keys}`` is replaced by the list of keys, each escaped, joined by commas.
            The answer is an object by key, or a list of the same length; any other form is an error of the whole batch.
        batch_json_body: the body for several keys. ``"{keys}"`` is replaced by the list of keys, which are objects if
            the key has several parts. The body is sent by POST if `method` is GET.
        batch_extract: where the entries are in the answer to a batch; a path or a function.
        max_batch: the maximum number of keys in one request; 100 by default if there is a `batch_url`.
        max_response_bytes: the maximum size of an answer in bytes, after decompression; 10 MB by default, for one row.
        max_header_bytes: the maximum size of one header of an answer, and of its first line; 8,190 bytes by default, as
            most servers limit theirs.
        max_url_length: the maximum length of a URL in characters; RFC 9110 says that 8,000 are accepted everywhere. A
            batch with a longer URL is split.
        per_host: the maximum number of connections to one host; by default as many as there are calls.
        connect_timeout: seconds, or a timedelta, for making a connection. The caller limits the time of a lookup.
        headers_max_age: seconds after which a function for headers is called again; 300 by default, because hardly any
            token expires earlier.
        idempotency_header: the name of a header, such as ``Idempotency-Key``, which gets the same value each time the
            same request is sent, or the same row by `send`. So a service can tell a retry from another request. It is
            not sent with GET.
        idempotent: whether a request may be sent twice for one answer, as `hedge` does; True by default, because a
            lookup changes nothing. False refuses `hedge`.
        redirects: "same_host" follows redirects within the host. "any" also follows them to other hosts, without
            credentials and never from https to http. "never" makes them errors.
        ssl: a file of the authorities to trust instead of the system's, or a function that returns an `ssl.SSLContext`,
            called in the worker.
        trust_env: whether the proxies of the environment are used.
        weigh: under a budget: a function of the list of keys of a request, which returns what the request is likely to
            weigh, such as ``{"tokens": 1300}``. It gets an empty list for the least that any request weighs.
        usage: where an answer says what it really weighed: a dotted path into the parsed answer for each unit, such as
            ``{"tokens": "usage.total_tokens"}``, or a function of it. It replaces the estimate of `weigh`. An answer
            to a batch reports for all of its keys.
        hints: whether the headers of answers that speak of limits (``Retry-After``, ``x-ratelimit-*``, ``RateLimit``
            and others) slow down all tasks of the budget.

    Raises:
        ConfigurationError: an argument has the wrong type or value.
    """

    default_retry = RETRY
    _runtime: tuple[str, ...] = ("_plans", "_exchange")
    _exchange_type, _reserved = Exchange, KEYS
    _exchange: Exchange | None = None
    """What asks the service, while it is open."""

    @named_options("HttpEnricher", ELSEWHERE)
    def __init__(
        self,
        url: str,
        *,
        schema: pa.Schema | str | StructType,
        key: str | Sequence[str] = "key",
        optional: str | Sequence[str] = (),
        method: str = "GET",
        headers: Headers = None,
        params: Mapping[str, Any] | None = None,
        json_body: Any = None,
        extract: Extract = None,
        missing_statuses: Collection[int] = (404,),
        empty_key: Literal["error", "miss"] = "error",
        coerce: bool = False,
        batch_url: str | None = None,
        batch_json_body: Any = None,
        batch_extract: Extract = None,
        max_batch: int | None = None,
        max_response_bytes: int = 10_000_000,
        max_header_bytes: int = 8_190,
        max_url_length: int = 8_000,
        per_host: int | None = None,
        connect_timeout: float | timedelta = 10.0,
        headers_max_age: float | timedelta = 300.0,
        idempotency_header: str | None = None,
        idempotent: bool = True,
        redirects: Literal["same_host", "any", "never"] = "same_host",
        ssl: str | os.PathLike[str] | Callable[[], SSLContext] | None = None,
        trust_env: bool = False,
        weigh: Weigh | None = None,
        usage: Usage | None = None,
        hints: bool = True,
    ) -> None:
        self._url = url
        self._schema = as_schema(schema)
        self._parts = names_of("key", key, words=True, reserved=self._reserved)
        self.optional_keys = optional_of(optional, self._parts)
        self._method = one_of("method", method.upper() if isinstance(method, str) else method, METHODS)
        if not (headers is None or isinstance(headers, OAuth2)):
            HEADERS.check_source(headers)
            headers = headers if callable(headers) else dict(headers)
        self._headers = headers
        self._params, self._json_body = copy.deepcopy(params), copy.deepcopy(json_body)
        self._extract = extract
        self._missing_statuses = _statuses(missing_statuses)
        self._empty_key = one_of("empty_key", empty_key, EMPTY_KEYS)
        self._coerce = flag("coerce", coerce)
        self._batch_url = batch_url
        self._batch_json_body = copy.deepcopy(batch_json_body)
        self._batch_extract = batch_extract
        self._max_response_bytes = positive_int("max_response_bytes", max_response_bytes)
        self._max_header_bytes = positive_int("max_header_bytes", max_header_bytes)
        self._max_url_length = positive_int("max_url_length", max_url_length)
        self._per_host = None if per_host is None else positive_int("per_host", per_host)
        self._connect_timeout = duration("connect_timeout", connect_timeout)
        self._headers_max_age = duration("headers_max_age", headers_max_age)
        self._idempotency_header = idempotency_header
        self.idempotent = flag("idempotent", idempotent) and self.idempotent
        self._redirects = one_of("redirects", redirects, REDIRECTS)
        self._tls = os.fspath(ssl) if isinstance(ssl, str | os.PathLike) else ssl
        self._trust_env = flag("trust_env", trust_env)
        weigh_with(self, weigh)
        self._hints = flag("hints", hints)
        batch = 1 if batch_url is None else BATCH
        self.max_batch = batch if max_batch is None else positive_int("max_batch", max_batch)
        if self.max_batch > 1 and batch_url is None:
            raise ConfigurationError(f"max_batch is {max_batch}, but there is no batch_url for requests with many keys")
        self._check(usage)
        self._plans: Plans | None = self._make_plans()

    @property
    def max_calls(self) -> int | None:  # type: ignore[override]
        """One request is on a connection at a time; None without `per_host`."""
        return self._per_host

    def schema(self) -> pa.Schema:
        """The columns that a found row adds."""
        return self._schema

    def key_schema(self) -> pa.Schema:
        """The names of the parts of a key. Any type that can be written is accepted. Without a body the parts are sent
        as text, and the metadata say so."""
        sent_as = {"sent_as": "text"} if self._json_body is None else None
        return pa.schema([pa.field(name, pa.null(), metadata=sent_as) for name in self._parts])

    def check_keys(self, keys: pa.Schema) -> None:
        """Refuse bytes, which have no form as text.

        Raises:
            ConfigurationError: a column has bytes.
        """
        for column in keys:
            if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
                raise ConfigurationError(
                    f"key column {column.name!r} is binary, which has no form as text for {self!r}: make it a string "
                    f"first, with F.base64, F.hex or F.decode({column.name!r}, 'UTF-8'), as the service expects it"
                )

    async def open(self) -> None:
        """Make the session. It connects on the first lookup.

        Raises:
            ConfigurationError: the file or function of `ssl` does not exist or is not usable in this process.
        """
        await HttpEnricher.close(self)  # Of an earlier call of `open`.
        self._plans = self._plans or self._make_plans()
        client = Client(
            per_host=self._per_host,
            connect_timeout=self._connect_timeout,
            max_response_bytes=self._max_response_bytes,
            max_header_bytes=self._max_header_bytes,
            redirects=self._redirects,
            trust_env=self._trust_env,
            tls=self._tls,
        )
        exchange = self._exchange_type(
            self._subject(),
            self._parts,
            self._plans,
            self._answers(self._plans.secrets),
            client,
            missing_statuses=self._missing_statuses,
            optional=self.optional_keys,
            empty_is_missing=self._empty_key == "miss",
            ask_headers=self._ask_headers(client),
            headers_max_age=self._headers_max_age,
            reports=self._reports(self._plans.secrets),
        )
        await exchange.open()
        self._exchange = exchange

    def call_attributes(self) -> dict[str, str | int]:
        """With OpenTelemetry: the method, the server and the path of requests."""
        return opened(self._exchange, self).attributes(self._method)

    async def close(self) -> None:
        """Close the connections, within seconds. It does nothing if nothing is open."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            await exchange.close()

    async def lookup(self, key: Any) -> Found:
        """The row of a key, a list of its rows, or None.

        Raises:
            EnricherError: the key cannot be sent, the service cannot be reached, or its answer is invalid.
                `retryable`, `retry_after`, `overload` and `any_key` say what is known about the error.
        """
        return await opened(self._exchange, self).lookup(key)

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        """The answers, aligned with the keys; one request if there is a `batch_url`. It raises as `lookup` does."""
        exchange = opened(self._exchange, self)
        batch = self._plans.batch if self._plans is not None else None
        return await (super().lookup_many(keys) if batch is None else exchange.lookup_many(keys, batch))

    async def send(self, key: Any, row_id: str) -> None:
        """Send the request of a row, with an idempotency key of its own. Any status of class 2xx acknowledges it."""
        await opened(self._exchange, self).send(key, row_id)

    def _ask_headers(self, client: Client) -> Callable[[], Awaitable[Fresh]] | None:
        """What gives headers that expire; None if they are fixed."""
        if isinstance(self._headers, OAuth2):
            return partial(self._headers.fresh, client)
        return partial(from_function, self._headers) if callable(self._headers) else None

    def _check(self, usage: Usage | None) -> None:
        """Check arguments that are used only later."""
        self._answers(Secrets())
        self._usage: Usage = dict(usage) if usage is not None and readers(usage) else {}
        if self._batch_url is None and (self._batch_json_body is not None or self._batch_extract is not None):
            raise ConfigurationError("batch_json_body and batch_extract are for requests to a batch_url; pass one")
        if self._tls is not None and not isinstance(self._tls, str) and not callable(self._tls):
            raise ConfigurationError(
                f"ssl is {describe(self._tls)}; it must be the name of a file, or a function that returns an "
                "SSLContext: a context itself cannot be sent to a worker"
            )
        if callable(self._tls):
            takes("ssl", self._tls)
        if self._idempotency_header is not None:
            if not isinstance(self._idempotency_header, str):
                raise ConfigurationError(
                    f"idempotency_header is {describe(self._idempotency_header)}; it must be the name of a header"
                )
            check_headers({self._idempotency_header: ""}, "idempotency_header")
            names = self._headers if isinstance(self._headers, Mapping) else ()
            if self._idempotency_header.lower() in {name.lower() for name in names}:
                raise ConfigurationError(
                    f"headers already contain {self._idempotency_header}; leave idempotency_header out"
                )
            if self._method == "GET" and self._batch_json_body is None:
                raise ConfigurationError("idempotency_header is for methods that change something; method is 'GET'")

    def _answers(self, secrets: Secrets) -> Answers:
        return Answers(self._schema, self._extract, self._batch_extract, secrets.show, coerce=self._coerce)

    def _reports(self, secrets: Secrets) -> Reports:
        return Reports(self._subject(), self._usage, self._hints, secrets)

    def _make_plans(self) -> Plans:
        return Planner(
            url=self._url,
            parts=self._parts,
            optional=self.optional_keys,
            method=self._method,
            params=self._params,
            headers=self._headers,
            json_body=self._json_body,
            batch_url=self._batch_url,
            batch_json_body=self._batch_json_body,
            idempotency_header=self._idempotency_header,
            max_url_length=self._max_url_length,
        ).plans()

    def _subject(self) -> str:
        plans = self._plans = self._plans or self._make_plans()
        return f"{type(self).__qualname__}({plans.shown})"

    def __getstate__(self) -> dict[str, Any]:
        # The plans are made again in the worker, so that no secret is pickled twice.
        return {**self.__dict__, **dict.fromkeys(self._runtime)}

    def _arguments(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._runtime}

    def __eq__(self, other: object) -> bool:
        return self._arguments() == other._arguments() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash((self._url, self._method, self._parts, tuple(self._schema.names)))

    def __repr__(self) -> str:
        method = "" if self._method == "GET" else f", {self._method}"
        headers = ""
        if self._headers is not None and not isinstance(self._headers, Mapping):
            shown = function_name(self._headers) if callable(self._headers) else repr(self._headers)
            headers = f", headers={shown}"
        return f"{self._subject()[:-1]}{method}, key={[*self._parts]!r}{headers})"


def _statuses(statuses: object) -> tuple[int, ...]:
    given = tuple(statuses) if isinstance(statuses, Collection) and not isinstance(statuses, str) else (statuses,)
    if not all(isinstance(status, int) and not isinstance(status, bool) and 200 <= status < 600 for status in given):
        raise ConfigurationError(f"missing_statuses is {describe(statuses)}; it must be a list of HTTP statuses")
    return tuple(sorted({*given}))
