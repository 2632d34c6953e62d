"""The contract of the queues of stream elements, the entry that holds an element, and the queue in input order.

A queue holds elements that were admitted and not yet emitted. It decides one thing: which completed element may leave
next. Law: the outputs of one input leave together, an element leaves exactly once, and `len` never exceeds `capacity`.
It does not know time, threads, tasks or functions. Source: Flink's ``StreamElementQueue``.

There are two interfaces. `try_put` and `emit_completed_element` check everything and use `Record` and `Watermark`. The
operator calls `put`, `put_watermark`, `peek_completed` and `poll_completed` for each element; these check nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from asyncio_operator.checks import positive_int
from asyncio_operator.elements import Record, Watermark
from asyncio_operator.errors import StateError

Element = Record[Any] | Watermark
Emit = Callable[[Element], None]


class Entry:
    """One element in a queue. `outputs` is None until the element is complete.

    Args:
        completed: the deque to which the entry is appended when it completes; None for none.
    """

    __slots__ = ("completed", "element", "outputs")

    def __init__(self, element: Any, completed: deque[Entry] | None = None) -> None:
        self.element = element
        self.completed = completed
        self.outputs: Sequence[Any] | None = None

    def complete(self, outputs: Iterable[Any]) -> bool:
        """Complete the element with its outputs, in order. The first call wins: False if it was complete already.

        Raises:
            StateError: the entry holds a watermark, which is complete from the start.
        """
        if self.outputs is not None:
            if type(self.element) is Watermark:
                raise StateError(f"{self.element!r} cannot be completed: a watermark is complete from the start")
            return False
        self.outputs = outputs if type(outputs) is tuple else tuple(outputs)
        # The order of completion is kept here, so the queue never has to search for what is complete.
        if self.completed is not None:
            self.completed.append(self)
        return True

    def __repr__(self) -> str:
        return f"Entry({self.element!r}, {'running' if self.outputs is None else self.outputs!r})"


class StreamElementQueue(ABC):
    """A bounded queue of elements. The implementation decides in which order they are emitted.

    Args:
        capacity: the maximum number of elements, records and watermarks together; at least 1.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = positive_int("capacity", capacity)

    def try_put(self, element: Element) -> Entry | None:
        """Add an element. The result is None if the queue is full. Never blocks.

        Raises:
            TypeError: the element is neither a `Record` nor a `Watermark`.
        """
        if type(element) not in (Record, Watermark):  # They are final: a subclass is a value, here as in the operator.
            raise TypeError(f"a queue holds Record and Watermark, not {type(element).__name__}: {element!r}")
        if len(self) >= self.capacity:
            return None
        return self.put_watermark(element) if isinstance(element, Watermark) else self.put(element)

    def has_completed_elements(self) -> bool:
        """Whether `emit_completed_element` would emit an element now."""
        return self.peek_completed() is not None

    def emit_completed_element(self, emit: Emit) -> None:
        """Pass the outputs of one completed input to `emit`, in order and with the input's timestamp.

        It does nothing if no element may leave. If `emit` raises, the element stays in the queue, and the outputs that
        were already passed come again.
        """
        entry = self.peek_completed()  # Polled only after the last output, so that an error loses nothing.
        if entry is None:
            return
        element = entry.element
        if type(element) is Watermark:
            emit(element)
        else:
            for output in entry.outputs or ():
                emit(Record(output, element.timestamp))
        self.poll_completed()

    def is_empty(self) -> bool:
        return len(self) == 0

    @abstractmethod
    def put(self, element: Any) -> Entry:
        """Add a record, or a bare value, without checking the capacity."""

    @abstractmethod
    def put_watermark(self, watermark: Watermark) -> Entry:
        """Add a watermark without checking the capacity."""

    @abstractmethod
    def peek_completed(self) -> Entry | None:
        """The entry that may leave next. It stays in the queue, and stays the next one until it is polled."""

    @abstractmethod
    def poll_completed(self) -> Entry | None:
        """Remove and return the entry that may leave next."""

    def values(self) -> list[Any]:
        """Every element not yet emitted, complete or not, in an order in which a replay is correct."""
        return [entry.element for entry in self.entries()]

    @abstractmethod
    def entries(self) -> list[Entry]:
        """The entries of `values`, in that order."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of elements in the queue."""


class OrderedStreamElementQueue(StreamElementQueue):
    """Records and watermarks leave in the order in which they were put.

    A completed element waits behind an older one that still runs (head-of-line blocking). So the capacity, which is the
    room for waiting results, must be larger than the number of calls in flight; otherwise one slow call stops the fast
    ones. Source: Flink's ``OrderedStreamElementQueue``.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._entries: deque[Entry] = deque()

    def put(self, element: Any) -> Entry:
        entry = Entry(element)
        self._entries.append(entry)
        return entry

    def put_watermark(self, watermark: Watermark) -> Entry:
        entry = Entry(watermark)
        entry.outputs = ()
        self._entries.append(entry)
        return entry

    def peek_completed(self) -> Entry | None:
        entries = self._entries
        if entries and entries[0].outputs is not None:
            return entries[0]
        return None

    def poll_completed(self) -> Entry | None:
        entries = self._entries
        if entries and entries[0].outputs is not None:
            return entries.popleft()
        return None

    def entries(self) -> list[Entry]:
        return list(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"OrderedStreamElementQueue({len(self)} of {self.capacity})"
