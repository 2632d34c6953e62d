"""The history of a simulation while it is written."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from asyncio_operator_proof.history.event_format import VERSION, Event, History

attempt_of: ContextVar[str] = ContextVar("attempt_of")
"""The attempt of a task to which the running code belongs."""


class Notes:
    """Events in the order in which they happen.

    Args:
        now: the true time.

    Attributes:
        open: whether events are taken. What happens when the simulated world ends is no part of the history.
        killed: attempts of tasks whose worker was killed.
        calls: how many were noted.
        largest: rows of the largest batch that each lookup has read.
        interrupted: the interrupt from the keyboard that came in a call, which ends the simulation.
        heaviest: what a call under a budget weighed at most when it was about to start, by unit.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._events: list[Event] = []
        self.open = True
        self.killed: set[str] = set()
        self.calls = 0
        self.largest: dict[int, int] = {}
        self.interrupted: KeyboardInterrupt | None = None
        self.heaviest: dict[str, float] = {}

    def add(self, event: str, **values: Any) -> Event:
        """Note an event that happens now. The result may be completed later."""
        noted: Event = {"event": event, "at": round(self._now(), 6), **values}
        if self.open:
            self._events.append(noted)
        return noted

    def begin(self, **values: Any) -> None:
        """Note what the history is."""
        self._events.append({"event": "history", "version": VERSION, **values})

    def setting(self, **values: Any) -> Event:
        """Note the options of a lookup. The result may be completed later."""
        self._events.append({"event": "setting", **values})
        return self._events[-1]

    def history(self) -> History:
        """What was noted."""
        return History(self._events)
