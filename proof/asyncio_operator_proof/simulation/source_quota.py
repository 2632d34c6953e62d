"""The quota of a simulated service, and what its headers say of it."""

from __future__ import annotations

from asyncio_operator.quota.usage import Hint

EARLY = 1e-6
"""Seconds: a window that begins so soon has begun."""

NONSENSE = (
    Hint(limit=10.0, remaining=-1.0, reset_after=5.0),
    Hint(limit=0.0, remaining=0.0, reset_after=5.0),
    Hint(limit=10.0, remaining=0.0, reset_after=1e5),
    Hint(limit=10.0, remaining=0.0, reset_after=-5.0),
    Hint(limit=10.0, remaining=11.0, reset_after=5.0),
)
"""Hints that cannot be right: law G5 says that they are ignored."""


class Quota:
    """Counts the calls of a service: in windows, or in a bucket that is filled again all the time.

    Args:
        most: calls in a window.
        per: seconds of a window, or in which the whole bucket is filled.
    """

    def __init__(self, most: int, per: float, refills: bool) -> None:
        self._most = most
        self._per = per
        self._refills = refills
        self._left = float(most)
        self._at = self._begun = 0.0

    def wait(self, now: float) -> float:
        """Count a call, and return 0; or, if nothing is left, the seconds until the next may come."""
        self._go_to(now)
        if self._left >= 1 - EARLY:
            self._left -= 1
            return 0.0
        return self._reset(1 - self._left)

    def hint(self, now: float) -> Hint:
        """What is left."""
        self._go_to(now)
        reset = self._reset(self._most - self._left)
        return Hint(float(self._most), max(0.0, self._left), reset, self._refills, self._per)

    def nonsense(self, number: int) -> Hint:
        """What cannot be right."""
        return NONSENSE[number % len(NONSENSE)]

    def _reset(self, missing: float) -> float:
        """The seconds until the missing calls have come back."""
        return missing * self._per / self._most if self._refills else self._begun + self._per - self._at

    def _go_to(self, now: float) -> None:
        if self._refills:
            self._left = min(float(self._most), self._left + (now - self._at) * self._most / self._per)
        elif now >= self._begun + self._per - EARLY:
            self._left = float(self._most)
            self._begun = (now + EARLY) // self._per * self._per
        self._at = now
