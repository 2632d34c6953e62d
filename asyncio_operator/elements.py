"""What flows through the operator: records and watermarks; and the snapshot of those in flight.

A `Record` is a value with an optional event time; a `Watermark` says that no record with a smaller or equal event time
follows it. Event time is an ``int``, milliseconds since the epoch. Both are values: equal if their fields are, and
never changed after they were made (not enforced: a frozen dataclass costs three times as much to make, and one is made
per element). Source: the elements of Flink's ``StreamElement``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

from asyncio_operator.checks import must_be

T = TypeVar("T")

MIN_TIMESTAMP = -(2**63)
MAX_TIMESTAMP = 2**63 - 1
"""The earliest and the latest event time: times are stored in 64 bits."""


def event_time(timestamp: object) -> int:
    """The timestamp, if it is valid. A `Record` does not check its own, because that would cost time per element.

    Raises:
        ConfigurationError: it is not an int.
    """
    if type(timestamp) is not int:
        raise must_be("timestamp", timestamp, "an int, milliseconds since the epoch")
    return timestamp


@final
class Record(Generic[T]):
    """A value with its event time (milliseconds since the epoch, or None)."""

    __match_args__ = ("value", "timestamp")
    __slots__ = ("timestamp", "value")

    def __init__(self, value: T, timestamp: int | None = None) -> None:
        self.value = value
        self.timestamp = timestamp

    def __eq__(self, other: object) -> bool:
        if type(other) is not Record:
            return NotImplemented
        return bool(self.value == other.value) and self.timestamp == other.timestamp

    def __hash__(self) -> int:
        return hash((Record, self.value, self.timestamp))

    def __repr__(self) -> str:
        return f"Record({self.value!r}, timestamp={self.timestamp!r})"


@final
class Watermark:
    """No record with an event time smaller than or equal to `timestamp` (milliseconds) follows.

    Raises:
        ConfigurationError: the timestamp is not an int.
    """

    __match_args__ = ("timestamp",)
    __slots__ = ("timestamp",)

    def __init__(self, timestamp: int) -> None:
        self.timestamp = event_time(timestamp)

    def __eq__(self, other: object) -> bool:
        if type(other) is not Watermark:
            return NotImplemented
        return self.timestamp == other.timestamp

    def __hash__(self) -> int:
        return hash((Watermark, self.timestamp))

    def __repr__(self) -> str:
        return f"Watermark({self.timestamp})"


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """The inputs that a run had not emitted yet, in an order in which replay is correct.

    It is picklable if the elements are. It may be restored more than once, with other options, and in another mode.

    Attributes:
        elements: pairs of an element (a value, a `Record` or a `Watermark`) and the attempts that it has used: those
            that have ended in failure.
        collected: records that the callbacks of timers have collected, and that have not left yet. They leave before
            the first watermark of the elements.
    """

    elements: tuple[tuple[Any, int], ...] = ()
    collected: tuple[Record[Any], ...] = ()

    def __len__(self) -> int:
        """How many elements there are."""
        return len(self.elements)
