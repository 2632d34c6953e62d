"""What an enricher says about its running call: for the span of that call, and for the status column.

Where neither is wanted it is not even computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextvars import ContextVar

Attributes = Mapping[str, str | int]
"""Attributes of a span, named as the semantic conventions of OpenTelemetry name them."""

HTTP_STATUS = "http.response.status_code"

noted: ContextVar[Callable[[Attributes], None]] = ContextVar("asyncio_operator_noted")
"""Takes the attributes of the call that runs in this context."""


def annotate(attributes: Callable[[], Attributes]) -> None:
    """Say more about the running call, for its span in OpenTelemetry.

    Args:
        attributes: a function that returns attributes by name, as the semantic conventions have them, without secrets.
            It is called only if the call has a span, or its row a status column, which shows
            ``http.response.status_code``.
    """
    note = noted.get(None)
    if note is not None:
        note(attributes())


def answered_with(error: BaseException, http_status: int | None) -> None:
    """Keep with an error of a call the HTTP status of its answer, if there was one."""
    # Not as an attribute that an error of a user may have, or refuse. The same error may be raised again.
    vars(error)[_ANSWERED] = http_status


def status_answered(error: BaseException) -> int | None:
    """The HTTP status of the answer to the call that has failed with this error."""
    return vars(error).get(_ANSWERED)


_ANSWERED = "_asyncio_operator_http_status"


class Notes:
    """While it is entered, keeps what calls of this context say about themselves, and passes it on to the notes in
    which it is."""

    __slots__ = ("_mark", "_outer", "_statuses", "said")

    def __init__(self) -> None:
        self.said: dict[str, str | int] = {}  # The attributes; those that were said last.
        self._statuses: set[str | int] = set()

    def __enter__(self) -> Notes:
        self._outer = noted.get(None)
        self._mark = noted.set(self._note)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None:
            answered_with(error, self.http_status)
        # Another context resets it only if the loop is gone.
        with contextlib.suppress(ValueError):
            noted.reset(self._mark)

    def _note(self, attributes: Attributes) -> None:
        self.said.update(attributes)
        if HTTP_STATUS in attributes:
            self._statuses.add(attributes[HTTP_STATUS])
        if self._outer is not None:
            self._outer(attributes)

    @property
    def http_status(self) -> int | None:
        """Of the answers; None if there was none, or they differ: then nothing tells whose it is."""
        status = next(iter(self._statuses)) if len(self._statuses) == 1 else None
        return status if type(status) is int else None
