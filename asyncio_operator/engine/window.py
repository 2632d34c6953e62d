"""The window of new elements: calls for one element each, which all lanes share. Only trouble makes objects.

Lanes take pairs of a slot, the place of an element in its owner, and a value. If a call fails, is late, or has to wait
for a limit, its element gets a flight, and goes on in `attempts`. Where its end needs more, slots are calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING, Any

from asyncio_operator.engine.contracts import Window
from asyncio_operator.engine.flights import Call
from asyncio_operator.errors import BudgetExceeded, CircuitOpenError, CoordinatorError, ResultError
from asyncio_operator.quota.usage import FreeStarts

if TYPE_CHECKING:
    from asyncio_operator.engine.attempts import Attempts
    from asyncio_operator.engine.gate import Gate


class CallWindow(Window):
    """A `Window`, but for what a subclass says: `owner` of the elements, `results`, `complete`, and what it hands out.

    Args:
        plain: nothing is to be done with a call but to store its result: slots are places of the owner.
        final: see `Window`.
    """

    owner: Any

    def __init__(self, attempts: Attempts, plain: bool, final: bool) -> None:
        self.final = final
        self.attempts = attempts
        self._plain = plain
        self.begin = None if plain else attempts.begin
        gate = attempts.gate
        self._gate = gate if gate.limits else None
        self.ended = gate.answered if plain else None

    def let_start(self, calls: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """Those of the calls that the gate lets start now. The first one that has to wait goes before all others."""
        return calls if self._gate is None else self._started(calls, self._gate)

    def _started(self, calls: Iterator[tuple[Any, Any]], gate: Gate) -> Iterator[tuple[Any, Any]]:
        plain, clock, take, held = self._plain, gate.now, gate.take, self.attempts.held
        free = gate.free if plain else FreeStarts()
        weighs = gate.weighs and not plain
        # Law R10: calls start in order.
        while not held and (call := next(calls, None)) is not None:
            now, refusal = clock(), None
            if free.left and now < free.until:
                free.left -= 1
                free.last = now
            else:
                try:
                    if weighs and call[0].weights is None:
                        call[0].weights = gate.weights(1, [call[1]])
                    start = take(now) if plain else gate.start(call[0], now)
                except CircuitOpenError:
                    start = inf
                except (BudgetExceeded, CoordinatorError, ResultError) as error:
                    start, refusal = inf, error
                if start > now:
                    self.hold(call[0], refusal)
                    return
                if plain:
                    free = gate.free
            try:
                yield call
            finally:
                # The lane asks for the next call, or leaves the window: this one has returned.
                if free.heard:
                    gate.seat.ended()  # type: ignore[union-attr]
                else:
                    free.ended += 1

    def hold(self, slot: Any, refusal: BaseException | None) -> Call:
        """The call has to wait for a limit, or is refused when it is its turn."""
        call = self.call_of(slot)
        call.refusal = refusal
        self.attempts.hold(call)
        return call

    def _call(self, slot: Any) -> Call:
        call = Call(((self.owner, (slot,)),))
        call.counted = False
        return call

    def call_of(self, slot: Any, started: float | None = None) -> Call:
        if type(slot) is Call:
            return slot
        call = self._call(slot)
        if started is not None:
            self.attempts.begun(call, started)
            if self.ended is not None:
                # The gate hears of its end.
                call.gate, call.running, call.let_start, call.age = self.attempts.gate, True, started, started
        return call
