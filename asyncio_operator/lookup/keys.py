"""Batches of keys on their way through the lanes.

A `KeyBatch` holds the distinct keys of one batch of rows and, by position, what became of each: a row, several, None, a
`Failure`, or still `PENDING`. It is the window that the lanes share, so a key costs a step of an iterator and a store
in a list, and no object of its own. Keys are admitted range by range, as the buffer allows. Where the enricher takes
many keys at once, a range is cut into `Chunk` calls instead of single keys.

Law: an outcome is written once, and none is written after its key has ended by its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

PENDING: Any = object()
"""Stands for an outcome that is not there yet."""


class Failure:
    """The outcome of a key whose lookup failed.

    Attributes:
        error: what it failed of.
        latency: seconds from the start of the call.
        timed_out: whether it passed its deadline.
    """

    __slots__ = ("error", "latency", "timed_out")

    def __init__(self, error: BaseException, latency: float, timed_out: bool = False) -> None:
        self.error = error
        self.latency = latency
        self.timed_out = timed_out

    def __repr__(self) -> str:
        return f"Failure({self.error!r}, {self.latency:.3f} s)"


class Timed:
    """An answer with the seconds it took; written in place of the bare answer where somebody wants to know."""

    __slots__ = ("answer", "latency")

    def __init__(self, answer: Any, latency: float) -> None:
        self.answer = answer
        self.latency = latency


class Chunk:
    """The keys of a batch from `start` to `stop`, looked up by one call."""

    __slots__ = ("batch", "ended", "start", "stop")

    def __init__(self, batch: KeyBatch, start: int, stop: int) -> None:
        self.batch = batch
        self.start = start
        self.stop = stop
        self.ended = False

    def write(self, start: int, outcomes: Sequence[Any]) -> None:
        """Outcomes for the keys from `start`, unless the chunk has ended."""
        if not self.ended:
            self.batch.outcomes[start : start + len(outcomes)] = outcomes

    def end(self, failure: Callable[[Any], Failure]) -> None:
        """Give every key that has no outcome yet the failure that `failure` makes for it."""
        self.ended = True
        keys, outcomes = self.batch.keys, self.batch.outcomes
        for i in range(self.start, self.stop):
            if outcomes[i] is PENDING:
                outcomes[i] = failure(keys[i])


class Owner(Protocol):
    """Who decides what becomes of calls, and hears of batches that have ended."""

    def failed(self, key: Any, error: BaseException, started: float) -> Failure: ...

    def timed_out(self, key: Any, started: float) -> Failure: ...

    def ended(self, batch: KeyBatch) -> None: ...


class KeyBatch:
    """The distinct keys of a batch of rows; a window of the lanes.

    Args:
        keys: in the order of their first row.
        rows: how many rows stand behind them.
        payload: the rows themselves, not looked at here.
    """

    instant = True
    begin = None

    def __init__(self, keys: list[Any], rows: int, payload: Any = None) -> None:
        self.keys = keys
        self.rows = rows
        self.payload = payload
        self.outcomes: list[Any] = [PENDING] * len(keys)
        self.admitted = 0
        self.delivered = 0
        self.lanes = 0
        self.ended = False
        self.owner: Owner
        self.complete: Callable[[Any, Any], object] = self.outcomes.__setitem__
        self._left: Any = iter(())
        self._range: Iterator[tuple[Any, Any]] = iter(())

    def admit(self, room: int, chunk: int) -> int:
        """Open the next range of at most `room` keys, in calls of at most `chunk` keys; how many keys it holds."""
        start = self.admitted
        self.admitted = stop = min(len(self.keys), start + room)
        if chunk > 1:
            calls = -(-(stop - start) // chunk)
            size = -(-(stop - start) // calls)
            chunks = [Chunk(self, i, min(i + size, stop)) for i in range(start, stop, size)]
            self.complete = _written_already
            self._left = iter(chunks)
            self._range = zip(self._left, chunks, strict=False)
        else:
            self._left = iter(range(start, stop))
            self._range = zip(self._left, self.keys[start:stop], strict=False)
        return stop - start

    def open(self) -> bool:
        """Whether the present range has keys that no lane has taken."""
        return bool(self._left.__length_hint__())

    def left_over(self) -> int:
        """How many keys, or chunks, of the present range no lane has taken."""
        return int(self._left.__length_hint__())

    def end(self) -> None:
        """Every key has an outcome."""
        if not self.ended:
            self.ended = True
            self.owner.ended(self)

    def ready(self) -> int:
        """The end of the run of keys, from the first, that all have an outcome."""
        if not self.lanes and not self.open():
            return self.admitted
        outcomes = self.outcomes
        for i in range(self.delivered, len(outcomes)):
            if outcomes[i] is PENDING:
                return i
        return len(outcomes)

    def answered(self) -> int:
        """How many keys have an outcome."""
        return sum([outcome is not PENDING for outcome in self.outcomes])

    # -- the window

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._range

    def value_of(self, slot: Any) -> Any:
        return self.keys[slot.start : slot.stop] if isinstance(slot, Chunk) else self.keys[slot]

    def failed(self, slot: Any, error: BaseException, started: float) -> None:
        if isinstance(slot, Chunk):
            slot.end(lambda key: self.owner.failed(key, error, started))
        else:
            self.outcomes[slot] = self.owner.failed(self.keys[slot], error, started)

    def timed_out(self, slot: Any, started: float) -> None:
        if isinstance(slot, Chunk):
            slot.end(lambda key: self.owner.timed_out(key, started))
        else:
            self.outcomes[slot] = self.owner.timed_out(self.keys[slot], started)

    def returned(self, slot: Any) -> None:
        """The key has ended."""

    def left(self) -> None:
        if self.admitted == len(self.keys) and not self.open():
            self.end()


def _written_already(slot: Any, result: Any) -> None:
    """A chunk's outcomes are written as they become known, not when its call returns."""
