"""A lookup from the key to its row, in one worker: the request, the answer, and the words of an error.

Every failure becomes an `EnricherError` that names the enricher, the key and the cause. The only retry is one that the
protocol asks for: after 401 the headers are requested again, and the request is sent once more.

If the answer to a batch has an unknown form, no key is to blame, and the whole batch fails (`any_key`). If one key may
be to blame, the caller splits the batch, which finds the right rows with many more requests. That is logged the first
time in a worker, because the cause may be the configuration after all.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from asyncio_operator import EnricherError, ResultError
from asyncio_operator.enricher import Found, annotate, billed, keep_verdict, verdict
from asyncio_operator.services.secrets import of_header
from enrichers.http.answers import Answers, UnreadableError, WrongRowError
from enrichers.http.budget_reports import Heard, Reports
from enrichers.http.error_bodies import lasting_refusal
from enrichers.http.errors import failure, status_error
from enrichers.http.headers import Fresh, HeaderSource
from enrichers.http.keys import UnsendableError, text_of
from enrichers.http.redirects import RefusedError
from enrichers.http.request_plan import Plan, Plans, Request
from enrichers.http.session import Answer, Client
from enrichers.http.url_parts import without_values
from enrichers.names import shown_keys
from enrichers.span_attributes import server

T = TypeVar("T")

logger = logging.getLogger("asyncio_operator.http")


class Exchange:
    """What `HttpEnricher` opens in a worker.

    Args:
        subject: names the enricher in messages.
        parts: the names of the parts of a key.
        missing_statuses: the statuses that mean that there is no such row.
        optional: the parts that may be null.
        empty_is_missing: whether a key with an empty text in it is a miss without a request.
        ask_headers: gives more headers, see `HeaderSource`; None: there are none.
        headers_max_age: seconds after which it is called again, if it does not say it.
        reports: pass on what answers say to the budget of the lookup.
    """

    def __init__(
        self,
        subject: str,
        parts: Sequence[str],
        plans: Plans,
        answers: Answers,
        client: Client,
        *,
        missing_statuses: Collection[int],
        optional: Collection[str],
        empty_is_missing: bool,
        ask_headers: Callable[[], Awaitable[Fresh]] | None,
        headers_max_age: float,
        reports: Reports,
    ) -> None:
        self._subject = subject
        self._parts = parts
        self._plans = plans
        self._answers = answers
        self._client = client
        self._missing = missing_statuses
        self._required = [i for i, name in enumerate(parts) if name not in optional]
        self._empty_is_missing = empty_is_missing
        self._split_logged = False
        self._reports = reports
        self._source = None
        if ask_headers is not None:
            self._source = HeaderSource(ask_headers, headers_max_age, self._keep_secret)

    async def open(self) -> None:
        """Open the client."""
        await self._client.open()

    async def close(self) -> None:
        """Close the client."""
        if self._source is not None:
            self._source.close()
        await self._client.close()

    def attributes(self, method: str) -> dict[str, str | int]:
        """What all spans of requests have in common."""
        shown = self._plans.shown
        return {"http.request.method": method, "url.template": urlsplit(shown).path, **server(shown)}

    async def lookup(self, key: Any) -> Found:
        """The row or rows of one key, or None."""
        values, keys = self._values(key), (key,)
        if values is None:
            billed(False)
            return None
        heard = await self._ask(self._request(self._plans.single, values, keys), keys)
        answer = heard.answer
        if answer.status in self._missing:
            return None
        if not 200 <= answer.status < 300:
            raise self._refusal(heard, keys)
        return self._read(keys, lambda: self._answers.found(self._parsed(answer, keys)))

    async def send(self, key: Any, row_id: str) -> None:
        """Send the request of a row. Of its answer only the status counts, and what it says for a budget."""
        values, keys = self._values(key), (key,)
        if values is None:
            raise EnricherError(f"{self._about(keys)}: a part of it is empty", retryable=False, billed=False)
        request = self._request(self._plans.single, values, keys, row_id)
        heard = await self._ask(request._replace(is_sent=True), keys)
        if not 200 <= heard.answer.status < 300:
            raise self._refusal(heard, keys)
        with contextlib.suppress(UnreadableError):
            self._parsed(heard.answer, keys)

    async def lookup_many(self, keys: Sequence[Any], plan: Plan) -> Sequence[Found]:
        """The rows of several keys, with one request."""
        values = [self._values(key) for key in keys]
        asked = [i for i, value in enumerate(values) if value is not None]
        found: list[Found] = [None] * len(keys)
        if not asked:
            billed(False)
            return found
        # One key takes the single request, whose status may say that there is no such row.
        if len(asked) == 1 and self._goes_alone(values[asked[0]]):
            found[asked[0]] = await self.lookup(keys[asked[0]])
            return found
        several = [keys[i] for i in asked]
        listed = several if len(self._parts) == 1 else [dict(zip(self._parts, key, strict=True)) for key in several]
        request = self._request(plan, (listed,), several)
        try:
            entries = await self._entries(request, several)
        except EnricherError as error:
            if len(several) > 1:
                self._log_split(error)
            raise
        for i, entry in zip(asked, entries, strict=True):
            if entry is not None:
                found[i] = self._read((keys[i],), partial(self._answers.found, entry))
        return found

    async def _entries(self, request: Request, keys: Sequence[Any]) -> Sequence[Any]:
        """The entries of the answer to a batch, aligned with its keys."""
        heard = await self._ask(request, keys)
        answer = heard.answer
        if not 200 <= answer.status < 300:
            # A missing status too: it may mean that the path is wrong. Single lookups then tell which it is.
            raise self._refusal(heard, keys)
        texts = [text_of(key) if len(self._parts) == 1 else None for key in keys]
        return self._read(keys, lambda: self._answers.entries(self._parsed(answer, keys), texts))

    def _log_split(self, error: EnricherError) -> None:
        """Log, once, that a batch failed with an error that makes the caller split it."""
        if self._split_logged or error.any_key or error.retryable or error.retry_after is not None:
            return
        self._split_logged = True
        logger.warning(
            "%s. One of these keys may be to blame, so they can be asked for again in smaller batches, and in the end "
            "one by one. If this happens to every batch, lookups are slow: correct batch_url, batch_json_body or "
            "batch_extract, or leave batch_url out. This is logged once",
            error,
        )

    # -- the request

    def _values(self, key: Any) -> Sequence[Any] | None:
        """The parts of a key; None for a key that is a miss without a request."""
        if len(self._parts) == 1:
            return None if key is None or (self._empty_is_missing and key == "") else (key,)
        if not isinstance(key, tuple) or len(key) != len(self._parts):
            raise EnricherError(
                f"{self._about((key,))}: a key is a tuple of {len(self._parts)} parts, {', '.join(self._parts)}",
                retryable=False,
                billed=False,
            )
        return None if any(key[i] is None for i in self._required) or (self._empty_is_missing and "" in key) else key

    def _goes_alone(self, values: Any) -> bool:
        """Whether a key can be sent alone. A key that the path cannot contain may still be sent in a list."""
        with contextlib.suppress(UnsendableError):
            return bool(self._plans.single.request(values))
        return False

    def _request(self, plan: Plan, values: Sequence[Any], keys: Sequence[Any], row_id: str = "") -> Request:
        try:
            return plan.request(values, row_id)
        except UnsendableError as error:
            remedy = '; empty_key="miss" makes an empty key a miss' if "" in values else ""
            problem = f"{self._about(keys)}: it cannot be sent: {error}{remedy}"
        raise EnricherError(problem, retryable=False, billed=False)

    async def _ask(self, request: Request, keys: Sequence[Any]) -> Heard:
        """The answer, whatever its status, and what it says about limits."""
        annotate(lambda: {"http.request.method": request.method, "url.full": self._public(request.url)})
        answer = await self._asked(request, keys)
        if isinstance(answer, EnricherError):
            raise answer
        annotate(lambda: {"http.response.status_code": answer.status})
        return self._reports.heard(answer)

    def _public(self, url: str) -> str:
        """A URL for a span: the values of its query may be secret, and so may parts of its path."""
        address, mark, query = url.partition("?")
        return self._plans.secrets.hide(address) + (f"?{without_values(query, 'REDACTED')}" if mark else "")

    async def _asked(self, request: Request, keys: Sequence[Any]) -> Answer | EnricherError:
        """The answer, or its error. An error raised here would show variables with headers in its traceback."""
        try:
            if self._source is None:
                return await self._client.fetch(request, request.headers)
            extra = await self._source.get()
            answer = await self._client.fetch(request, _merged(request.headers, extra))
            if answer.status == 401:
                newer = await self._source.get(refused=extra)
                # The same headers would be refused again.
                if newer != extra:
                    answer = await self._client.fetch(request, _merged(request.headers, newer))
            return answer
        except RefusedError as error:
            if (status := error.status) is not None:
                annotate(lambda: {"http.response.status_code": status})
            text = f"{self._about(keys)}: {self._plans.secrets.hide(str(error))}"
            problem = EnricherError(text, retryable=error.retryable)
        except EnricherError as error:
            # No headers: the request was not sent, or was refused without them.
            problem = EnricherError(f"{self._subject}: {error}", **(verdict(error) | {"billed": False}))
            problem.__cause__ = error.__cause__
        except Exception as error:
            problem = failure(error, self._about(keys), self._plans.secrets)
        return problem

    # -- the answer

    def _refusal(self, heard: Heard, keys: Sequence[Any]) -> EnricherError:
        """The error for an answer whose status is not a success."""
        status, body = heard.answer.status, heard.answer.body
        return status_error(
            self._about(keys),
            status,
            body,
            self._plans.secrets,
            wait=heard.hints.wait,
            lasting=lasting_refusal(status, body, heard.error),
            target=heard.answer.forbidden,
        )

    def _parsed(self, answer: Answer, keys: Sequence[Any]) -> Any:
        try:
            parsed = self._answers.parse(answer.body, answer.headers.get("Content-Type", ""))
            self._reports.used(parsed, keys)
            return parsed
        except UnreadableError as error:
            # With a known length the answer is whole, and another attempt would bring the same.
            if answer.is_framed:
                raise
            problem = f"{error}. The service did not say how long its answer is, so it may have been cut off"
        raise UnreadableError(problem, retryable=True)

    def _read(self, keys: Sequence[Any], read: Callable[[], T]) -> T:
        """The result of `read`. An error in it becomes an error of these keys."""
        secrets = self._plans.secrets
        try:
            return read()
        except (UnreadableError, EnricherError) as error:
            # An EnricherError is that of a function passed as extract, whose text may be that of the service.
            if isinstance(error, EnricherError) and not secrets.shown_by(error):
                raise
            kind = ResultError if isinstance(error, WrongRowError | ResultError) else EnricherError
            problem = keep_verdict(kind(f"{self._about(keys)}: {secrets.hide(str(error))}"), error)
            # A parser's error may show the answer, and a service may repeat a request header in its answer.
            if isinstance(error, UnreadableError) and not secrets.shown_by(error.__cause__):
                problem.__cause__ = error.__cause__
        # Outside of the handlers: otherwise the other error, with its secrets, would be the context of this one.
        raise problem

    def _about(self, keys: Sequence[Any]) -> str:
        return f"{self._subject}, {shown_keys(keys)}"

    def _keep_secret(self, headers: Mapping[str, str]) -> None:
        self._plans.secrets.renew([text for name, value in headers.items() for text in of_header(name, value)])


def _merged(headers: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """The headers and more headers, which replace those with the same name."""
    names = {name.lower() for name in more}
    return {**{name: value for name, value in headers.items() if name.lower() not in names}, **more}
