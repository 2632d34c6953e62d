"""An HTTP service for tests: real sockets on the loopback interface, rows by key, and every kind of fault.

    async with FakeService({"JFK": {"city": "New York"}}, latency=0.05, errors={503: 0.1}) as service:
        ...  # GET {service.url}/rows/JFK
    with FakeService(...) as service: ...  # the same in synchronous code, on a thread; also `start()`, then `stop()`

| request | answer |
| --- | --- |
| ``GET /rows/KEY``, ``GET /rows/PART/PART`` | the row of a key, or of a composite key; 404 if there is no row |
| ``GET /rows?keys=KEY,KEY`` | an object of rows by key; with ``batch="list"`` a list, with null for a missing row |
| ``POST /rows`` with a JSON list of keys | the same |
| anything else | the result of `handler`, or 404 |

Faults are random, from a seed, or planned: `answer_next` sets the answers to the next requests, in order. `requests`
holds every request. Seconds are those of the loop on which the service runs, so on a `VirtualTimeLoop` latencies take
no time.
"""

from __future__ import annotations

import asyncio
import email.utils
import math
import random
import ssl
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote

from aiohttp import web

from asyncio_operator.checks import Duration, duration, flag, must_be, natural, number, one_of, plain_function, seconds
from asyncio_operator.errors import ConfigurationError, StateError, describe
from asyncio_operator.policies.rate_limit import RateLimit
from asyncio_operator.testing.fake_service.messages import FakeAnswer, FakeRequest, Headers, send
from asyncio_operator.testing.fake_service.window_limits import ExceededWindow, ServiceLimits, Weigh

if TYPE_CHECKING:
    from asyncio_operator.quota.spec import Limit

__all__ = ["ExceededWindow", "FakeAnswer", "FakeRequest", "FakeService", "Latency"]

Latency = Duration | Callable[[random.Random], float]

Handler = Callable[[FakeRequest], Any]


class FakeService:
    """An HTTP service on ``127.0.0.1``, as a context manager, both ``with`` and ``async with``.

    Args:
        rows: rows by key, as JSON values; a composite key is a tuple. The rows may be changed while the service runs.
        latency: seconds before each answer, or a function that draws them, as in ``lambda r: r.expovariate(20)``.
        errors: shares of requests that get a status instead of an answer: ``{503: 0.1}`` for one in ten.
        retry_after: seconds in the ``Retry-After`` header of 429 and 503; None for no header.
        retry_after_date: whether ``Retry-After`` is a date instead of a number.
        rate_limit: the maximum number of answers in any one second. Further requests get 429 with a ``Retry-After``.
        limits: more limits, each a `Limit` or a `RateLimit`, enforced over every window, wherever it begins.
        headers: "openai", "anthropic", "ietf" or "azure": how answers report the limits, and what a 429 looks like.
        weigh: what a request weighs besides one call: a function of the `FakeRequest` that returns amounts by unit, or
            a mapping from units to dotted paths into its JSON, such as ``{"tokens": "max_tokens"}``.
        usage: a mapping from units to dotted paths into answers, which say what the request really weighed.
        journey: seconds by which the journeys of two requests may differ. Windows are shorter by this.
        resets: share of requests whose connection is reset instead of an answer.
        truncated: share of answers whose body ends in the middle.
        slow: share of answers whose body is spread over `slow_for` seconds.
        garbage: share of answers whose body is not JSON.
        slow_for: seconds of a slow body.
        batch: "map" or "list": the form of an answer for several keys.
        token: what ``Authorization: Bearer`` must hold; otherwise 401. It may be changed while the service runs.
        handler: answers paths other than ``/rows``: it gets a `FakeRequest` and returns a `FakeAnswer`, any JSON
            value, or None for 404. It may be ``async``.
        seed: seed of everything that is drawn.
        ssl_context: the server's, for HTTPS.

    Raises:
        ConfigurationError: an argument has the wrong type or value.

    Attributes:
        requests: every request, in the order of arrival.
        most_at_once: the largest number of requests in progress at the same time.
        connections: the number of connections that were made.
        abandoned: the number of requests still in progress when their client closed the connection, or the service
            ended.
    """

    def __init__(
        self,
        rows: Mapping[Any, Any] | None = None,
        *,
        latency: Latency = 0.0,
        errors: Mapping[int, float] | None = None,
        retry_after: Duration | None = 1.0,
        retry_after_date: bool = False,
        rate_limit: int | None = None,
        limits: Sequence[Limit | RateLimit] | None = None,
        headers: str | None = None,
        weigh: Weigh | None = None,
        usage: Mapping[str, str] | None = None,
        journey: Duration = 0.0,
        resets: float = 0.0,
        truncated: float = 0.0,
        slow: float = 0.0,
        slow_for: Duration = 1.0,
        garbage: float = 0.0,
        batch: str = "map",
        token: str | None = None,
        handler: Handler | None = None,
        seed: int = 0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        rates = {"resets": resets, "truncated": truncated, "slow": slow, "garbage": garbage}
        _check_arguments(rows, latency, errors, rates, handler)
        self._shares: dict[Any, float] = {**(errors or {}), **rates}
        self._faults: dict[Any, FakeAnswer] = {
            "resets": FakeAnswer(reset=True),
            "truncated": FakeAnswer(truncated=True),
            "slow": FakeAnswer(slow=duration("slow_for", slow_for)),
            "garbage": FakeAnswer("<html>no JSON</html>", headers={"Content-Type": "text/html"}),
        }
        for status in errors or {}:
            self._faults[status] = FakeAnswer({"error": f"status {status}"}, status)
        self.rows = dict(rows or {})
        self.token = token
        self.requests: list[FakeRequest] = []
        self.most_at_once = 0
        self.connections = 0
        self.abandoned = 0
        self._latency = latency if callable(latency) else duration("latency", latency)
        self._retry_after = None if retry_after is None else duration("retry_after", retry_after)
        self._retry_after_date = flag("retry_after_date", retry_after_date)
        every = limits if rate_limit is None else [*(limits or ()), RateLimit(natural("rate_limit", rate_limit, 1))]
        self._limits = ServiceLimits(every, headers, weigh, usage, duration("journey", journey))
        self._batch = one_of("batch", batch, ("map", "list"))
        self._handler = handler
        self._random = random.Random(natural("seed", seed))
        self._ssl = ssl_context
        self._planned: deque[FakeAnswer] = deque()
        self._inside = 0
        self._known: set[web.RequestHandler] = set()
        self._started = 0.0
        self._port = 0
        self._exit: Any = None
        self._thread: threading.Thread | None = None
        self._serving = False
        self._stop: Callable[[], Any] = lambda: None

    # -- its life

    @property
    def url(self) -> str:
        """Its address, ``http://127.0.0.1:port``, without a slash at the end."""
        if not self._port:
            raise StateError("the service is not running; enter it with `with` or `async with` first")
        return f"{'https' if self._ssl else 'http'}://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        running = self._running()
        await running.__aenter__()
        self._exit = running
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._exit.__aexit__(*error)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Serve on a thread, as ``with`` does, until `stop`."""
        ready: Future[None] = Future()

        async def serve() -> None:
            stop, loop = asyncio.Event(), asyncio.get_running_loop()
            async with self._running():
                self._stop = lambda: loop.call_soon_threadsafe(stop.set)
                ready.set_result(None)
                await stop.wait()

        def run() -> None:
            try:
                asyncio.run(serve())
            except BaseException as error:
                if not ready.done():
                    ready.set_exception(error)

        thread = threading.Thread(target=run, name="fake-service", daemon=True)
        thread.start()
        ready.result()  # The thread cannot raise into this one.
        self._thread = thread
        return self

    def stop(self) -> None:
        """End what `start` began. Without it this does nothing."""
        if self._thread is not None:
            self._stop()
            self._thread.join()
            self._thread = None

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        if self._serving:
            raise StateError("the service is running already; stop it first, or make another FakeService")
        self._started = asyncio.get_running_loop().time()
        self._limits.restart()
        server = web.Server(self._serve, access_log=None, handler_cancellation=True)
        runner = web.ServerRunner(server, shutdown_timeout=0.01)
        await runner.setup()
        self._serving = True
        try:
            # A second run takes the port of the first again, so that clients find a service that comes back.
            site = web.TCPSite(runner, "127.0.0.1", self._port, ssl_context=self._ssl, reuse_address=True)
            await site.start()
            self._port = runner.addresses[0][1]
            yield
        finally:
            await runner.cleanup()
            self._serving = False

    # -- planned answers, and what was received

    def answer_next(self, *answers: FakeAnswer) -> None:
        """Set the answers to the next requests, one each. They go before the rows, the handler and random faults.

        Raises:
            ConfigurationError: an argument is not a `FakeAnswer`.
        """
        for answer in answers:
            if not isinstance(answer, FakeAnswer):
                raise ConfigurationError(
                    f"answers contains {describe(answer)}; each must be a FakeAnswer, such as FakeAnswer(status=503)"
                )
        self._planned.extend(answers)

    def paths(self) -> list[str]:
        """The escaped path and query of every request."""
        return [request.target for request in self.requests]

    def windows_exceeded(self) -> list[ExceededWindow]:
        """Every window of this run in which more was sent than a limit allows, refused requests included.

        They are in the order of their ends. Windows begin at any time; there is one for each request that was too much.
        """
        return self._limits.windows_exceeded()

    # -- a request

    async def _serve(self, incoming: web.BaseRequest) -> web.StreamResponse:
        # A request of a connection that is not yet known counts as a new connection.
        if incoming.transport is not None and incoming.protocol not in self._known:
            self._known = {known for known in self._known if known.transport is not None} | {incoming.protocol}
            self.connections += 1
        query = {name: incoming.query.getall(name) for name in incoming.query}
        headers = Headers({name.lower(): value for name, value in incoming.headers.items()})
        target = incoming.raw_path
        path = unquote(target.partition("?")[0], errors="surrogateescape")
        request = FakeRequest(incoming.method, target, path, query, headers, await incoming.read(), self._now())
        self.requests.append(request)
        self._limits.arrived(request)
        self._inside += 1
        self.most_at_once = max(self.most_at_once, self._inside)
        try:
            planned = self._planned.popleft() if self._planned else None
            refused = None if planned else self._refusal(request)
            if refused is None:
                self._limits.admit(request)
            latency = planned.delay if planned else self._latency
            await asyncio.sleep(seconds(latency(self._random) if callable(latency) else latency))
            answer = planned or refused or await self._answer(request)
            if planned is None:
                await asyncio.sleep(seconds(answer.delay))
            if refused is None:
                self._limits.settle(request, answer)
            request.status = None if answer.reset else answer.status
            return await send(incoming, self._limits.reported(answer, self._now()))
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        finally:
            self._inside -= 1

    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self._started

    def _refusal(self, request: FakeRequest) -> FakeAnswer | None:
        """The answer that refuses a request without the token or above a limit, or None."""
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            return FakeAnswer({"error": "who are you?"}, 401, {"WWW-Authenticate": "Bearer"})
        wait = self._limits.refusal_after(request)
        return None if wait is None else self._limits.refusal(request, wait) or self._come_back(429, wait)

    def _come_back(self, status: int, wait: float | None) -> FakeAnswer:
        headers = {}
        if wait is not None and self._retry_after_date:
            # Dates have whole seconds. A client that returns exactly at the date must not be too early.
            moment = datetime.now(UTC) + timedelta(seconds=math.ceil(wait) + 1)
            headers["Retry-After"] = email.utils.format_datetime(moment, usegmt=True)
        elif wait is not None:
            headers["Retry-After"] = str(math.ceil(wait))
        return FakeAnswer({"error": f"status {status}"}, status, headers)

    async def _answer(self, request: FakeRequest) -> FakeAnswer:
        fault, drawn = None, self._random.random() if any(self._shares.values()) else 1.0
        for name, share in self._shares.items():
            drawn -= share
            if drawn < 0:
                fault = name
                break
        if fault in (429, 503):
            return self._come_back(fault, self._retry_after)
        if fault is not None and fault not in ("truncated", "slow"):
            return self._faults[fault]
        answer = await self._found(request)
        if fault is None:
            return answer
        how = self._faults[fault]
        return replace(answer, slow=how.slow, truncated=how.truncated)

    async def _found(self, request: FakeRequest) -> FakeAnswer:
        path, _, _ = request.target.partition("?")
        if path == "/rows":
            if request.method == "POST":
                keys = [_texts(key) for key in request.json()]
            else:
                listed = request.target.partition("keys=")[2].partition("&")[0]
                keys = [(unquote(text),) for text in listed.split(",")]
            found = [self._row(key) for key in keys]
            if self._batch == "list":
                return FakeAnswer(found)
            return FakeAnswer({",".join(key): row for key, row in zip(keys, found, strict=True) if row is not None})
        if path.startswith("/rows/"):
            row = self._row(tuple(unquote(part) for part in path.removeprefix("/rows/").split("/")))
            return FakeAnswer({"error": "no such row"}, 404) if row is None else FakeAnswer(row)
        given = self._handler(request) if self._handler is not None else None
        if isinstance(given, Awaitable):
            given = await given
        if isinstance(given, FakeAnswer):
            return given
        return FakeAnswer({"error": "no such path"}, 404) if given is None else FakeAnswer(given)

    def _row(self, key: tuple[str, ...]) -> Any:
        if len(key) == 1 and key[0] in self.rows:
            return self.rows[key[0]]
        return next((row for known, row in self.rows.items() if _texts(known) == key), None)


def _texts(key: Any) -> tuple[str, ...]:
    """The parts of a key as a path contains them."""
    parts = key if isinstance(key, tuple | list) else (key,)
    return tuple("true" if part is True else "false" if part is False else str(part) for part in parts)


def _check_arguments(
    rows: object, latency: object, errors: object, rates: Mapping[str, float], handler: object
) -> None:
    """Check the arguments of a `FakeService`; `rates` are the shares of the faults that are no status, by their names.
    ConfigurationError if one has the wrong type or value."""
    if rows is not None and not isinstance(rows, Mapping):
        raise must_be("rows", rows, 'a mapping of keys to rows, such as {"JFK": {"city": "New York"}}')
    if callable(latency):
        plain_function("latency", latency, "a function", "a random.Random")
    given = {} if errors is None else errors
    if not (isinstance(given, Mapping) and all(isinstance(status, int) and 100 <= status < 600 for status in given)):
        raise must_be("errors", errors, "a mapping of statuses to shares, such as {503: 0.1}")
    shares = {f"errors[{status}]": share for status, share in given.items()} | dict(rates)
    for fault, share in shares.items():
        number(fault, share, "between 0 and 1: how often it happens", lambda share: 0 <= share <= 1)
    if sum(shares.values()) > 1:
        raise ConfigurationError(f"the shares of faults are {shares}; their sum must be at most 1")
    if handler is not None and not callable(handler):
        raise must_be("handler", handler, "a function of a FakeRequest, which may be `async`")
