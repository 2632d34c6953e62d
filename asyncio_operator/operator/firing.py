"""The timers of a run: watermarks fire them, and what their callbacks collect waits here until it leaves.

Law T9: a watermark that is about to leave fires the timers that it has reached. What their callbacks collect leaves
before it. The end of the input fires nothing. A callback may collect at any other time too, as one of a
`ProcessingTimeDriver` does; its records leave at once. This module knows no queue and no order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import Any, Final, Protocol

from asyncio_operator.elements import Record
from asyncio_operator.errors import describe

AT_ONCE: Final = 50
"""Timers that fire before the loop turns. By law T10 callbacks that return at once keep it for 10 ms at most, so each
of them may take 200 microseconds."""


class OperatorTimers(Protocol):
    """A timer service, or a manager of several, as far as a run uses it."""

    def advance_watermark(self, timestamp: int, limit: int | None = None) -> bool: ...

    def collect_into(self, output: Callable[[Record[Any]], object] | None) -> None: ...


class Firing:
    """Made when a run starts. Until `end`, the timers belong to the run.

    Args:
        collected: records of an earlier run that have not left yet.
        news: called when a record was collected.

    Attributes:
        collected: records that have not left yet, in their order.

    Raises:
        StateError: the timers belong to another run.
    """

    def __init__(self, timers: OperatorTimers, collected: Iterable[Record[Any]], news: Callable[[], object]) -> None:
        self.collected = deque(collected)
        self._timers = timers
        self._news = news
        self._ended = False
        # As for the hooks of elements (law O17), but one for all callbacks: they belong to no element.
        self._context = copy_context()
        timers.collect_into(self._collect)

    def _collect(self, record: Record[Any]) -> None:
        self.collected.append(record)
        self._news()

    def fire(self, timestamp: int, fail: Callable[[BaseException], object]) -> bool | None:
        """Fire some of the timers that a watermark has reached. Returns whether there are more of them; None: a
        callback has raised an error, which `fail` got."""
        try:
            return self._context.run(self._timers.advance_watermark, timestamp, AT_ONCE)
        except BaseException as error:
            error.add_note(f"A timer of {describe(self._timers)} raised this when watermark {timestamp} fired it.")
            fail(error)
            return None

    def end(self) -> None:
        """Let go of the timers."""
        if not self._ended:
            self._ended = True
            self._timers.collect_into(None)
