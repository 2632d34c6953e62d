"""Headers: checked when they are passed, and requested again from their function when they expire.

`HeaderSource` keeps the headers that a function returned. The function is not called for each request: a function that
fetches a token would double the requests. Nor is it called only once: tokens expire. It is called before the first
request, again when its result is older than `max_age`, and once more when the service answers 401. All requests that
wait for it share one call. An ordinary function runs in a thread, because it may block.

Law: no error contains the value of a header, neither of a user's nor of a function's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping

from asyncio_operator import ConfigurationError, EnricherError
from asyncio_operator.enricher import missing_here
from asyncio_operator.services.secret_source import SecretSource

HeaderFunction = Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OF_THE_CONNECTION = {"connection", "content-length", "host", "te", "trailer", "transfer-encoding", "upgrade"}


def check_headers(headers: object, where: str) -> dict[str, str]:
    """The headers, if they can be sent unchanged.

    Raises:
        ConfigurationError: the message names the header and the problem, and shows no value.
    """
    if not isinstance(headers, Mapping):
        raise ConfigurationError(f"{where} is of type {type(headers).__name__}; it must be a mapping of names to texts")
    seen = set()
    for name, value in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(f"{where} has the name {name!r}, which is not a valid header name")
        lower = name.lower()
        problem = None
        if lower in _OF_THE_CONNECTION:
            problem = "the connection sets it itself"
        elif lower in seen:
            problem = "it occurs twice"
        elif not isinstance(value, str):
            problem = f"its value is of type {type(value).__name__} and must be a string"
            if value is None:
                problem += "; is an environment variable not set in this process?"
        elif not (value.isascii() and value.isprintable()) or value != value.strip():
            problem = "its value (not shown) must be printable ASCII, without line breaks or blanks at its ends"
        if problem:
            raise ConfigurationError(f"{where}: {name}: {problem}")
        seen.add(lower)
    return dict(headers)


HEADERS = SecretSource[Mapping[str, str]](
    "headers", "headers", lambda given: check_headers(given, "headers"), may_await=True
)
"""The argument: a mapping, or a function that returns one."""


class HeaderSource:
    """The headers that a function returns, in one worker.

    Args:
        function: returns a mapping of names to texts; it may be ``async``.
        max_age: seconds after which it is called again.
        on_new: gets each new mapping before it is used.
    """

    def __init__(self, function: HeaderFunction, max_age: float, on_new: Callable[[Mapping[str, str]], None]) -> None:
        self._function = function
        self._max_age = max_age
        self._on_new = on_new
        self._headers: Mapping[str, str] | None = None
        self._since = 0.0
        self._asking: asyncio.Task[Mapping[str, str]] | None = None

    async def get(self, refused: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """The headers. If the service did not accept `refused`, the function is called again.

        Raises:
            EnricherError: the function failed. Its words are not shown, because they may contain a secret. No key
                causes this error. If this process lacks something, such as an environment variable, a retry does not
                help.
        """
        loop = asyncio.get_running_loop()
        headers = self._headers
        if headers is not None and headers is not refused and loop.time() - self._since < self._max_age:
            return headers
        if self._asking is None:
            self._asking = loop.create_task(self._ask())
            self._asking.add_done_callback(self._asked)
        # Shielded: if one waiting request is cancelled, the others still need the result.
        return await asyncio.shield(self._asking)

    def close(self) -> None:
        """Cancel a running call of the function."""
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
            # Every waiting request gets the error. If none is left, this keeps asyncio from logging it.
            task.exception()
