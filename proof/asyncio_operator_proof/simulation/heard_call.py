"""What a running call says with `settle`, `billed` and `hint`: noted, and passed on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite

from asyncio_operator.quota.usage import Hint, RunningCall, Weights


class HeardCall:
    """A `RunningCall` in front of that of the library.

    Args:
        call: the library's; None: the call has no budget.
        said: called with each hint, as the fields of an event.

    Attributes:
        settled: what the call has said that it weighed.
        billed: whether it has said that its source bills it; None before.
        ended: whether it has returned. What it says later is not heard.
    """

    def __init__(self, call: RunningCall | None, said: Callable[..., object]) -> None:
        self._call = call
        self._said = said
        self.settled: dict[str, float] = {}
        self.billed: bool | None = None
        self.ended = False

    def settle(self, weights: Weights) -> None:
        """See `RunningCall`."""
        if not self.ended:
            for unit, amount in weights.items():
                self.settled[unit] = self.settled.get(unit, 0.0) + amount
        if self._call is not None:
            self._call.settle(weights)

    def bill(self, whether: bool) -> None:
        """See `RunningCall`."""
        if not self.ended:
            self.billed = whether or bool(self.billed)
        if self._call is not None:
            self._call.bill(whether)

    def hint(self, limits: Mapping[str, Hint], retry_after: float | None) -> None:
        """See `RunningCall`."""
        if not self.ended:
            if retry_after is not None:
                self._said(wait=_noted(retry_after))
            for unit, one in limits.items():
                about = {"limit": one.limit, "remaining": one.remaining, "reset": one.reset_after}
                noted = {name: _noted(value) for name, value in about.items()}
                self._said(unit=unit, **noted, refills=one.refills)
        if self._call is not None:
            self._call.hint(limits, retry_after)


def _noted(number: float | None) -> float | None:
    """A number that an event can have."""
    try:
        return number if number is None or isfinite(number) else None
    except OverflowError:
        return None
