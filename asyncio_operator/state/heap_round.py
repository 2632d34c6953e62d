"""The endless round through a table in memory whose entries have a time to live, for incremental clean-up.

A dictionary cannot be walked bit by bit while it changes, so the entries stand in a list too, and each knows its place
there. A new entry goes to the end, and the last one takes the place of one that is removed. A round ends where the list
ended when it began, so what is added meanwhile does not lead it away from the rest. Each step takes constant time.

A whole round also finds a lower bound of all timestamps. It counts an entry that moves from before the round to behind
it, and what came since the round began is as late as that.

The times stand in a list of their own: most often nothing in a stretch is over, and ``min`` says so in C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Record = list[Any]
"""A stamped entry: ``[timestamp, value, place in the round, key in its dictionary, slot if that is another]``. What is
written anew is a new record, so that one in hand says whether it still is the entry."""


class Round:
    """The records of a table, each once, in no order."""

    __slots__ = ("_end", "_next", "_oldest", "_records", "_times")

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._times: list[int] = []
        # The places that are still to come, and the bound of all others.
        self._next = self._end = 0
        self._oldest = 0

    def put(self, entries: dict[bytes, Record], key: bytes, record: Record) -> None:
        """Puts a new record under a key into the table's dictionary, and where the old one stood if there is one."""
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
        """Lets a record go."""
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
        """As `Table.sweep`; `discard` takes a record out of the table, which calls `remove`."""
        times, oldest = self._times, None
        count = min(count, len(times))
        while count > 0 and times:
            last = min(self._end, len(times))
            if self._next >= last:
                self._next, self._oldest = 0, now
                self._end = last = len(times)
            end = min(self._next + count, last)
            count -= end - self._next
            lowest = min(times[self._next : end])
            if lowest > deadline:
                self._oldest = min(self._oldest, lowest)
                self._next = end
            else:
                for _ in range(end - self._next):
                    self._look(deadline, discard)
            if self._next >= min(self._end, len(times)):
                oldest = self._oldest
        return oldest if times else now

    def _look(self, deadline: int, discard: Callable[[Record], None]) -> None:
        """Looks at the next record."""
        if self._next >= len(self._times):
            return
        time = self._times[self._next]
        if time <= deadline:
            discard(self._records[self._next])
            # The last one has its place now, and is looked at next unless it came since the round began.
            if len(self._times) < self._end:
                return
        else:
            self._oldest = min(self._oldest, time)
        self._next += 1

    def _check(self, entries: list[Record]) -> None:
        """Every invariant of the structure, for tests; `entries` are the table's."""
        assert [record[2] for record in self._records] == list(range(len(self._records)))
        assert [record[0] for record in self._records] == self._times
        assert sorted(map(id, self._records)) == sorted(map(id, entries))
