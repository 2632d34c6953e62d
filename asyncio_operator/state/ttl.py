"""State TTL: entries that expire, over the table of either backend.

An entry is stored with the time of its last write (or, with ON_READ_AND_WRITE, its last touch), in milliseconds since
the epoch, and is expired once ``timestamp + ttl <= now``. Python's integers do not overflow; a timestamp in the future
is alive. Times are absolute, so time spent stopped counts.

What removes expired entries:

- reading: a read deletes each expired entry that it finds;
- incrementally: each access owes a look at the next few entries of an endless round through the table (`Table.sweep`),
  whatever their keys. A round ends where the table ended when the round began. The work for each access is bounded,
  except that RocksDB now and then rewrites a file. It takes no space on disk: an index by expiry would cost a second
  write for each write and a third for each touch. Two things make the looks cheap. Several accesses leave theirs to a
  later one, which makes them all in one stretch; what shows the stored entries, such as `num_entries`, `keys` and a
  snapshot, has them made first (`settle`). And a full round finds the oldest timestamp: until that entry expires no
  entry can have expired, and an access owes no look;
- in full snapshots: the backend does not write entries that are expired (`cleaned`);
- in compaction: `compact` sweeps the table once, in batches, then RocksDB frees the space. With `every`, a whole round
  is made once enough entries may have expired: each write then looks at a stretch. How many may have expired is known
  from the times of the writes: an entry that was written a time to live ago has expired, unless it was written or
  touched again. rocksdict has no compaction filter, and RocksDB's own expiry follows the wall clock, and not the clock
  that was passed in.

Entries from before the state got a time to live are `NOT_BEGUN`. Whatever looks at one first, a read or a clean-up,
stamps it: its life begins then.

This module does not know which backend it uses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from asyncio_operator.state.descriptors import (
    CleanupInCompaction,
    CleanupIncrementally,
    StateTtlConfig,
    StateVisibility,
    UpdateType,
)
from asyncio_operator.state.entries import Batch, Entries, Table
from asyncio_operator.state.layout import NOT_BEGUN, STAMP_BIAS, Stored

REMOVAL_BATCH = 1000  # Entries that are deleted in one batch: 100 KB of work between two writes.

STRETCH = 256
"""Entries that the incremental clean-up looks at together, at least: to begin then costs a tenth of the whole."""

ALWAYS, NEVER = -STAMP_BIAS, STAMP_BIAS  # Before and after every time that a timestamp can hold.


Sweep = Callable[[int, int], int | None]  # `Table.sweep` of a number of entries, as at a time.


class Schedule:
    """When the entries of a state are looked at: never. Times are milliseconds.

    `counted` is the time of the last access that had to be counted, `horizon` when the first entry may expire. An
    access at a time between them owes nothing, which callers see for themselves, because they ask with every access.
    """

    counted, horizon = ALWAYS, NEVER

    def accessed(self, now: int, changes: int = 0) -> None:
        """Counts an access at this time."""

    def settle(self) -> None:
        """Makes the looks of all accesses so far, as at the time of the last."""

    def doubt(self) -> None:
        """An entry may get a timestamp that lies in the past, so the bound of the running round may be wrong."""


class CleanupSchedule(Schedule):
    """Counts accesses, whatever they change, and runs the checks that are due for them, each at once if `at_once`."""

    def __init__(self, sweep: Sweep, ttl: int, size: int, at_once: bool) -> None:
        self._sweep, self._ttl, self._size = sweep, ttl, size
        self._limit = 1 if at_once else -(-STRETCH // size)
        self._owed = 0
        self._doubted = False
        self.horizon = ALWAYS

    def accessed(self, now: int, changes: int = 0) -> None:
        if self.counted <= now < self.horizon:
            return
        if now > self.counted:
            self.settle()  # A look removes what has expired at the time of its access, not of a later one.
        elif now < self.counted:
            # The clock went back. Entries may now be older than the round's bound, and a look as of before remove them.
            self.doubt()
        self.counted = now
        if now >= self.horizon:
            self._owed += 1
            if self._owed >= self._limit:
                self.settle()

    def settle(self) -> None:
        if not self._owed:
            return
        count, self._owed = self._owed * self._size, 0
        oldest = self._sweep(count, self.counted)
        if oldest is not None:
            # A round during which there was doubt gives no bound: the next whole round does.
            self.horizon = ALWAYS if self._doubted else oldest + self._ttl
            self._doubted = False

    def doubt(self) -> None:
        self.horizon, self._doubted = ALWAYS, True


PERIODS = 16  # Periods of a time to live in which writes are counted together.


class CompactionSchedule(Schedule):
    """Counts writes, and makes a round through the table once enough entries may have expired: `every`, and a quarter
    of those of the last round. It puts nothing off, and every access is reported."""

    def __init__(self, sweep: Sweep, ttl: int, every: int, now: int) -> None:
        self._sweep, self._ttl, self.horizon = sweep, ttl, ALWAYS
        self._every = self._enough = every
        self._expired = 0
        # Entries of the running round that were looked at; None between rounds.
        self._looked: int | None = None
        # Beginning of a period, and its writes. What is stored already counts as enough, written now.
        self._periods: deque[tuple[int, int]] = deque([(now, every)])

    def accessed(self, now: int, changes: int = 0) -> None:
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
            if self._sweep(STRETCH, now) is not None:
                self._enough = max(self._every, self._looked // 4)
                self._looked = None


_Load = Callable[[bytes], Stored | None]
_Store = Callable[[bytes, Stored], None]


class LivingEntries(Entries):
    """What lives of a table whose codec stamps its entries: reads remove what has expired, writes begin a life."""

    def __init__(self, backend: Any, table: Table, ttl: StateTtlConfig) -> None:
        self.backend, self.table, self.codec = backend, table, table.codec
        self._ttl = self.milliseconds = ttl.milliseconds
        self._now = backend.now
        self._touch = ttl.update_type is UpdateType.ON_READ_AND_WRITE
        self._return_expired = ttl.visibility is StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
        self.strategy = ttl.strategy
        incremental = ttl.strategy(CleanupIncrementally)
        # Whether a change of key is an access too.
        self.every_record = incremental is not None and incremental.every_record
        # Where a read may return an expired entry, each access cleans up at once: otherwise what a read returns would
        # depend on how many looks were put off.
        self._schedule = Schedule()
        if incremental is not None:
            self._schedule = CleanupSchedule(self._sweep, self._ttl, incremental.size, at_once=self._return_expired)
        compaction = ttl.strategy(CleanupInCompaction)
        if compaction is not None and compaction.every is not None:
            self._schedule = CompactionSchedule(self._sweep, self._ttl, compaction.every, self._now())
        self._accessed, self.settle = self._schedule.accessed, self._schedule.settle
        self.get_slot, self.put_slot = self._entry_access()

    def error(self, error: Exception) -> Exception:
        return self.table.error(error)

    def _entry_access(self) -> tuple[_Load, _Store]:
        """The functions that read and write a slot's only entry.

        They run with every access, so what they use is in local variables: reading one costs a quarter of reading an
        attribute.
        """
        get_slot, put_slot, now_of = self.table.get_slot, self.table.put_slot, self._now
        split, stamp, living, ttl, touch = self.codec.split, self.codec.stamp, self._living, self._ttl, self._touch
        schedule, accessed = self._schedule, self._schedule.accessed

        def get(slot: bytes) -> Stored | None:
            now = now_of()
            rest = stored = get_slot(slot)
            if stored is not None:
                written, rest = split(stored)
                # As in `_living`, whose call takes as long as the rest of a read.
                if touch or not now - ttl < written < NOT_BEGUN:
                    rest = living(slot, b"", stored, now)
            # After the read, which may return an expired entry that the clean-up would remove. The condition is that of
            # `accessed`, asked here too because a call takes as long as the rest of a read.
            if not schedule.counted <= now < schedule.horizon:
                accessed(now)
            return rest

        def put(slot: bytes, stored: Stored) -> None:
            now = now_of()
            put_slot(slot, stamp(now, stored))
            if not schedule.counted <= now < schedule.horizon:
                accessed(now, 1)

        return get, put

    def cleaned(self, stored: Any) -> Any | None:
        """What a clean-up leaves of a stored entry: None if it has expired, and a stamped one if its life begins."""
        now, (written, rest) = self._now(), self.codec.split(stored)
        if written == NOT_BEGUN:
            return self.codec.stamp(now, rest)
        return None if written + self._ttl <= now else stored

    def is_over(self, stored: Any, now: int) -> bool:
        """Whether a stored entry has expired at this time, in milliseconds."""
        written, _ = self.codec.split(stored)
        return written + self._ttl <= now

    def get(self, slot: bytes, sub: bytes) -> Stored | None:
        """The entry at an address without its timestamp, or None; an expired one is removed."""
        now = self._now()
        stored = self.table.get(slot, sub)
        rest = None if stored is None else self._living(slot, sub, stored, now)
        self._accessed(now)
        return rest

    def put(self, slot: bytes, sub: bytes, stored: Stored) -> None:
        """Writes an entry, whose life begins now."""
        now = self._now()
        self.table.put(slot, sub, self.codec.stamp(now, stored))
        self._accessed(now, 1)

    def delete(self, slot: bytes, sub: bytes) -> None:
        self.table.delete(slot, sub)
        self.access()

    def scan(self, slot: bytes) -> Iterator[tuple[bytes, Stored]]:
        """The iteration removes the expired entries that it passes, and does not read ahead."""
        rows = self.table.scan(slot)
        self.access()
        return self._scan(slot, rows)

    def _scan(self, slot: bytes, rows: Iterator[tuple[bytes, Stored]]) -> Iterator[tuple[bytes, Stored]]:
        now, backend = self._now(), self.backend
        for sub, stored in rows:
            if backend.closed:
                backend.check_open()  # Also in a forked child, where nothing below may touch RocksDB.
            written, rest = self.codec.split(stored)
            expired = written + self._ttl <= now
            # The rows show a moment of the past: to delete or touch by them would undo a write that came since.
            if (expired or self._is_touched(written, now)) and not self.table.holds(slot, sub, stored):
                rest = None if expired and not self._return_expired else rest
            else:
                rest = self._living(slot, sub, stored, now)
            if rest is not None:
                yield sub, rest

    def is_empty(self, slot: bytes) -> bool:
        """Whether no living entry is in the slot. It removes the expired ones that it passes, and touches none."""
        # The first entry of a slot decides nearly always; a slot full of expired entries is read in growing steps.
        count, living = 1, False
        while not living and (rows := self.table.head(slot, count)):
            for sub, stored in rows:
                living = self._return_expired or not self.is_over(stored, self._now())
                if living:
                    break
                self.table.delete(slot, sub)
            count = min(2 * count, REMOVAL_BATCH)
        self.access()
        return not living

    def stage(
        self,
        batch: Batch,
        slot: bytes,
        changes: Iterable[tuple[bytes, Stored | None]],
        clear: bool,
        begun: int | None = None,
    ) -> None:
        """As of `Entries`. The lives of what is written begin now, or began at the time `begun`."""
        now = self._now()
        if begun is not None:
            self._schedule.doubt()
        stamp, at = self.codec.stamp, now if begun is None else begun
        stamped = [(sub, None if stored is None else stamp(at, stored)) for sub, stored in changes]
        self.table.stage(batch, slot, stamped, clear)
        self._accessed(now, len(stamped))

    def access(self) -> None:
        self._accessed(self._now())

    def sweep_all(self, copy: Table | None = None) -> None:
        """Removes every expired entry, of the state or of a copy of it, in batches of bounded size."""
        now, table = self._now(), self.table if copy is None else copy
        for _ in range(2):  # What is left of a round that has begun, then a whole one.
            while table.sweep(REMOVAL_BATCH, now - self._ttl, now) is None:
                pass

    def _sweep(self, count: int, now: int) -> int | None:
        return self.table.sweep(count, now - self._ttl, now)

    def _living(self, slot: bytes, sub: bytes, stored: Any, now: int) -> Any | None:
        """The entry without its timestamp, touched if reading renews or begins its life. An expired one is deleted:
        None, unless expired ones are returned."""
        written, rest = self.codec.split(stored)
        if written + self._ttl <= now:
            self.table.delete(slot, sub)
            return rest if self._return_expired else None
        if self._is_touched(written, now):
            self.table.put(slot, sub, self.codec.stamp(now, rest))
        return rest

    def _is_touched(self, written: int, now: int) -> bool:
        """Whether a read gives an entry another timestamp."""
        return written != now and (self._touch or written == NOT_BEGUN)
