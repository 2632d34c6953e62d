"""The queue in which records of one key run one after the other, and keys are independent: Flink's FLIP-519.

The oldest record of a key that has not ended occupies the key. Later records of that key wait in line behind it.
`next_runnable` returns the records at the head of a line, each once, the oldest first. A key becomes free when its
record completes, not when the record is emitted. If a record's call still runs when the record completes (`hold`), the
key stays occupied until `release`. Records leave as in the unordered queue: in the order of completion, which within a
key is the input order, and never across a watermark. Records behind a watermark may run before it leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from asyncio_operator.checks import plain_function
from asyncio_operator.elements import Record
from asyncio_operator.errors import describe, describe_error, function_error
from asyncio_operator.queues.base import Entry
from asyncio_operator.queues.unordered import UnorderedStreamElementQueue
from asyncio_operator.state.heap_queue import HeapPriorityQueue


class KeyedEntry(Entry):
    """A record in the line of its key. `number` is its place in the input."""

    __slots__ = ("freed", "held", "key", "line", "number")

    def __init__(
        self,
        element: Any,
        completed: deque[Entry] | None,
        key: Any,
        line: deque[KeyedEntry],
        number: int,
        freed: Callable[[KeyedEntry], None],
    ) -> None:
        super().__init__(element, completed)
        self.key = key
        self.line = line
        self.number = number
        self.freed = freed
        self.held = False

    def complete(self, outputs: Iterable[Any]) -> bool:
        first = super().complete(outputs)
        if first and not self.held:
            self.freed(self)
        return first


class KeyOrderedStreamElementQueue(UnorderedStreamElementQueue):
    """Between two watermarks, records leave in the order in which they complete. Each key runs one record at a time.

    Args:
        key: a function of a record's value; its results are hashable. If a hash changes while the record is in the
            queue, completing or releasing the entry raises `FunctionError`.
    """

    def __init__(self, capacity: int, key: Callable[[Any], Any]) -> None:
        super().__init__(capacity)
        plain_function("key", key, "a function of a record's value", "the value")
        self._key = key
        self._lines: dict[Any, deque[KeyedEntry]] = {}
        self._runnable: HeapPriorityQueue[KeyedEntry] = HeapPriorityQueue(lambda entry: entry.number)
        self._number = 0

    def next_runnable(self) -> KeyedEntry | None:
        """The oldest record that was not returned yet and whose key is free, or None. It occupies its key from now."""
        while (entry := self._runnable.poll()) is not None:
            if entry.outputs is None:  # A record may complete while it waits here, by its deadline for example.
                return entry
        return None

    def hold(self, entry: KeyedEntry) -> None:
        """Keep the entry's key occupied after it completes, until `release`: its call may still be running."""
        entry.held = True

    def release(self, entry: KeyedEntry) -> None:
        """The call of a held entry has returned."""
        entry.held = False
        if entry.outputs is not None:
            self._free(entry)

    def put(self, element: Any) -> KeyedEntry:
        key = self._key(element.value if type(element) is Record else element)
        # Nothing after this line can fail. This line can: it hashes the user's key, and compares it with other keys.
        line = self._lines.setdefault(key, deque())
        # Runnable records are ordered by this number: a key that becomes free must not overtake older ones.
        self._number += 1
        self._size += 1
        last = self._segments[-1]
        entry = KeyedEntry(element, last.completed, key, line, self._number, self._free)
        last.inside[entry] = None
        if not line:
            self._runnable.add(entry)
        line.append(entry)
        return entry

    def _free(self, entry: KeyedEntry) -> None:
        line = entry.line
        if line[0] is not entry:  # It ended while it waited in line. The head of the line frees the key.
            return
        # Records behind the head may have ended while they waited.
        while line and line[0].outputs is not None:
            line.popleft()
        if line:
            self._runnable.add(line[0])
            return
        # A key whose hash has changed breaks law Q7 without a sign: two of its records may be in two lines.
        try:
            if self._lines.pop(entry.key) is not entry.line:
                raise KeyError(entry.key)  # The changed key is equal to another one.
        except BaseException as error:
            element = describe(entry.element.value if type(entry.element) is Record else entry.element)
            says = f" with {describe_error(error)}; it must return a key whose hash and equality do not change"
            raise function_error("key failed", says, element=element, cause=error) from error

    def __repr__(self) -> str:
        return f"KeyOrderedStreamElementQueue({len(self)} of {self.capacity}, {len(self._lines)} keys)"
