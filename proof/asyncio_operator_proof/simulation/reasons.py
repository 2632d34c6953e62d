"""Why a lookup may fail: what its options allow, and what the service did to its calls. An error of another reason is
the enricher's own fault."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from math import inf
from typing import Any

from asyncio_operator.checks import seconds as seconds_of
from asyncio_operator.errors import describe, describe_error
from asyncio_operator_proof.simulation.scenario import Key, Lookup

refused_of: ContextVar[list[Sequence[Key]]] = ContextVar("refused_of")
"""Keys for which the service gave no right answer to the running call."""

watched_of: ContextVar[Watched] = ContextVar("watched_of")
"""The running call of the enricher."""

A_LITTLE = 1e-5
"""Seconds: a timer may be early by a rounding error."""


def has_limit(options: Mapping[str, Any]) -> bool:
    """Whether a call of a lookup with these options ends, even if the service hangs."""
    return bool(options.get("timeout", 30.0) or options.get("attempt_timeout"))


class Watched:
    """A call of the enricher, which must end when it is cancelled. It is made in the task of the call.

    What the enricher cancels by a limit of its own does not count: in the end its task is not cancelled any more. A
    call does not count either if the service had answered when it was cancelled: `asyncio.wait_for` may return that.
    """

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._before = self._cancelled()
        self._came = False

    def _cancelled(self) -> int:
        return 0 if self._task is None else self._task.cancelling()

    def came(self) -> None:
        """A cancellation came to the service, while it was asked."""
        self._came = self._came or self._cancelled() > self._before

    def disobeys(self) -> bool:
        """Whether a call that returns an answer now was cancelled."""
        return self._came and self._cancelled() > self._before


class Reasons:
    """What has gone wrong in the calls of one lookup.

    Attributes:
        keys: those whose last call to the service was refused, was cancelled, or got a wrong answer.
        raised: the errors that the service raised.
        cancelled: whether a call to the service was cancelled.
        explained: keys of calls that failed because of the service, with the type of the error.
        own: keys of calls that failed although the service gave right answers, with the type and the text of the error.
        disobeyed: keys of the first call that returned an answer although it was cancelled.
        late: keys of calls that lasted as long as the least limit.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self.keys: set[Key] = set()
        self.raised: list[BaseException] = []
        self.cancelled = False
        self.explained: set[tuple[Key, str]] = set()
        self.own: dict[tuple[Key, str], str] = {}
        self.disobeyed: Sequence[Key] | None = None
        self.late: set[Key] = set()
        self._together = 0.0
        self._all_late = False
        self._asked: set[Key] = set()

    def answered(self, keys: Sequence[Key]) -> None:
        """The service gave right answers for keys."""
        self.keys.difference_update(keys)

    def refused(self, keys: Sequence[Key], error: BaseException | None = None) -> None:
        """The service gave no right answer for keys: an error, or a wrong answer."""
        self.keys.update(keys)
        refused_of.get([]).append(keys)
        if isinstance(error, asyncio.CancelledError):
            self.cancelled = True
            if (watched := watched_of.get(None)) is not None:
                watched.came()
        elif error is not None:
            self.raised.append(error)

    def failed(self, keys: Sequence[Key], error: Exception) -> None:
        """The running call of the enricher failed.

        An enricher may ask for one key and fail for all. It may also ask in a task of its own, which knows no call.
        """
        kind = type(error).__name__
        if self._are_refused(keys) or self._has_raised(error):
            self.explained.update((key, kind) for key in keys)
        else:
            self.own.update(((key, kind), describe_error(error)) for key in keys)

    def ended(self, keys: Sequence[Key], seconds: float, together: bool) -> None:
        """A call of the enricher has ended.

        Args:
            seconds: that it has lasted.
            together: whether its keys may have one deadline with others, which are asked for in other calls.
        """
        self._asked.update(keys)
        if self._lookup.service.lies and self._are_refused(keys):
            # A wrong answer is found when the call has ended.
            self.explained.update((key, "ResultError") for key in keys)
        options: Any = self._lookup.options
        limits = options.get("timeout", 30.0), options.get("attempt_timeout")
        limit = min((seconds_of(one) for one in limits if one), default=inf) - A_LITTLE
        self._together += seconds if together else 0.0
        if seconds >= limit:
            self.late.update(keys)
        self._all_late = self._together >= limit

    def _are_refused(self, keys: Sequence[Key]) -> bool:
        """Whether the service gave no right answer to the running call, or to the last one for a key."""
        return bool(refused_of.get([])) or not self.keys.isdisjoint(keys)

    def _has_raised(self, error: BaseException) -> bool:
        """Whether the service raised an error, or one that has led to it."""
        return any(one is raised for one in _chain(error) for raised in self.raised)

    def explain(self, error: str, key: Key) -> bool:
        """Whether an error of this type is explained for a key."""
        match error:
            case "ElementTimeoutError":
                return self._may_time_out(key)
            case "CircuitOpenError":
                return self._breaks()
            case "TimeoutError" if self.cancelled:
                # An enricher with a time limit of its own cancels its call.
                return True
        return (key, error) in self.explained - self.own.keys()

    def explain_end(self, error: str, key: str) -> bool:
        """Whether it may end a task. The key is described; empty: the enricher was not opened."""
        if not key:
            return bool(self.keys)
        # Of a key that was not asked for, nothing is known but what may happen to all keys.
        named = [None, *(one for one in self._asked if describe(one) == key)]
        return any(self.explain(error, one) for one in named)

    def may_fail(self, key: Key) -> bool:
        """Whether a key may have failed with an error that is not known."""
        if any(one == key for one, _ in self.own):
            return False
        return self._breaks() or self._may_time_out(key) or self._has_failed(key)

    def _has_failed(self, key: Key) -> bool:
        return any(one == key for one, _ in (*self.explained, *self.own))

    def _may_time_out(self, key: Key) -> bool:
        """Whether a key may have passed a deadline: in a call, or while it waited for the next one."""
        if not has_limit(self._lookup.options):
            return False
        return key in self.late or self._all_late or self._breaks() or self._has_failed(key)

    def _breaks(self) -> bool:
        """Whether the circuit breaker may have opened: a call must have failed."""
        failed = self.late or self.explained or self.own
        return self._lookup.options.get("circuit_breaker") is not None and bool(failed)


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
