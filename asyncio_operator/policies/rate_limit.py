"""How many calls may start in a period of time: `RateLimit`.

Two rules hold at the same time (laws R10 and G2). The log: all units that start within `per` seconds, wherever this
window begins, are at most ``rate + burst``. The bucket: it holds ``rate + burst`` units, each start takes some, and
they return at `rate` per `per`. So starts after a burst are slower, and the mean never exceeds `rate` per `per`. A
bucket alone would let twice its size through in one window. The windows of a process (`local_window`) and of a
coordinator (`budget.window`) keep both.
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncio_operator.checks import Duration, must_be, natural, positive_duration, positive_int

MOST_STARTS = 10_000_000
"""The maximum of starts in a window, each remembered in 32 bytes: enough for a daily quota, in 0.3 GB."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `rate` starts, plus `burst`, in any window of `per` seconds.

    Attributes:
        rate: starts per `per`, on average over a long time.
        per: the length of the window, in seconds or as a timedelta.
        burst: how many more may start in one window, after a time with fewer starts; None means 0. `rate` and `burst`
            together are at most 10,000,000.

    Raises:
        ConfigurationError: a value has the wrong type or range.
    """

    rate: int
    per: Duration = 1.0
    burst: int | None = None

    def __post_init__(self) -> None:
        positive_int("rate", self.rate, "; for less than one start in a window, make the window longer, with per=")
        object.__setattr__(self, "per", positive_duration("per", self.per))
        if self.burst is not None:
            natural("burst", self.burst)
        most = self.rate + (self.burst or 0)
        if most > MOST_STARTS:
            allowed = f"at most {MOST_STARTS:,}, because each start of a window is remembered"
            name = "rate + burst" if self.burst else "rate"
            raise must_be(name, most, f"{allowed}; for more, make the window shorter, with per=")
