"""The contract of priority queues, and of the sets among them.

A queue returns its smallest element first: the one with the smallest priority, ``key(element)``. Each implementation
says in which order elements of equal priority leave, and that order is fixed. `add` and `remove` return whether the
head may have changed, so that the owner of a timer knows when to move its wake-up.

A set holds one of equal elements, belongs to a range of key groups, and can list one key group alone: a snapshot writes
key groups, and a rescale moves them. Source: Flink's ``InternalPriorityQueue`` and
``KeyGroupedInternalPriorityQueue``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from asyncio_operator.checks import plain_function
from asyncio_operator.errors import StateError, describe

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class PriorityQueue(ABC, Generic[T]):
    """A queue that gives its smallest element first."""

    @abstractmethod
    def add(self, element: T) -> bool:
        """Puts an element in; False only if the head surely has not changed."""

    @abstractmethod
    def remove(self, element: T) -> bool:
        """Takes an element out, wherever it is. False if it is absent, or the head surely has not changed."""

    @abstractmethod
    def poll(self) -> T | None:
        """Takes the smallest element out and returns it; None if there is none."""

    @abstractmethod
    def peek(self) -> T | None:
        """The smallest element, or None; it stays inside."""

    @abstractmethod
    def clear(self) -> None:
        """Takes every element out."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[T]:
        """The elements as they are now, in any order; later changes do not disturb the iteration."""

    def add_all(self, elements: Iterable[T]) -> bool:
        """Adds each element; True if the head may have changed."""
        changed = False
        for element in elements:
            changed = self.add(element) or changed
        return changed

    def is_empty(self) -> bool:
        """Whether nothing is inside."""
        return len(self) == 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} elements>"


class PriorityQueueSet(PriorityQueue[T]):
    """A priority queue without equal elements, over a range of key groups."""

    @abstractmethod
    def subset_for_key_group(self, group: int) -> list[T]:
        """The elements whose key lies in `group`, in any order.

        Raises:
            StateError: the group lies outside the set's range.
        """


def check_function(argument: str, function: F) -> F:
    """The function given; ConfigurationError if it is none, or a coroutine function."""
    plain_function(argument, function, "a function of one element", "the element")
    return function


def check_priority(priority: Any, element: object) -> None:
    """Raises StateError for NaN, also in tuples and lists.

    NaN is neither smaller nor larger than any number, so it would break the order of all others without an error. A
    priority that cannot be compared at all raises by itself.
    """
    if isinstance(priority, tuple | list):
        for part in priority:
            check_priority(part, element)
        return
    try:
        if priority == priority:
            return
    except ArithmeticError:
        pass  # A signalling NaN of `Decimal`.
    raise StateError(
        f"the priority of {describe(element)} is {describe(priority)}, which cannot be compared with others: "
        "leave the element out, or give it a number such as float('inf'), which is the last"
    )
