"""The table of open keys: those that are called for, so that others may wait for their outcomes.

A key is open for a flight, of a `Lookup`, of an element of an operator with a cache, or of a refresh; or for a batch of
keys, which have no flight each (`key_source`). Law L2: concurrent lookups of one key make one call. Law L6: an old
answer is refreshed in the background, by one call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

from asyncio_operator.arrow.key_identity import identity
from asyncio_operator.engine.flights import Flight

if TYPE_CHECKING:
    from asyncio_operator.engine.recorder import Recorder
    from asyncio_operator.figures import Figures


class OpenKey(Flight):
    """The flight of a key.

    Attributes:
        key: what its answer is kept by.
        name: its place in the table; None if no other caller can wait for it.
        waiters: those that get its outcome, by ``waiter.answer(position, outcome)``, each with its position. An element
            of the operator has an entry too.
        refreshing: whether it was opened for an old answer, and not for a waiter.
        handed: whether it has been handed out to be called for.
    """

    __slots__ = ("handed", "key", "name", "refreshing", "waiters")

    def __init__(self, entry: Any, value: Any, number: int, admitted: float, attempts: int = 0) -> None:
        super().__init__(entry, value, number, admitted, attempts)
        self.key: Any = value
        self.name: Any = None
        self.waiters: list[tuple[Any, Any]] = []
        self.refreshing = False
        self.handed = False

    @property
    def awaited(self) -> bool:
        return self.entry is not None or bool(self.waiters)

    def waits_for(self, name: Any) -> bool:
        """Whether the outcome of its key is to come."""
        return True

    @property
    def element(self) -> Any:
        """As an entry of a queue has it."""
        return self.value


class OpenKeys:
    """The open keys of a run.

    Args:
        figures: of the run.
        now: gives the time.
        numbers: gives each flight its number.
        name_of: gives the name of a canonical key. Keys of one type are their own names.

    Attributes:
        background: flights of refreshes. A source takes them before others.
        running: what each key is open for, by its name: an `OpenKey`, or an `OpenBatch`.
    """

    def __init__(
        self,
        figures: Figures,
        now: Callable[[], float],
        recorder: Recorder,
        numbers: Iterator[int] | None = None,
        name_of: Callable[[Any], Any] = identity,
    ) -> None:
        self.figures = figures
        self.background: deque[OpenKey] = deque()
        self.running: dict[Any, Any] = {}
        self.name_of = name_of
        self._now = now
        self._recorder = recorder
        self._numbers = numbers or count()

    def opened(self, value: Any, now: float) -> OpenKey:
        """A flight, which is not in the table."""
        flight = OpenKey(None, value, next(self._numbers), now)
        self._recorder.admitted(flight)
        return flight

    def enter(self, flight: OpenKey, key: Any, name: Any) -> None:
        """From now on others may wait for this flight."""
        flight.key, flight.name = key, name
        self.running[name] = flight

    def join(self, name: Any, waiter: Any, position: Any) -> bool:
        """Wait for a call that already runs for the key, if there is one."""
        flight = self.running.get(name)
        # One that has ended is still here if its key was changed meanwhile: see `forget`.
        if flight is None or flight.ended:
            return False
        # The first waiter of a refresh shares its call with no other waiter.
        self.figures.shared += flight.awaited
        flight.waiters.append((waiter, position))
        return True

    def refresh(self, key: Any, value: Any) -> None:
        """Call in the background for a key whose answer is old."""
        # Law L6: no refresh while a call for the key runs, which will bring a new answer anyway.
        name = self.name_of(key)
        if (present := self.running.get(name)) is None or not present.waits_for(name):
            flight = self.opened(value, self._now())
            flight.refreshing = True
            self.enter(flight, key, name)
            self.background.append(flight)

    def forget(self, flight: OpenKey) -> None:
        """Remove a flight from the table, if the hash of its key still finds it."""
        # A user may have changed a mutable key. It then stays in the table, and `join` sees that it has ended.
        if flight.name is None:
            return
        # Not `contextlib.suppress`, which takes three times as long as the rest: this runs for every key.
        try:
            if self.running.get(flight.name) is flight:
                del self.running[flight.name]
        except Exception:
            pass
