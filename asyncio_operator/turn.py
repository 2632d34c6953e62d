"""How long those whose calls return at once may keep the loop from turning, all together.

Who is at work asks when the turn ends, works until then, and asks again: if the loop has turned by then, because he has
waited for something, there is a new turn. It knows neither lanes nor what they do.
"""

from __future__ import annotations

import asyncio

TURN = 0.0005
"""Seconds of a turn: long against the few
microseconds that a turn costs, and so short that what they have done is still in the processor's caches when others go
on with it, and has not yet made Python's garbage collector look for what is dead among it."""

STANDING = 1000
"""Calls that return at once after which the loop turns too where the clock stands still, as that of a test does."""


class Turn:
    """The present turn of a loop; it begins when somebody asks for its end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ends = 0.0
        self._standing = 0

    def ends(self, now: float) -> float:
        """When it ends, by the clock that gave `now`."""
        if not self._ends:
            self._ends = now + TURN
            self._loop.call_soon(self._turned)
        return self._ends

    def is_over(self, now: float) -> bool:
        """Whether those who were at work have used it up; after ``asyncio.sleep(0)`` there is another."""
        return self._ends != 0.0 and (now > self._ends or self._standing >= STANDING)

    def stands(self) -> bool:
        """Whether one may go on where the clock stands still; to be asked once a call."""
        self._standing += 1
        return self._standing < STANDING

    def _turned(self) -> None:
        self._ends = 0.0
        self._standing = 0
