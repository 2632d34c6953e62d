"""Segments of event time in unordered mode: which rows may overtake which.

A row that overtakes another row may make it late for a downstream watermark, which is the largest event time so far
minus a delay. So the rows of a partition are cut into segments. A segment is as long as possible, but no two of its
rows are further apart in time than that delay. Within a segment, rows leave when they are answered. No row leaves
before the last row of an earlier segment. Source of the idea: Flink's ``UnorderedStreamElementQueue``, whose segments
end at watermarks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from asyncio_operator.arrow.key_arrays import Ints

Mask = np.ndarray[Any, np.dtype[np.bool_]]


class Segmenter:
    """Numbers the segments of a partition, batch by batch.

    Args:
        delay: the largest distance between rows of one segment, in the unit of their event times.
    """

    def __init__(self, delay: int) -> None:
        self._delay = delay
        self._segment = 0
        self._low: int | None = None
        self._high = 0

    def number(self, times: pa.Array) -> Ints:
        """The segment number of each row of the next batch. A row without event time belongs to the present segment."""
        delay, segment, low, high = self._delay, self._segment, self._low, self._high
        numbers = []
        # Row by row, because where a segment begins depends on where the one before it began.
        for time in times.cast(pa.int64()).to_pylist():
            if time is not None:
                if low is None:
                    low = high = time
                elif time < low:
                    low = time
                elif time > high:
                    high = time
                if high - low > delay:
                    segment += 1
                    low = high = time
            numbers.append(segment)
        self._segment, self._low, self._high = segment, low, high
        return np.array(numbers, dtype=np.int64)


class Segmented(Protocol):
    """The rows of a batch.

    Attributes:
        number: number of the batch in its partition, from 0.
        segments: the segment number of each row.
        left: for each row, whether it has left.
    """

    number: int
    segments: Ints
    left: Mask


class Gate:
    """Decides which answered rows may leave, over all batches delivered so far."""

    def __init__(self) -> None:
        self._batches: dict[int, tuple[Any, Segmented, bool] | None] = {}
        """Delivered batches by number; None for a batch whose rows have all left."""
        self._first = 0
        self._open = 0

    def pass_through(
        self, batch: Any, rows: Segmented, ended: bool, answered: Callable[[Any], Mask]
    ) -> Iterator[tuple[Any, Mask, bool]]:
        """The delivered batch, and other batches of which rows may leave now.

        Yields a batch, the mask of its rows that leave now, and whether all its rows have left.

        Args:
            batch: is passed to `answered`, which returns for each row whether it is answered and has not left.
            ended: whether every row of the batch is answered.
        """
        delivered = rows.number
        # Batches are delivered as they end. Behind a number that is missing no row may leave: it may belong to any
        # segment.
        self._batches[delivered] = batch, rows, ended
        expected, all_left = self._first, True
        for number in sorted(self._batches):
            all_left = all_left and number == expected
            expected = number + 1
            entry = self._batches[number]
            # All of it has left. Its number stays until those before it are gone too, so that it is not taken for
            # missing.
            if entry is None:
                continue
            batch, rows, ended = entry
            leaving = answered(batch)
            if all_left and len(leaving):
                # The first row that must wait decides which segment is open: rows of later segments wait too.
                waiting = ~(rows.left | leaving)
                self._open = int(rows.segments[np.argmax(waiting)] if waiting.any() else rows.segments[-1])
            # Segments have ascending numbers over all batches, so one number says which rows may leave.
            leaving &= rows.segments <= self._open
            rows.left |= leaving
            all_left = all_left and bool(rows.left.all())
            done = ended and bool(rows.left.all())
            if done:
                self._batches[number] = None
            if done or number == delivered or leaving.any():
                yield batch, leaving, done
        while self._batches.get(self._first, ()) is None:
            del self._batches[self._first]
            self._first += 1
