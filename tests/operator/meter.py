"""A budget in memory, for one run or several: windows that begin at 0 s, and slots for calls in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from asyncio_operator import Budget, BudgetExceeded
from asyncio_operator.quota.usage import FreeStarts, Hint, Weights


class Meter:
    """Replaces a `Reservation`, its `Seat` and the `Share`. In each window of `per` seconds `rates` units may start.

    Args:
        listens: whether calls may say what they weigh, so that each is reported when it returns.

    Attributes:
        starts: (time, weights) of each call.
        returns: (time, weights, settled) of each call.
        hints: what was said.
        joined: runs that have joined and not left.
    """

    def __init__(self, per: float = 10.0, in_flight: float = inf, listens: bool = True, **rates: float) -> None:
        self.per = per
        self.listens = listens
        self.rates = rates
        self.in_flight = in_flight
        self.running = 0
        self.free = FreeStarts(heard=True)
        self.share = self
        self.most = 0
        self.closed = False
        self.starts: list[tuple[float, Weights]] = []
        self.returns: list[tuple[float, Weights, Weights | None]] = []
        self.hints: list[Any] = []
        self.joined = 0
        self.asked = 0
        self.news: Callable[[], None] = lambda: None
        self.fail: Callable[[BaseException], object] = lambda error: None
        self._used: Counter[tuple[int, str]] = Counter()

    def join(self, news: Callable[[], None], fail: Callable[[BaseException], object]) -> Meter:
        self.joined += 1
        self.news, self.fail = news, fail
        return self

    def leave(self) -> None:
        self.joined -= 1

    def next_start(self, weights: Weights, now: float) -> float:
        assert self.joined
        self.asked += 1
        for unit, rate in self.rates.items():
            if weights.get(unit, 0) > rate:
                raise BudgetExceeded(f"{weights[unit]} {unit} are more than {rate}", unit=unit, limit=rate)
        if self.closed or self.running >= self.in_flight:
            return inf
        window = int(now // self.per)
        fits = all(self._used[window, unit] + weights.get(unit, 0) <= rate for unit, rate in self.rates.items())
        return now if fits else (window + 1) * self.per

    def started(self, weights: Weights, now: float) -> None:
        assert self.next_start(weights, now) == now
        self.starts.append((now, weights))
        self.running += 1
        self.most = max(self.most, self.running)
        for unit in self.rates:
            self._used[int(now // self.per), unit] += weights.get(unit, 0)  # type: ignore[assignment]

    def take(self, weights: Weights, now: float) -> float:
        if (start := self.next_start(weights, now)) <= now:
            self.started(weights, now)
        return start

    def returned(
        self, weights: Weights, settled: Weights | None, started: float, now: float, billed: bool = True
    ) -> None:
        assert (started, weights) in self.starts
        self.returns.append((now, weights, settled))
        self.running -= 1
        self.news()

    def ended(self) -> None:
        self.running -= 1
        self.news()

    def hint(self, limits: Mapping[str, Hint], retry_after: float | None, now: float) -> None:
        self.hints.append((dict(limits), retry_after, now))

    async def settled(self) -> None:
        """Nothing is on its way."""

    def set_closed(self, closed: bool) -> None:
        """Whether nothing may start, for now."""
        self.closed = closed
        self.news()

    @property
    def times(self) -> list[float]:
        """When calls started."""
        return [at for at, _ in self.starts]

    def weighed(self, unit: str) -> list[float]:
        """What each call weighed in a unit."""
        return [weights.get(unit, 0) for _, weights in self.starts]


class Meters:
    """Takes the place of the shares of this process (see the tests' conftest)."""

    def __init__(self) -> None:
        self.by_name: dict[str, Meter] = {}

    def allowance(self, budget: Budget) -> Meter:
        return self.by_name[budget.name]


METERS = Meters()


def metered(meter: Meter) -> Budget:
    """A budget whose runs take what they need of the meter."""
    METERS.by_name[name := f"meter {id(meter)}"] = meter
    return Budget(name, spend={"usd": 1.0}) if meter.listens else Budget(name, in_flight=1)
