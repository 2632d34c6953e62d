"""What `ModelEnricher` and `EmbeddingEnricher` have in common: the address, the API key, and what a request weighs.

The address is OpenAI's, or that of any service that speaks the same: the path of the endpoint is added to it. A key
travels as ``Authorization: Bearer``, and to deployments of Azure as ``api-key``. All else is `HttpEnricher`'s.

Law: no message, plan, `repr`, span or log shows the API key, the system text or the prompt (M4). Rows are named in
messages as everywhere. Errors of several rows, which are also logged, name none.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from asyncio_operator import ConfigurationError, EnricherError
from asyncio_operator.enricher import StructType, describe, settle
from asyncio_operator.services.secret_source import SecretSource, checked_text
from asyncio_operator.services.secrets import Secrets, of_header
from enrichers.http.budget_reports import Heard, Reports
from enrichers.http.enricher import HttpEnricher
from enrichers.http.exchange import Exchange
from enrichers.http.headers import Fresh, asked
from enrichers.http.keys import UnsendableError, text_of
from enrichers.http.request_plan import Plan, Plans
from enrichers.http.session import Client
from enrichers.http.template import Names, Piece
from enrichers.http.url_parts import path_pieces, query_pieces, read_url, shown_url
from enrichers.models.tokens import Estimates, Price, checked_price, tokens_in
from enrichers.names import is_utf8

OPENAI = "https://api.openai.com/v1"

AZURE = re.compile(r"/openai/deployments/", re.IGNORECASE)

ApiKey = str | Callable[[], str | Awaitable[str]] | None

NOT_HERE = {
    **dict.fromkeys(("timeout", "timeouts"), "the time of a lookup is timeout= of enrich or Lookup"),
    **dict.fromkeys(
        ("retry", "retries", "max_retries", "rate_limit", "budget", "cache", "capacity", "circuit_breaker", "hedge"),
        "it is an option of enrich and Lookup",
    ),
    **dict.fromkeys(("key", "columns"), "the columns are named in braces in prompt="),
    **dict.fromkeys(("messages", "instructions", "system_prompt"), "pass system= and prompt="),
    **dict.fromkeys(("response_format", "output", "response_model"), "it is made of schema="),
    **dict.fromkeys(("token", "bearer"), "pass api_key="),
    **dict.fromkeys(("weigh", "usage"), "tokens are weighed and settled without it, and dollars with price="),
    **dict.fromkeys(("top_p", "seed", "max_completion_tokens", "reasoning_effort"), "pass it in extra="),
    **dict.fromkeys(("url", "endpoint", "azure_endpoint"), "pass base_url="),
    **dict.fromkeys(("headers", "params"), "use HttpEnricher for a request of your own"),
}
"""Options that other clients have, with what belongs where."""

LARGEST_ANSWER = 10_000_000
"""Bytes, as `HttpEnricher` allows."""

RUN = 12
"""Letters in a row that betray a text. Few messages of a service share as many with a prompt by chance."""

_LETTER = re.compile(r"\\u([0-9a-fA-F]{4})|\\.|(\w)", re.DOTALL)


def _problem_of_key(text: str) -> str | None:
    if not text:
        return "it is empty"
    good = text.isascii() and text.isprintable() and text == text.strip()
    return None if good else "it must be printable ASCII, without line breaks or blanks at its ends"


API_KEY = SecretSource[str](
    "api_key", "API key", lambda given: checked_text("api_key", given, _problem_of_key), may_await=True
)


class ReadRow(dict[str, Any]):
    """A row of an answer to several keys, whose columns are read already."""


class _Exchange(Exchange):
    """Lookups of texts, which only the message of their own error shows."""

    def _about(self, keys: Sequence[Any]) -> str:
        return super()._about(keys) if len(keys) == 1 else f"{self._subject}, {len(keys)} texts"

    def _refusal(self, heard: Heard, keys: Sequence[Any]) -> EnricherError:
        error = super()._refusal(heard, keys)
        if len(keys) > 1 and not error.retryable and not error.any_key:
            # The caller divides the texts, and logs this: the service may have repeated some. Alone they say more.
            error = super()._refusal(heard._replace(answer=heard.answer._replace(body=b"")), keys)
        # A text cannot be the reason that there is no such path or model.
        error.any_key |= heard.answer.status == 404
        return error


class _Reports(Reports):
    """Settles the tokens and the dollars of answers, and learns from them."""

    def __init__(self, enricher: ModelEndpoint, subject: str, secrets: Secrets) -> None:
        super().__init__(subject, {}, True, secrets)
        self._enricher = enricher

    def used(self, parsed: Any, keys: Sequence[Any], required: bool = True) -> None:
        """See `Reports.used`."""
        tokens = tokens_in(parsed)
        if tokens is not None:
            settle(tokens.weights(self._enricher.price))
            if keys:
                self._enricher.estimates.learn(self._enricher.length(keys), len(keys), tokens)
        elif required and settle({}):
            self._log("usage", "answers do not say how many tokens were used, and the estimate counts")


class ModelEndpoint(HttpEnricher):
    """A model behind an API.

    Args:
        model: its name.
        base_url: the address, to which the path of the endpoint is added.
        api_key: the key, or a function that returns it.
        price: dollars for a million tokens.
        schema: the columns of an answer.
        parts: the names of the columns that are sent.
    """

    _runtime = (*HttpEnricher._runtime, "_estimates")
    _exchange_type, _reserved = _Exchange, ""
    _path: ClassVar[str]
    _operation: ClassVar[str]
    _paid_answers: ClassVar[bool]

    def __init__(
        self,
        model: str,
        *,
        base_url: str,
        api_key: ApiKey,
        price: object,
        schema: pa.Schema | str | StructType,
        parts: Sequence[str],
        max_response_bytes: int = LARGEST_ANSWER,
    ) -> None:
        if not isinstance(model, str) or not model.strip() or not is_utf8(model):
            raise ConfigurationError(f"model is {describe(model)}; it must be the name of a model")
        if api_key is not None:
            API_KEY.check_source(api_key)
        self._model = model
        self._api_key = api_key
        self.price: Price | None = checked_price(price, answers=self._paid_answers)
        self._estimates: Estimates | None = None
        super().__init__(
            base_url,
            schema=schema,
            key=parts,
            method="POST",
            missing_statuses=(),
            max_response_bytes=max_response_bytes,
        )

    def weigh(self, keys: Sequence[Any]) -> dict[str, float]:
        """The tokens that a request for these keys is likely to have and, with a price, the dollars."""
        tokens = self.estimates.estimate(self.length(keys), len(keys)) if len(keys) else self.estimates.least()
        return tokens.weights(self.price)

    @property
    def estimates(self) -> Estimates:
        """What this worker has learned."""
        if self._estimates is None:
            self._estimates = Estimates(self._unknown_answer())
        return self._estimates

    def length(self, keys: Sequence[Any]) -> int:
        """The characters that a request for these keys sends to the model."""
        raise NotImplementedError

    def call_attributes(self) -> dict[str, str | int]:
        """With OpenTelemetry: what HTTP requests have, the operation and the model."""
        return super().call_attributes() | {
            "gen_ai.operation.name": self._operation,
            "gen_ai.request.model": self._model,
        }

    def journal_identity(self) -> str | None:
        """The model, and hashes of all that is sent with a row."""
        shown = [f"{name}=#{_hash(value)}" for name, value in self._sent().items() if value is not None]
        return f"{type(self).__module__}.{type(self).__qualname__}({', '.join([f'model={self._model!r}', *shown])})"

    def _sent(self) -> Mapping[str, object]:
        """What a request has beside the model and the row, by the names of the arguments."""
        raise NotImplementedError

    def _prose(self) -> Sequence[str]:
        """Texts of which nothing is shown."""
        return ()

    def _unknown_answer(self) -> float:
        """The tokens of an answer, before one has come."""
        return 0

    def _bodies(self) -> tuple[list[Piece], list[Piece] | None]:
        """The body for a key, and for several."""
        raise NotImplementedError

    def _make_plans(self) -> Plans:
        place = read_url(self._url, "base_url")
        if "{" in self._url:
            raise ConfigurationError("base_url has a brace; write the names that belong there, such as the deployment")
        place = place._replace(path=f"{place.path.rstrip('/')}/{self._path}")
        secrets = ProseSecrets(self._prose())
        names = Names((), one=False, many=False)
        url: list[Piece] = [place.origin, *path_pieces(names, place.path, "base_url", set())]
        if place.query:
            url += ["?", *query_pieces(names, place.query, "base_url", set(), secrets)]
        fixed = {"Content-Type": "application/json"}
        if place.authorization is not None:
            if self._api_key is not None:
                raise ConfigurationError("base_url contains a user, and api_key is given; pass one")
            secrets.add([place.password, *of_header("Authorization", place.authorization)])
            fixed["Authorization"] = place.authorization
        if isinstance(self._api_key, str):
            secrets.add([self._api_key])
            fixed |= self._with_key(self._api_key)
        headers = {name: (value,) for name, value in fixed.items()}
        one, many = self._bodies()
        most = self._max_url_length
        plan = partial(Plan, "POST", url, headers, idempotency_header=None, max_url_length=most, optional={})
        return Plans(plan(one), None if many is None else plan(many), secrets, shown_url(place))

    def _with_key(self, api_key: str) -> dict[str, str]:
        return {"api-key": api_key} if AZURE.search(self._url) else {"Authorization": f"Bearer {api_key}"}

    def _ask_headers(self, client: Client) -> Callable[[], Awaitable[Fresh]] | None:
        return partial(self._fresh, self._api_key) if callable(self._api_key) else None

    async def _fresh(self, api_key: Callable[[], str | Awaitable[str]]) -> Fresh:
        return Fresh(self._with_key(await asked(API_KEY, api_key)), None)

    def _reports(self, secrets: Secrets) -> Reports:
        return _Reports(self, self._subject(), secrets)

    def _subject(self) -> str:
        plans = self._plans = self._plans or self._make_plans()
        return f"{type(self).__qualname__}({self._model!r}, {plans.shown})"

    def __repr__(self) -> str:
        return f"{self._subject()[:-1]}, key={[*self._parts]!r})"


def length_of(value: Any) -> int:
    """The characters of a value in a prompt."""
    try:
        return len(text_of(value))
    except UnsendableError:
        return 0  # It is not sent.


def _hash(value: object) -> str:
    return hashlib.sha256(repr(value).encode("utf-8", "surrogatepass")).hexdigest()[:16]


class ProseSecrets(Secrets):
    """Secrets, and texts of the user, such as a system text, of which no part is shown either.

    A service may repeat what it was sent: the whole request, the beginning of it, one line. So a text is hidden
    wherever `RUN` of its letters follow each other, whatever stands between them: spaces, line breaks, quotes, escapes
    of JSON. Shorter texts are hidden as a whole. Credentials are hidden as everywhere, see `Secrets`.

    Args:
        prose: the texts.
    """

    def __init__(self, prose: Iterable[str]) -> None:
        texts = [text.strip() for text in prose]
        super().__init__([text for text in texts if sum(map(str.isalnum, text)) > 2])
        self._runs = set()
        for text in texts:
            letters = "".join([letter for letter, _, _ in _letters(text)])
            self._runs |= {letters[i : i + RUN] for i in range(len(letters) - RUN + 1)}

    def hide(self, text: str) -> str:
        """The text without secrets, and without parts of the texts."""
        text = super().hide(text)
        found = _letters(text)
        letters = "".join([letter for letter, _, _ in found])
        spans: list[tuple[int, int]] = []
        for i in range(len(letters) - RUN + 1):
            if letters[i : i + RUN] in self._runs:
                start, end = found[i][1], found[i + RUN - 1][2]
                if spans and start <= spans[-1][1]:
                    start = spans.pop()[0]
                spans.append((start, end))
        for start, end in reversed(spans):
            text = f"{text[:start]}***{text[end:]}"
        return text


def _letters(text: str) -> list[tuple[str, int, int]]:
    """The letters and digits of a text in lower case, each with its beginning and end in the text."""
    found = []
    for match in _LETTER.finditer(text):
        letter = chr(int(match[1], 16)) if match[1] else match[2] or ""
        if letter.isalnum():
            found.append((letter.lower()[:1], match.start(), match.end()))
    return found
