"""Batches of keys, and what became of each key.

A `KeyBatch` holds the distinct keys of one batch of rows and, by position, their outcomes: an answer, `Told` in its
place where somebody wants to know how it was come by, a `Failure`, or still `PENDING`.

Law: an outcome is written once.
"""

from __future__ import annotations

from typing import Any

PENDING: Any = object()
"""Stands for an outcome that is not there yet."""


class Told:
    """An answer, and how it was come by.

    Attributes:
        source: "call", "cache", "shared" or "stale".
        attempts: that were made for it; 0 if nothing was called.
        latency: seconds that these took, waits between them included; None if nothing was called.
        error: what the lookup failed of for which a stale answer stands in.
    """

    __slots__ = ("answer", "attempts", "error", "latency", "source")

    def __init__(
        self, answer: Any, source: str, attempts: int, latency: float | None, error: BaseException | None = None
    ) -> None:
        self.answer = answer
        self.source = source
        self.attempts = attempts
        self.latency = latency
        self.error = error


class Failure:
    """The outcome of a key whose lookup failed.

    Attributes:
        error: what it failed of.
        traceback: of the error, as it was; every time that it is raised for one who waits, it grows.
        timed_out: whether it passed its deadline.
        source, attempts, latency: as of `Told`.
    """

    __slots__ = ("attempts", "error", "latency", "source", "timed_out", "traceback")

    def __init__(
        self,
        error: BaseException,
        latency: float | None,
        timed_out: bool = False,
        attempts: int = 1,
        source: str = "call",
    ) -> None:
        self.error = error
        self.traceback = error.__traceback__
        self.latency = latency
        self.timed_out = timed_out
        self.attempts = attempts
        self.source = source

    def __repr__(self) -> str:
        return f"Failure({self.error!r}, {self.source}, after {self.attempts} attempts)"


def shared(outcome: Any) -> Any:
    """The outcome of a lookup for those who did not ask first."""
    if type(outcome) is Told:
        return Told(outcome.answer, "shared", outcome.attempts, outcome.latency, outcome.error)
    if type(outcome) is Failure:
        return Failure(outcome.error, outcome.latency, outcome.timed_out, outcome.attempts, "shared")
    return outcome


class KeyBatch:
    """The distinct keys of a batch of rows.

    Args:
        keys: in the order of their first row.
        rows: how many rows stand behind them.
        payload: the rows themselves, not looked at here.

    Attributes:
        delivered: how many leading keys have been delivered (in unordered mode: how many keys).
        ended: whether every key has an outcome.
    """

    __slots__ = ("_places", "delivered", "ended", "keys", "outcomes", "payload", "rows")

    def __init__(self, keys: list[Any], rows: int, payload: Any = None) -> None:
        self.keys = keys
        self.rows = rows
        self.payload = payload
        self.outcomes: list[Any] = [PENDING] * len(keys)
        self.delivered = 0
        self.ended = False
        self._places: dict[Any, int] | None = None

    @property
    def places(self) -> dict[Any, int]:
        """The position of each key."""
        if self._places is None:
            self._places = {key: i for i, key in enumerate(self.keys)}
        return self._places

    def ready(self) -> int:
        """The end of the run of keys, from the first, that all have an outcome."""
        outcomes = self.outcomes
        for i in range(self.delivered, len(outcomes)):
            if outcomes[i] is PENDING:
                return i
        return len(outcomes)

    def answered(self) -> int:
        """How many keys have an outcome."""
        return sum([outcome is not PENDING for outcome in self.outcomes])
