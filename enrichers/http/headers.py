"""Headers: checked when they are passed, and requested again from their function when they expire.

`HeaderSource` keeps headers that a function or a token service gave. They are not asked for before each request: that
would double the requests. Nor are they asked for only once: tokens expire. They are asked for before the first request,
again when they are too old, and once more when the service answers 401. All requests that wait for them share one call.
An ordinary function runs in a thread, because it may block.

Law: no error contains the value of a header, neither of a user's nor of a function's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeVar

from asyncio_operator import ConfigurationError, EnricherError
from asyncio_operator.enricher import missing_here, verdict
from asyncio_operator.services.secret_source import SecretSource

T = TypeVar("T")

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


class Fresh(NamedTuple):
    """New headers, and for how many seconds they may be used; None if that is not known."""

    headers: Mapping[str, str]
    seconds: float | None


async def asked(source: SecretSource[T], given: T | Callable[[], T | Awaitable[T]]) -> T:
    """A secret, from its function if it has one.

    Raises:
        EnricherError: the function failed. Its words are not shown, because they may contain a secret, but what it says
            of a further call, such as `retry_after`, is kept. No key causes this error. If this process lacks
            something, such as an environment variable, a retry does not help.
    """
    try:
        return await source.get(given)
    except ConfigurationError as error:
        problem = error
    kept = verdict(problem) | {"any_key": True}
    if missing_here(problem):
        kept["retryable"] = False
    raise EnricherError(str(problem), **kept) from problem.__cause__


async def from_function(function: HeaderFunction) -> Fresh:
    """The headers that a function returns; it raises as `asked` does."""
    return Fresh(await asked(HEADERS, function), None)


class HeaderSource:
    """Headers that are asked for when they are needed, in one worker.

    Args:
        ask: gives new headers, or raises an `EnricherError`.
        max_age: seconds after which they are asked for again, if `ask` does not say it.
        on_new: gets new headers before they are used.
    """

    def __init__(
        self, ask: Callable[[], Awaitable[Fresh]], max_age: float, on_new: Callable[[Mapping[str, str]], None]
    ) -> None:
        self._ask_for = ask
        self._max_age = max_age
        self._on_new = on_new
        self._headers: Mapping[str, str] | None = None
        self._until = 0.0
        self._asking: asyncio.Task[Mapping[str, str]] | None = None

    async def get(self, refused: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """The headers. If the service did not accept `refused`, new ones are asked for.

        Raises:
            EnricherError: there are none. No key causes this error.
        """
        loop = asyncio.get_running_loop()
        headers = self._headers
        if headers is not None and headers is not refused and loop.time() < self._until:
            return headers
        if self._asking is None:
            self._asking = loop.create_task(self._ask())
            self._asking.add_done_callback(self._asked)
        # Shielded: if one waiting request is cancelled, the others still need the result.
        return await asyncio.shield(self._asking)

    def close(self) -> None:
        """Stop asking."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> Mapping[str, str]:
        try:
            headers, seconds = await self._ask_for()
        except EnricherError as error:
            # Without the frames that it passed: they hold secrets.
            problem = error.with_traceback(None)
        else:
            self._on_new(headers)
            life = self._max_age if seconds is None else seconds
            self._headers, self._until = headers, asyncio.get_running_loop().time() + life
            return headers
        raise problem

    def _asked(self, task: asyncio.Task[Mapping[str, str]]) -> None:
        self._asking = None
        if not task.cancelled():
            # Every waiting request gets the error. If none is left, this keeps asyncio from logging it.
            task.exception()
