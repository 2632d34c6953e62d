"""Which of the rows of a key held at the time of an input row (law X16), for all rows of a batch at once.

Each found row has a version: the time from which it holds. It is sorted by key and version, and each input row is
searched for in the rows of its key, in numpy. No step has a Python object for a row, a key or a value.

Law: two values are compared as Spark compares them. A date is the midnight of its day, and a time without a zone is one
in the zone of the session: the earlier one where a clock shows it twice, and where a clock skips it, the moment that it
would have been without the change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from asyncio_operator.arrow.column_answers import ColumnAnswers, runs
from asyncio_operator.arrow.key_arrays import Ints, canonical_array

DAY = 86_400_000_000  # Microseconds.

FURTHEST_DAY = 100_000_000
"""Days from 1970 beyond which dates are all the same: microseconds do not reach much further, and no timestamp does."""


@dataclass(frozen=True, slots=True)
class AsOf:
    """The two columns that are compared."""

    time: int  # Position of the times among the columns of the input.
    version: int  # Position of the versions among the columns of a found row.
    # The zone of dates and of timestamps without a zone, if the columns are of two types; None: they are of one.
    zone: str | None = None

    def held(self, versions: Any, times: pa.Array, answers: ColumnAnswers, key_of: Ints) -> Ints:
        """For each input row the found row with the greatest version that is not after its time, or -1: there is none.

        Args:
            versions: a column of the table of the answers.
            times: a column of the input rows.
            answers: the found rows of keys.
            key_of: the key of each input row; -1: none.
        """
        counts = np.append(answers.counts, 0)
        key = np.repeat(np.arange(len(counts)), counts)
        found = runs(answers.starts, answers.counts)
        taken = versions.take(pa.array(found if answers.rows is None else answers.rows[found], pa.int64()))
        if isinstance(taken, pa.ChunkedArray):
            taken = taken.combine_chunks()
        if taken.null_count:
            present = taken.is_valid().to_numpy(zero_copy_only=False)
            taken, found, key = taken.drop_null(), found[present], key[present]
            counts = np.bincount(key, minlength=len(counts))
        if not len(found):
            return np.full(len(key_of), -1)
        # Numbers in the order of the values. Any number for null.
        kind = taken.type
        if self.zone is not None:
            values, moments = _moments(taken, self.zone), _moments(times, self.zone)
        elif kinds.is_integer(kind) or kinds.is_temporal(kind):
            values, moments = _integers(taken), _integers(times)
        else:
            both = canonical_array(pa.concat_arrays([taken, times.cast(kind)])).dictionary_encode()
            ranks = np.empty(len(both.dictionary), np.int64)
            ranks[pc.sort_indices(both.dictionary).to_numpy()] = np.arange(len(ranks))
            ranked = ranks[both.indices.fill_null(0).to_numpy()]
            values, moments = ranked[: len(taken)], ranked[len(taken) :]
        if not ((values[1:] >= values[:-1]) | (key[1:] != key[:-1])).all():
            # It is stable: of equal versions the enricher's last one stays the last.
            order = np.lexsort((values, key))
            values, found = values[order], found[order]
        ends = np.cumsum(counts)
        first, high = (ends - counts)[key_of], ends[key_of]
        low, last = first, len(values) - 1
        # Each input row halves the part of its key in which its version may end.
        for _ in range(int(counts.max()).bit_length()):
            middle = (low + high) // 2
            holds = (low < high) & (values[np.minimum(middle, last)] <= moments)
            low, high = np.where(holds, middle + 1, low), np.where(holds, high, middle)
        is_there = low > first
        if times.null_count:
            is_there &= times.is_valid().to_numpy(zero_copy_only=False)
        return np.where(is_there, found[low - 1], -1)


def _moments(times: pa.Array, zone: str) -> Ints:
    """Microseconds since the epoch. Source: Spark's casts to timestamp, which are those of ``java.time``."""
    shown, is_date = _integers(times), kinds.is_date(times.type)
    if is_date:
        shown = shown.clip(-FURTHEST_DAY, FURTHEST_DAY) * DAY
    elif times.type.tz is not None:
        return shown
    if zone == "UTC":
        return shown
    moments = pc.assume_timezone(
        pa.array(shown, pa.timestamp("us")),
        zone,
        ambiguous="earliest",
        # The day begins when the clock has been changed; a time that is skipped is one before the change.
        nonexistent="latest" if is_date else "earliest",
    )
    utc = _integers(moments)
    return utc if is_date else shown - (_integers(pc.local_timestamp(moments)) - utc)


def _integers(values: pa.Array) -> Ints:
    """The values as they are stored. Any number for null."""
    if kinds.is_date32(values.type):
        values = values.cast(pa.int32())
    values = values.cast(pa.int64())
    numbers: Ints = (values.fill_null(0) if values.null_count else values).to_numpy()
    return numbers
