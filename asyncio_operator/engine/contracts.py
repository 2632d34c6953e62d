"""The protocols of the source of work for lanes: an intake, and the windows that it hands out.

A window is a piece of work that all lanes share, as an iterator. Lanes report to the window how a call ended, and the
window handles the outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol


class Window(Protocol):
    """A piece of work that lanes share."""

    lanes: int
    """The number of lanes that work in the window. The lanes keep it."""
    instant: bool
    """Whether taking work from it takes no time. Then the end of a call counts as the start of the next."""
    runs_code: bool
    """Whether taking work from it, or waiting for work, runs code of the user."""

    @property
    def begin(self) -> Callable[[Any, float], float] | None:
        """A function that is called with a slot and the time when its call starts, and returns the seconds that the
        call may take. None: every call may take the lanes' `timeout`. An error that this function or a method below
        raises ends the run."""

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Yields pairs of a slot, which identifies the outcome, and a value for the function."""

    def complete(self, slot: Any, result: Any) -> object:
        """The call returned a result."""

    def failed(self, slot: Any, error: BaseException, started: float) -> None:
        """The call, which started at this time, raised."""

    def timed_out(self, slot: Any, started: float) -> float | None:
        """The call is past its limit. It is cancelled, unless this returns a new limit, in seconds from its start."""

    def returned(self, slot: Any) -> None:
        """A call that was past its limit has returned. This is the last report about the slot."""

    def value_of(self, slot: Any) -> Any:
        """The value with which the function was called, for a message."""

    def left(self) -> None:
        """The last lane has left the window, which may still have work."""


class Intake(Protocol):
    """The source of windows."""

    async def window(self) -> Window | None:
        """The present window if it has work left, otherwise the next one, after a wait. None if there are no more.

        Only one lane at a time waits here.
        """

    def stop(self) -> None:
        """The run ends: no window is requested any more, and no call starts."""
