"""Arrays of a packed result: what `array_send` of the server makes of each value, read for a whole column at a time.

The bytes of one array, all numbers big-endian:

| bytes | what |
| --- | --- |
| 4, 4, 4 | dimensions; 1 if an element is null; the OID of the element type |
| 4, 4 for each dimension | its length, its lower bound |
| 4 and the bytes, for each element | its length, or -1 for null; its value as the server's binary protocol has it |

An empty array has no dimension. Where an element begins depends on the one before it. So the elements are found in
rounds, the n-th of every array at once, except where all have one width and none is null. No element becomes a Python
object.

Source: PostgreSQL, src/backend/utils/adt/arrayfuncs.c, `array_send`.
"""

from __future__ import annotations

from struct import unpack_from
from typing import Any

import numpy as np
import pyarrow as pa

Ints = np.ndarray[Any, np.dtype[np.int64]]

HEADER = 20
"""The bytes before the elements of an array of one dimension."""

FEW = 16
"""A round for fewer arrays takes more time than to read their elements one by one."""


class DimensionsError(Exception):
    """An array has several dimensions."""


class PackedArrays:
    """The arrays of a column.

    Args:
        packed: their bytes, one after the other.
        starts: where each begins. A null array has the bytes of none, so it has the start of the next one.
        valid: whether each is an array; None if none is null.
        width: the bytes of an element, or 0 if they vary.

    Attributes:
        offsets: for each array the number of its first element, and at the end the number of all elements.
        at: where the value of each element begins.
        sizes: the bytes of each element; -1 for null.

    Raises:
        DimensionsError: one has several dimensions.
    """

    def __init__(self, packed: bytes, starts: Ints, valid: Any, width: int) -> None:
        self._packed = packed
        held = starts if valid is None else starts[valid]
        dimensions = self.values(held, ">i4")
        if (dimensions > 1).any():
            raise DimensionsError
        filled = held[dimensions == 1]
        lengths = np.zeros(len(starts), np.int64)
        places = np.arange(len(starts)) if valid is None else np.flatnonzero(valid)
        lengths[places[dimensions == 1]] = counts = self.values(filled + 12, ">i4")
        self.offsets = np.zeros(len(starts) + 1, np.int32)
        np.cumsum(lengths, out=self.offsets[1:])
        firsts = np.cumsum(counts) - counts
        if width and not self.values(filled + 4, ">i4").any():
            step = 4 + width
            self.at = np.repeat(filled + HEADER + 4 - firsts * step, counts) + np.arange(self.offsets[-1]) * step
            self.sizes = np.full(len(self.at), width, np.int64)
            return
        self.at = np.empty(self.offsets[-1], np.int64)
        self.sizes = np.empty(self.offsets[-1], np.int64)
        # The elements of arrays whose first one is at `at` and has the number `slots`. None is without one.
        at, slots, left, done = filled + HEADER, firsts, counts, 0
        while len(at) >= FEW:
            sizes = self.values(at, ">i4")
            numbers = slots + done
            self.at[numbers], self.sizes[numbers] = at + 4, sizes
            at = at + np.maximum(sizes, 0) + 4
            done += 1
            more = left > done
            if not more.all():
                at, slots, left = at[more], slots[more], left[more]
        for place, slot, count in zip(at.tolist(), slots.tolist(), left.tolist(), strict=True):
            for number in range(slot + done, slot + count):
                [size] = unpack_from(">i", self._packed, place)
                self.at[number], self.sizes[number] = place + 4, size
                place += 4 + max(size, 0)

    def values(self, places: Ints, kind: str) -> Ints:
        """The numbers at these places, each within the bytes."""
        width = int(kind[-1])
        if len(self._packed) < width:
            return np.empty(0, kind[1:])
        # A number may begin at every byte.
        everywhere: Any = np.ndarray((len(self._packed) - width + 1,), kind, self._packed, 0, (1,))
        taken: Ints = everywhere[places].astype(kind[1:])
        return taken

    def numbers(self, width: int) -> tuple[Ints, Any, int]:
        """The elements as numbers of that many bytes, any number for null; which are valid, None for all; the nulls."""
        valid = self.sizes >= 0
        nulls = len(valid) - int(np.count_nonzero(valid))
        if not nulls:
            return self.values(self.at, f">i{width}"), None, 0
        # Nothing may follow the last null.
        return self.values(np.where(valid, self.at, 0), f">i{width}"), valid, nulls

    def texts(self, kind: pa.DataType) -> pa.Array:
        """The elements as text or bytes."""
        # With what lies between two elements they are the values of one array, of which every second one is taken.
        ends = np.empty(2 * len(self.at) + 1, np.int32)
        ends[:-1:2] = self.at
        ends[1::2] = self.at + np.maximum(self.sizes, 0)
        ends[-1] = ends[-2] if len(self.at) else 0
        everything = pa.Array.from_buffers(kind, len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(self._packed)])
        numbers = np.arange(len(self.at)) * 2
        return everything.take(pa.array(numbers, mask=self.sizes < 0))
