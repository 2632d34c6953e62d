"""A clock that moves only when the test moves it."""

from __future__ import annotations

from asyncio_operator.errors import ConfigurationError


class ManualClock:
    """A clock for tests: a callable that returns seconds as a float, moved by hand.

    Args:
        start: the first time it shows, in seconds.
    """

    __slots__ = ("_now",)

    def __init__(self, start: float = 0.0) -> None:
        self._now = float(start)

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> float:
        """Moves the clock forward and returns its new time.

        Raises:
            ConfigurationError: `seconds` is negative; `set` moves a clock back.
        """
        if not seconds >= 0:  # Not `seconds < 0`, which NaN would pass.
            raise ConfigurationError(
                f"advance({seconds!r}): a clock advances by 0 seconds or more; set() moves it back"
            )
        self._now += seconds
        return self._now

    def set(self, seconds: float) -> None:
        """Sets the time, forward or back."""
        self._now = float(seconds)

    def __repr__(self) -> str:
        return f"ManualClock({self._now})"
