"""Where the lanes get their work from: the protocols of an intake, and of the windows that it hands out.

A window is a run of work that all lanes share, as an iterator. What becomes of a call is the window's business; the
lanes only say how it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol


class Window(Protocol):
    """A run of work that lanes share."""

    lanes: int
    """How many lanes are in it; kept by the lanes."""
    instant: bool
    """Taking from it takes no time, so that the end of a call may pass for the start of the next."""

    @property
    def begin(self) -> Callable[[Any, float], float] | None:
        """Called with a slot and the time when its call starts; gives the seconds that it may take. What this and the
        methods below raise ends the run. None if every call may take the lanes' `timeout`, and nobody wants to know."""

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Pairs of a slot, which says where the outcome goes, and a value to call the function with."""

    def complete(self, slot: Any, result: Any) -> object:
        """The call gave a result."""

    def failed(self, slot: Any, error: BaseException, started: float) -> None:
        """The call, which started at this time, raised."""

    def timed_out(self, slot: Any, started: float) -> float | None:
        """The call is past its limit. It is cancelled, unless this gives a new limit, in seconds from its start."""

    def returned(self, slot: Any) -> None:
        """A call that was past its limit has returned. Nothing more will be heard of the slot."""

    def value_of(self, slot: Any) -> Any:
        """What the function was called with, for a message."""

    def left(self) -> None:
        """The last lane has left the window, of which something may be left."""


class Intake(Protocol):
    """Where the work comes from."""

    async def window(self) -> Window | None:
        """The present window while something is left of it, else wait for the next; None if there will be no more.

        Only one lane at a time waits here.
        """

    def stop(self) -> None:
        """All is over: no window will be asked for, and no call will start."""
