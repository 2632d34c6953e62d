"""Incremental clean-up of a table in memory: an endless round through entries that have a time to live.

Python cannot iterate over a dictionary bit by bit while it changes. So a list holds the entries too, and each entry
knows its place in the list. A new entry goes to the end. When an entry is removed, the last entry takes its place. A
round ends at the place where the list ended when the round began, so entries added meanwhile cannot make it endless.
Each step takes constant time.

A whole round also finds a lower bound of all timestamps. It counts an entry that moves from a place ahead of the round
to a place behind it. An entry added during the round is not older than the start of the round.

A second list holds the timestamps. In most stretches no entry has expired or has yet to begin its life, and ``min`` and
``max`` over that list find this in C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncio_operator.state.layout import NOT_BEGUN

Record = list[Any]
"""A stamped entry: ``[timestamp, value, place in the round, key in its dictionary, slot if that is another]``. Every
write makes a new record: a reader that holds a record can compare it with the entry and see whether it was replaced."""


class Round:
    """The records of a table, each once, in no order."""

    __slots__ = ("_end", "_next", "_oldest", "_records", "_times")

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._times: list[int] = []
        # The round still has to visit places from `_next` to `_end`. `_oldest` is the lower bound of all others.
        self._next = self._end = 0
        self._oldest = 0

    def put(self, entries: dict[bytes, Record], key: bytes, record: Record) -> None:
        """Puts a new record into the table's dictionary, and into the list at the place of the old record, if any."""
        old = entries.get(key)
        entries[key] = record
        record[3] = key
        if old is None:
            record[2] = len(self._records)
            self._records.append(record)
            self._times.append(record[0])
        else:
            place = record[2] = old[2]
            self._records[place] = record
            self._times[place] = record[0]

    def remove(self, record: Record) -> None:
        """Removes a record from the list. The last record takes its place."""
        place = record[2]
        last = self._records.pop()
        time = self._times.pop()
        if last is not record:
            self._records[place] = last
            self._times[place] = time
            last[2] = place
            if place < self._next:
                self._oldest = min(self._oldest, time)

    def sweep(self, count: int, deadline: int, now: int, discard: Callable[[Record], None]) -> int | None:
        """See `Table.sweep`. `discard` removes a record from the table, which then calls `remove`."""
        times, oldest = self._times, None
        count = min(count, len(times))
        while count > 0 and times:
            last = min(self._end, len(times))
            if self._next >= last:
                # A new round. What is written during it is stamped `now` or later, so the bound begins there.
                self._next, self._oldest = 0, now
                self._end = last = len(times)
            end = min(self._next + count, last)
            count -= end - self._next
            stretch = times[self._next : end]
            lowest = min(stretch)
            # All alive: one step for the whole stretch.
            if lowest > deadline and max(stretch) < NOT_BEGUN:
                self._oldest = min(self._oldest, lowest)
                self._next = end
            else:
                for _ in range(end - self._next):
                    self._look(deadline, now, discard)
            if self._next >= min(self._end, len(times)):
                oldest = self._oldest
        # An empty table has no oldest entry, and later ones are stamped `now` or later.
        return oldest if times else now

    def _look(self, deadline: int, now: int, discard: Callable[[Record], None]) -> None:
        """Discards the next record if it has expired, or counts it for the bound and moves on; begins its life before
        that."""
        if self._next >= len(self._times):
            return
        time = self._times[self._next]
        if time == NOT_BEGUN:
            time = self._times[self._next] = self._records[self._next][0] = now
        if time <= deadline:
            discard(self._records[self._next])
            # The last record is now at this place. It is next, unless it was added after the round began.
            if len(self._times) < self._end:
                return
        else:
            self._oldest = min(self._oldest, time)
        self._next += 1

    def _check(self, entries: list[Record]) -> None:
        """Checks every invariant of the structure, for tests. `entries` are the table's."""
        assert [record[2] for record in self._records] == list(range(len(self._records)))
        assert [record[0] for record in self._records] == self._times
        assert sorted(map(id, self._records)) == sorted(map(id, entries))
