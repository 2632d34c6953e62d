"""The timers of a run: one ordered set of all of them, and one alarm on the loop for the earliest (law O20).

A timer is a tuple of the time when it is due, the function that it rings, and the function's subject. Deleting one
takes the same three. So a set of `asyncio_operator.state` holds them, as it holds the timers of a `TimerService`.

The alarm is not moved back when the earliest timer is deleted. It then wakes for nothing, once, which costs less than
moving it: most timers are deleted or found to be out of date, because calls end in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from asyncio_operator.engine.timing import COARSEST

if TYPE_CHECKING:
    from asyncio_operator.state.heap_set import HeapPriorityQueueSet

Ring = Callable[[Any, float], object]  # Called with the subject of a timer, and the time.

Timer = tuple[float, Ring, Any]

GROUP = KEY = 0  # A run's timers are never divided: they have one key group, and one key.


class Timers:
    """The timers of one run, or of another owner, on the running loop.

    Args:
        clock: gives the seconds in which timers are due.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        # Imported here: they load decimals and UUIDs, which an import of the public names does without.
        from asyncio_operator.state.heap_set import HeapPriorityQueueSet
        from asyncio_operator.state.key_groups import KeyGroupRange

        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.earliest = inf  # No timer is due before this time.
        # Called with an error that a timer has raised when the alarm rang it. By default it is raised.
        self.fail: Callable[[BaseException], object] = _raised
        self._numbers = count()
        self._set: HeapPriorityQueueSet[Timer] = HeapPriorityQueueSet(
            itemgetter(0), lambda _: KEY, KeyGroupRange(GROUP, GROUP), 1, sequence=self._numbers
        )
        self._reminders: dict[Callable[[], object], float] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = inf
        self._closed = False

    def set(self, due: float, ring: Ring, subject: Any = None) -> None:
        """Register a timer. It does nothing if there is an equal one, or after `close`."""
        if not self._closed and self._set.add_to(GROUP, KEY, (due, ring, subject)):
            self.earliest = due
            if due < self._alarm_at:
                self._arm(due)

    def delete(self, due: float, ring: Ring, subject: Any = None) -> bool:
        """Delete a timer. Returns False if it is not registered."""
        before = len(self._set)
        self._set.remove_from(GROUP, KEY, (due, ring, subject))
        return len(self._set) < before

    def remind(self, call: Callable[[], object], due: float) -> None:
        """Call at this time, and at no other that was given before; at infinity: not at all."""
        if (before := self._reminders.pop(call, inf)) < inf:
            self.delete(before, self._remind, call)
        if due < inf:
            self._reminders[call] = due
            self.set(due, self._remind, call)

    def _remind(self, call: Callable[[], object], now: float) -> None:
        del self._reminders[call]
        call()

    def ring(self, now: float) -> bool:
        """Ring the timers that are due by now, in the order of their times. Returns whether there was one.

        Timers that are registered meanwhile have to wait for the next time.
        """
        timers, rang = self._set, False
        last = next(self._numbers)
        while len(timers):
            due, number = timers.head()
            if due > now or number > last:
                self.earliest = due
                return rang
            timer = timers.poll()
            assert timer is not None
            rang = True
            timer[1](timer[2], now)
        self.earliest = inf
        return rang

    def close(self) -> None:
        """From now on nothing rings."""
        self._closed = True
        self._set.clear()
        self._reminders.clear()
        self.earliest = inf
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _arm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        # The clock is read before the loop's: the alarm may be late by the time between, and is not early.
        self._alarm = self.loop.call_at(at - (self.clock() - self.loop.time()), self._wake)

    def _wake(self) -> None:
        self._alarm = None
        # Until all have rung: whatever they register, the alarm is set once.
        self._alarm_at = -inf
        now = self.clock()
        try:
            rang = self.ring(now)
        except BaseException as error:
            # Raised here it would go to the loop's handler of exceptions, and the run would wait for ever.
            rang = True
            self.fail(error)
        finally:
            self._alarm_at = inf
        if len(self._set):
            # Without a due timer the alarm may have rung too early, and would at once do so again.
            due = self._set.head()[0]
            self._arm(due if rang else max(due, now + COARSEST))


def _raised(error: BaseException) -> None:
    raise error
