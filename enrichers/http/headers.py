"""Headers: checked when they are given, asked for again when they have expired.

Headers from a function are what `HeaderSource` keeps. The function is not called for every request, because a function
that fetches a token would then double the requests; nor only once, because tokens expire. It is called before the first
request, again when its answer is older than `max_age`, and once more when the service answers 401. However many
requests wait for it, it is called once. An ordinary function runs in a thread, since it may block.

The law: no value of a header is in an error, whoever wrote it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping

from asyncio_operator import ConfigurationError, EnricherError
from asyncio_operator.enricher import missing_here
from enrichers.secret_source import SecretSource

HeaderFunction = Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OF_THE_CONNECTION = {"connection", "content-length", "host", "te", "trailer", "transfer-encoding", "upgrade"}


def check_headers(headers: object, where: str) -> dict[str, str]:
    """The headers, if they can be sent as they are.

    Raises:
        ConfigurationError: names the header and what is wrong, and shows no value.
    """
    if not isinstance(headers, Mapping):
        raise ConfigurationError(f"{where} is of type {type(headers).__name__}; it must be a mapping of names to texts")
    seen = set()
    for name, value in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(f"{where} has the name {name!r}, which is no name of a header")
        lower = name.lower()
        problem = None
        if lower in _OF_THE_CONNECTION:
            problem = "it is the connection's own"
        elif lower in seen:
            problem = "it stands there twice"
        elif not isinstance(value, str):
            problem = f"its value is of type {type(value).__name__} and must be a string"
            if value is None:
                problem += "; is an environment variable not set in this process?"
        elif not (value.isascii() and value.isprintable()) or value != value.strip():
            problem = "its value (not shown) must be printable ASCII, without line breaks, and no blanks at its ends"
        if problem:
            raise ConfigurationError(f"{where}: {name}: {problem}")
        seen.add(lower)
    return dict(headers)


HEADERS = SecretSource[Mapping[str, str]](
    "headers", "headers", lambda given: check_headers(given, "headers"), may_await=True
)
"""The argument: a mapping, or a function that gives one."""


class HeaderSource:
    """The headers that a function gives, in one worker.

    Args:
        function: gives a mapping of names to texts; it may be ``async``.
        max_age: seconds after which it is asked again.
        on_new: gets every answer, before it is used.
    """

    def __init__(self, function: HeaderFunction, max_age: float, on_new: Callable[[Mapping[str, str]], None]) -> None:
        self._function = function
        self._max_age = max_age
        self._on_new = on_new
        self._headers: Mapping[str, str] | None = None
        self._since = 0.0
        self._asking: asyncio.Task[Mapping[str, str]] | None = None

    async def get(self, refused: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """The headers; others than `refused`, which the service did not accept, unless the function gives them again.

        Raises:
            EnricherError: the function failed; its words are not shown, because they may hold a secret. No key is to
                blame, and what this process lacks, as an environment variable, asking again will not give.
        """
        loop = asyncio.get_running_loop()
        headers = self._headers
        if headers is not None and headers is not refused and loop.time() - self._since < self._max_age:
            return headers
        if self._asking is None:
            self._asking = loop.create_task(self._ask())
            self._asking.add_done_callback(self._asked)
        # One of those who wait may be cancelled; the others still want the answer.
        return await asyncio.shield(self._asking)

    def close(self) -> None:
        """Ask no longer."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> Mapping[str, str]:
        try:
            headers = await HEADERS.get(self._function)
        except ConfigurationError as error:
            problem = error
        else:
            self._on_new(headers)
            self._headers, self._since = headers, asyncio.get_running_loop().time()
            return headers
        retryable = False if missing_here(problem) else None
        raise EnricherError(str(problem), retryable=retryable, any_key=True) from problem.__cause__

    def _asked(self, task: asyncio.Task[Mapping[str, str]]) -> None:
        self._asking = None
        if not task.cancelled():
            # Those who wait get the error; if none is left, nobody has to hear of it.
            task.exception()
