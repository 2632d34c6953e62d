"""Why a lookup may fail: what its options allow, and what the service did to its calls. An error of another reason is
the enricher's own fault."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from asyncio_operator.errors import describe, describe_error
from asyncio_operator.testing.simulation.scenario import Key, Lookup

refused_of: ContextVar[list[Sequence[Key]]] = ContextVar("refused_of")
"""Keys for which the service gave no right answer to the running call."""


class Reasons:
    """What has gone wrong in the calls of one lookup.

    Attributes:
        keys: those whose last call to the service was refused, was cancelled, or got a wrong answer.
        errors: names of the types of errors that the service raised.
        explained: keys of calls that failed because of the service, with the type of the error.
        own: the errors of calls to which the service gave right answers, by key.
    """

    def __init__(self) -> None:
        self.keys: set[Key] = set()
        self.errors: set[str] = set()
        self.explained: set[tuple[Key, str]] = set()
        self.own: dict[Key, str] = {}

    def answered(self, keys: Sequence[Key]) -> None:
        """The service gave right answers for keys."""
        self.keys.difference_update(keys)

    def refused(self, keys: Sequence[Key], error: BaseException | None = None) -> None:
        """The service gave no right answer for keys: an error, or a wrong answer."""
        self.keys.update(keys)
        refused_of.get([]).append(keys)
        if error is not None:
            # An enricher with a time limit of its own cancels its call.
            cancelled = isinstance(error, asyncio.CancelledError)
            self.errors.add("TimeoutError" if cancelled else type(error).__name__)

    def failed(self, keys: Sequence[Key], error: Exception) -> None:
        """The running call of the enricher failed.

        An enricher may ask for one key and fail for all. It may also ask in a task of its own, which knows no call.
        """
        kind = type(error).__name__
        if refused_of.get([]) or not self.keys.isdisjoint(keys):
            self.explained.update((key, kind) for key in keys)
        elif kind not in self.errors:
            self.own.update(dict.fromkeys(keys, describe_error(error)))

    def explain(self, lookup: Lookup, error: str, key: Key) -> bool:
        """Whether an error of this type is explained for a key."""
        return self._explain(lookup, error, (key, error) in self.explained)

    def explain_end(self, lookup: Lookup, error: str, key: str) -> bool:
        """Whether it may end a task. The key is described; empty: the enricher was not opened."""
        keys = (describe(key) for key, kind in self.explained if kind == error)
        return self._explain(lookup, error, key in keys if key else bool(self.keys))

    def _explain(self, lookup: Lookup, error: str, is_explained: bool) -> bool:
        match error:
            case "ElementTimeoutError":
                return has_limit(lookup)
            case "CircuitOpenError":
                return lookup.options.get("circuit_breaker") is not None
            case "ResultError":
                return lookup.service.lies > 0
        return is_explained or error in self.errors

    def may_fail(self, lookup: Lookup, key: Key) -> bool:
        """Whether a key may have failed with an error that is not known."""
        breaks = lookup.options.get("circuit_breaker") is not None
        return key not in self.own and (has_limit(lookup) or breaks or lookup.service.lies > 0 or bool(self.errors))


def has_limit(lookup: Lookup) -> bool:
    """Whether a key of a lookup may time out."""
    options: Any = lookup.options
    return bool(options.get("timeout", 30.0) or options.get("attempt_timeout"))
