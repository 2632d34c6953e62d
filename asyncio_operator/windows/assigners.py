"""Which windows an element belongs to. All times are ints, milliseconds since the epoch, in UTC."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple, Protocol, runtime_checkable

from asyncio_operator.checks import Duration, duration, lasting, seconds
from asyncio_operator.elements import MAX_TIMESTAMP


class TimeWindow(NamedTuple):
    """The times from `start` to `end`, milliseconds; the end does not belong to the window."""

    start: int
    end: int

    @property
    def max_timestamp(self) -> int:
        """The last millisecond of the window, as far as 64 bits hold it."""
        return min(self.end - 1, MAX_TIMESTAMP)


@runtime_checkable
class WindowAssigner(Protocol):
    """Gives the windows of an element by its timestamp, milliseconds."""

    def assign(self, timestamp: int, /) -> Iterable[TimeWindow]: ...


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """Windows of one size that start every `slide`: an element is in each window that its timestamp lies in.

    Args:
        size, slide: seconds or a timedelta, rounded to milliseconds. If the slide is longer than the size, elements
            between two windows are in none.
        offset: by which windows start later than at the epoch; negative for earlier. Days of New York in winter have an
            offset of five hours.

    Raises:
        ConfigurationError: size or slide is shorter than a millisecond, or one of them is no duration.
    """

    size: Duration
    slide: Duration
    offset: Duration = 0

    _milliseconds: tuple[int, int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lengths = lasting("size", self.size), lasting("slide", self.slide)
        signed = isinstance(self.offset, int | float | timedelta) and not isinstance(self.offset, bool)
        duration("offset", abs(self.offset) if signed else self.offset)
        times = tuple(round(each * 1000) for each in (*lengths, seconds(self.offset)))
        object.__setattr__(self, "_milliseconds", times)

    def assign(self, timestamp: int, /) -> Sequence[TimeWindow]:
        """The windows that the timestamp is in, the earliest first."""
        size, slide, offset = self._milliseconds
        last = timestamp - (timestamp - offset) % slide
        first = last - (size - 1 - (timestamp - last)) // slide * slide
        return [TimeWindow(start, start + size) for start in range(first, last + 1, slide)]


class TumblingWindows(SlidingWindows):
    """Windows of one size that follow each other, so every element is in one; otherwise as `SlidingWindows`."""

    __slots__ = ()

    def __init__(self, size: Duration, offset: Duration = 0) -> None:
        super().__init__(size, size, offset)

    def assign(self, timestamp: int, /) -> tuple[TimeWindow]:
        """The window that the timestamp is in."""
        size, _, offset = self._milliseconds
        start = timestamp - (timestamp - offset) % size
        return (TimeWindow(start, start + size),)
