"""Why a lookup may fail: what its options allow, and what the service did to its calls. An error of another reason is
the enricher's own fault."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from math import inf
from typing import Any

from asyncio_operator.errors import describe, describe_error
from asyncio_operator.testing.simulation.scenario import Key, Lookup

refused_of: ContextVar[list[Sequence[Key]]] = ContextVar("refused_of")
"""Keys for which the service gave no right answer to the running call."""

A_LITTLE = 1e-5
"""Seconds: the times of events are rounded."""


class Reasons:
    """What has gone wrong in the calls of one lookup.

    Attributes:
        keys: those whose last call to the service was refused, was cancelled, or got a wrong answer.
        raised: the errors that the service raised.
        cancelled: whether a call to the service was cancelled.
        explained: keys of calls that failed because of the service, with the type of the error.
        own: keys of calls that failed although the service gave right answers, with the type and the text of the error.
    """

    def __init__(self) -> None:
        self.keys: set[Key] = set()
        self.raised: list[BaseException] = []
        self.cancelled = False
        self.explained: set[tuple[Key, str]] = set()
        self.own: dict[tuple[Key, str], str] = {}

    def answered(self, keys: Sequence[Key]) -> None:
        """The service gave right answers for keys."""
        self.keys.difference_update(keys)

    def refused(self, keys: Sequence[Key], error: BaseException | None = None) -> None:
        """The service gave no right answer for keys: an error, or a wrong answer."""
        self.keys.update(keys)
        refused_of.get([]).append(keys)
        if isinstance(error, asyncio.CancelledError):
            self.cancelled = True
        elif error is not None:
            self.raised.append(error)

    def failed(self, keys: Sequence[Key], error: Exception) -> None:
        """The running call of the enricher failed.

        An enricher may ask for one key and fail for all. It may also ask in a task of its own, which knows no call.
        """
        kind = type(error).__name__
        if refused_of.get([]) or not self.keys.isdisjoint(keys) or self._has_raised(error):
            self.explained.update((key, kind) for key in keys)
        else:
            self.own.update(((key, kind), describe_error(error)) for key in keys)

    def _has_raised(self, error: BaseException) -> bool:
        """Whether the service raised an error, or one that has led to it."""
        return any(one is raised for one in _chain(error) for raised in self.raised)

    def explain(self, lookup: Lookup, error: str, key: Key, late: bool) -> bool:
        """Whether an error of this type is explained for a key.

        Args:
            late: whether the task lasted long enough for a key to time out.
        """
        return self._explain(lookup, error, (key, error) in self.explained - self.own.keys(), late)

    def explain_end(self, lookup: Lookup, error: str, key: str, late: bool) -> bool:
        """Whether it may end a task. The key is described; empty: the enricher was not opened."""
        keys = (describe(key) for key, kind in self.explained - self.own.keys() if kind == error)
        return self._explain(lookup, error, key in keys if key else bool(self.keys), late)

    def _explain(self, lookup: Lookup, error: str, is_explained: bool, late: bool) -> bool:
        match error:
            case "ElementTimeoutError":
                return late
            case "CircuitOpenError":
                return self._breaks(lookup, late)
            case "ResultError":
                return lookup.service.lies > 0
            case "TimeoutError":
                # An enricher with a time limit of its own cancels its call.
                return is_explained or self.cancelled
        return is_explained

    def may_fail(self, lookup: Lookup, key: Key, late: bool) -> bool:
        """Whether a key may have failed with an error that is not known."""
        if any(one == key for one, _ in self.own):
            return False
        lies = lookup.service.lies > 0
        return late or lies or self._breaks(lookup, late) or any(one == key for one, _ in self.explained)

    def _breaks(self, lookup: Lookup, late: bool) -> bool:
        """Whether the circuit breaker may have opened: a call must have failed."""
        failed = late or self.explained or self.own or lookup.service.lies > 0
        return lookup.options.get("circuit_breaker") is not None and bool(failed)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that have led to it."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += one.__cause__, one.__context__


def is_late(lookup: Lookup, seconds: float) -> bool:
    """Whether a key of a lookup may time out in a task that lasts so long."""
    options: Any = lookup.options
    limits = options.get("timeout", 30.0), options.get("attempt_timeout")
    return seconds >= min((limit for limit in limits if limit), default=inf) - A_LITTLE
