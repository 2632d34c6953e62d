"""The contract of the queues of stream elements, and the entry that stands for one element inside.

A queue holds elements that were admitted and not yet emitted. It decides one thing: which completed element may leave
next. Law: one input's outputs leave together, an element leaves exactly once, and `len` never passes `capacity`. It
does not know time, threads, tasks, or what a function is. Source: Flink's ``StreamElementQueue``.

Two faces: `try_put` and `emit_completed_element` check everything and speak in `Record` and `Watermark`; `put`,
`put_watermark`, `peek_completed` and `poll_completed` check nothing and are what the operator runs per element.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from asyncio_operator.elements import Record, Watermark
from asyncio_operator.errors import StateError
from asyncio_operator.policies.options import positive_int

Element = Record[Any] | Watermark
Emit = Callable[[Element], None]


class Entry:
    """One element inside a queue. `outputs` is None until it is complete.

    Args:
        completed: where the queue wants the entry to be put when it completes, if it does.
    """

    __slots__ = ("completed", "element", "outputs")

    def __init__(self, element: Any, completed: deque[Entry] | None = None) -> None:
        self.element = element
        self.completed = completed
        self.outputs: Sequence[Any] | None = None

    def complete(self, outputs: Iterable[Any]) -> bool:
        """End the element with its outputs, in order. False if it was complete already: the first one wins.

        Raises:
            StateError: the entry is a watermark's, which is complete from birth.
        """
        if self.outputs is not None:
            if type(self.element) is Watermark:
                raise StateError(f"{self.element!r} cannot be completed: a watermark is complete from birth")
            return False
        self.outputs = outputs if type(outputs) is tuple else tuple(outputs)
        if self.completed is not None:
            self.completed.append(self)
        return True

    def __repr__(self) -> str:
        return f"Entry({self.element!r}, {'running' if self.outputs is None else self.outputs!r})"


class StreamElementQueue(ABC):
    """A bounded queue of elements, emitted in an order that the implementation decides.

    Args:
        capacity: how many elements, records and watermarks alike, may be inside; at least 1.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = positive_int("capacity", capacity)

    def try_put(self, element: Element) -> Entry | None:
        """Take an element in, or give None if the queue is full. Never blocks.

        Raises:
            TypeError: the element is neither a `Record` nor a `Watermark`.
        """
        if not isinstance(element, Record | Watermark):
            raise TypeError(f"a queue holds Record and Watermark, not {type(element).__name__}: {element!r}")
        if len(self) >= self.capacity:
            return None
        return self.put_watermark(element) if isinstance(element, Watermark) else self.put(element)

    def has_completed_elements(self) -> bool:
        """Whether `emit_completed_element` would take an element out now."""
        return self.peek_completed() is not None

    def emit_completed_element(self, emit: Emit) -> None:
        """Hand one completed input's outputs to `emit`, in order and with the input's timestamp; nothing if none may
        leave.

        If `emit` raises, the element stays, and its first outputs may come again.
        """
        entry = self.peek_completed()
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
        """Take a record, or a bare value, in without asking whether there is room."""

    @abstractmethod
    def put_watermark(self, watermark: Watermark) -> Entry:
        """Take a watermark in without asking whether there is room."""

    @abstractmethod
    def peek_completed(self) -> Entry | None:
        """The entry that may leave next, left inside; the same one until it is polled."""

    @abstractmethod
    def poll_completed(self) -> Entry | None:
        """Take out the entry that may leave next."""

    def values(self) -> list[Any]:
        """Every element not yet emitted, complete or not, in an order in which replay is correct."""
        return [entry.element for entry in self.entries()]

    @abstractmethod
    def entries(self) -> list[Entry]:
        """The entries of `values`, in that order."""

    @abstractmethod
    def __len__(self) -> int:
        """How many elements are inside."""


def watermark_entry(watermark: Watermark) -> Entry:
    """An entry that is complete from birth."""
    entry = Entry(watermark)
    entry.outputs = ()
    return entry
