"""Which windows an element belongs to. All times are ints, milliseconds since the epoch, in UTC."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, Protocol, runtime_checkable

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

    def __post_init__(self) -> None:
        _check(self.offset, size=self.size, slide=self.slide)

    def assign(self, timestamp: int, /) -> list[TimeWindow]:
        """The windows that the timestamp is in, the earliest first."""
        size, slide, offset = (_milliseconds(each) for each in (self.size, self.slide, self.offset))
        last = timestamp - (timestamp - offset) % slide
        first = last - (size - 1 - (timestamp - last)) // slide * slide
        return [TimeWindow(start, start + size) for start in range(first, last + 1, slide)]


@dataclass(frozen=True, slots=True)
class TumblingWindows:
    """Windows of one size that follow each other, so every element is in one; otherwise as `SlidingWindows`."""

    size: Duration
    offset: Duration = 0

    def __post_init__(self) -> None:
        _check(self.offset, size=self.size)

    def assign(self, timestamp: int, /) -> tuple[TimeWindow]:
        """The window that the timestamp is in."""
        size = _milliseconds(self.size)
        start = timestamp - (timestamp - _milliseconds(self.offset)) % size
        return (TimeWindow(start, start + size),)


def _milliseconds(value: Duration) -> int:
    return round(seconds(value) * 1000)


def _check(offset: Any, **lengths: object) -> None:
    for name, length in lengths.items():
        lasting(name, length)
    signed = isinstance(offset, int | float | timedelta) and not isinstance(offset, bool)
    duration("offset", abs(offset) if signed else offset)
