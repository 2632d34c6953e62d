"""When the entries of a state with time to live are looked at: the schedules of the clean-ups.

The incremental clean-up:
Each access owes a look at the next few entries of an endless round through the table (`Table.sweep`), which removes
those that have expired. Two things make that cheap. Several accesses leave their looks to a later one, which makes them
all in one stretch. And a full round finds the oldest timestamp: until that entry expires no entry can have expired, and
an access owes no look.

The clean-up in compaction, if it works by itself, makes a whole round once enough entries may have expired: each write
then looks at a stretch. How many may have expired is known from the times of the writes: an entry that was written a
time to live ago has expired, unless it was written or touched again.

This module knows no cells, and no entry of the table.
"""

from __future__ import annotations

from collections import deque

from asyncio_operator.errors import StateError
from asyncio_operator.state.layout import STAMP_BIAS
from asyncio_operator.state.table import Table
from asyncio_operator.state.ttl_config import CleanupIncrementally

STRETCH = 256
"""Entries that the incremental clean-up looks at together, at least: to begin then costs a tenth of the whole."""

ALWAYS, NEVER = -STAMP_BIAS, STAMP_BIAS
"""Before and after every time that a timestamp can hold."""


class CleanupSchedule:
    """Counts accesses, and makes the looks that they owe.

    Args:
        ttl: how long an entry lives, in milliseconds.
        cleanup: None: no access owes a look.
        at_once: each access makes its looks itself, and leaves none to a later one.

    Attributes:
        counted: when the last access was that had to be counted.
        horizon: when the first entry may expire.

    An access at a time of ``counted <= now < horizon`` owes nothing and need not be reported. Callers ask for that
    themselves, because they do so with every access.
    """

    __slots__ = ("_cleanup", "_doubted", "_limit", "_name", "_owed", "_size", "_table", "_ttl", "counted", "horizon")

    def __init__(self, name: str, table: Table, ttl: int, cleanup: CleanupIncrementally | None, at_once: bool) -> None:
        self._name = name
        self._table = table
        self._ttl = ttl
        self._cleanup = cleanup is not None
        self._size = cleanup.size if cleanup else 1
        self._limit = 1 if at_once else -(-STRETCH // self._size)
        self._owed = 0
        self._doubted = False
        self.counted = ALWAYS
        self.horizon = ALWAYS if cleanup else NEVER

    def accessed(self, now: int, changes: int = 0) -> None:
        """Counts an access at this time, in milliseconds, whatever it changes.

        Raises:
            StateError: the clean-up failed.
        """
        if self.counted <= now < self.horizon:
            return
        if now != self.counted:
            self.settle()  # A look removes what has expired at the time of its access, not of a later one.
        if now < self.counted:
            # The clock went back: entries may now get timestamps below the bound that the round has found so far.
            self.doubt()
        self.counted = now
        if now >= self.horizon:
            self._owed += 1
            if self._owed >= self._limit:
                self.settle()

    def settle(self) -> None:
        """Makes the looks of all accesses so far, as at the time of the last.

        Raises:
            StateError: the clean-up failed.
        """
        if not self._owed:
            return
        count, self._owed = self._owed * self._size, 0
        oldest = _swept(self._name, self._table, count, self._ttl, self.counted)
        if oldest is not None:
            # A round during which there was doubt gives no bound: the next whole round does.
            self.horizon = ALWAYS if self._doubted else oldest + self._ttl
            self._doubted = False

    def doubt(self) -> None:
        """An entry may get a timestamp that lies in the past, so the bound of the running round may be wrong."""
        if self._cleanup:
            self.horizon, self._doubted = ALWAYS, True


PERIODS = 16
"""Periods of a time to live in which writes are counted together."""


class CompactionSchedule:
    """Counts writes, and makes a round through the table once enough of the entries may have expired.

    Args:
        ttl: how long an entry lives, in milliseconds.
        every: this number of entries is enough, if it is a quarter of those of the last round.

    `counted` and `horizon` are as of `CleanupSchedule`: every access is reported.
    """

    __slots__ = (
        "_enough",
        "_every",
        "_expired",
        "_looked",
        "_name",
        "_periods",
        "_table",
        "_ttl",
        "counted",
        "horizon",
    )

    def __init__(self, name: str, table: Table, ttl: int, every: int, now: int) -> None:
        self._name = name
        self._table = table
        self._ttl = ttl
        self._every = self._enough = every
        self._expired = 0
        # Entries of the running round that were looked at; None between rounds.
        self._looked: int | None = None
        # Beginning of a period, and its writes. What is stored already counts as enough, written now.
        self._periods: deque[tuple[int, int]] = deque([(now, every)])
        self.counted = self.horizon = ALWAYS

    def accessed(self, now: int, changes: int = 0) -> None:
        """Counts the changes of an access at this time, in milliseconds.

        Raises:
            StateError: the clean-up failed.
        """
        if not changes:
            return
        periods = self._periods
        length = self._ttl // PERIODS + 1
        if periods and now < periods[-1][0] + length:
            begin, count = periods.pop()
            periods.append((begin, count + changes))
        else:
            periods.append((now, changes))
        while periods and periods[0][0] + length + self._ttl <= now:
            self._expired += periods.popleft()[1]
        if self._looked is None and self._expired >= self._enough:
            self._looked = self._expired = 0
        if self._looked is not None:
            self._looked += STRETCH
            if _swept(self._name, self._table, STRETCH, self._ttl, now) is not None:
                self._enough = max(self._every, self._looked // 4)
                self._looked = None

    def settle(self) -> None:
        """Nothing is put off."""

    def doubt(self) -> None:
        """No bound of the timestamps is kept."""


def _swept(name: str, table: Table, count: int, ttl: int, now: int) -> int | None:
    try:
        return table.sweep(count, now - ttl, now)
    except Exception as error:
        raise StateError(f"cleaning up state {name!r} failed: {table.error(error)}") from error
