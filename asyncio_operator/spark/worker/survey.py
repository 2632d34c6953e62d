"""What the keys of a DataFrame show before any lookup: one row of figures for each task.

Keys come as hashes of 64 bits, and null where a part of the key is null. A task counts what `enrich` would look up,
batch by batch, and keeps a `Sketch` of its keys. Sketches of several tasks can be merged. This module knows neither
enrichers nor time.

Sources: Bar-Yossef et al., "Counting distinct elements in a data stream" (2002), and Beyer et al., "On synopses for
distinct-value estimation under multiset operations" (2007), for the smallest hashes; Chao and Lin, "Nonparametric lower
bounds for species richness and shared species richness under sampling without replacement" (2012), for the estimate of
the whole from a part.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pyspark import TaskContext

if TYPE_CHECKING:
    import pyarrow as pa

SIZE = 4096
"""The maximum number of keys in a sketch. Fewer keys are counted exactly, more with a standard error of
1 / sqrt(SIZE - 2), which is 1.6 %."""

SCHEMA = (
    "partition int, rows long, nulls long, cut boolean, lookups long, asked long, calls long, misses long, "
    "miss_calls long, hashes binary, batches binary"
)
"""The fields of a `TaskFigures` and of its sketch, as Spark DDL."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """The keys with the smallest hashes. Which keys are kept depends only on their hashes, so sketches can be merged.

    Attributes:
        hashes: at most `SIZE`, in ascending order.
        batches: for each key, the number of batches that contain it.
    """

    hashes: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    batches: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def merged(self, other: Sketch) -> Sketch:
        """The sketch of the keys of both."""
        hashes, places = np.unique(np.concatenate([self.hashes, other.hashes]), return_inverse=True)
        batches = np.zeros(len(hashes), np.int64)
        np.add.at(batches, places, np.concatenate([self.batches, other.batches]))
        return Sketch(hashes[:SIZE], batches[:SIZE])

    def with_batch(self, hashes: npt.NDArray[np.uint64]) -> Sketch:
        """The sketch with the distinct keys of one more batch."""
        # A full sketch keeps only smaller hashes, so nearly all keys of a large input end here.
        if len(self.hashes) == SIZE:
            hashes = hashes[hashes <= self.hashes[-1]]
        return self.merged(Sketch(hashes, np.ones(len(hashes), np.int64)))

    def distinct(self, part: float = 1.0) -> float:
        """The number of distinct keys, if the sketch has seen this part of all batches.

        For a part it is the estimate of Chao and Lin, in which batches are samples and keys are species. It is not less
        than the number seen, and on average not more than the true number. Keys that are in one batch only, or in many
        batches, are estimated well. Many rare keys beside a few frequent ones are estimated too low.
        """
        seen = float(len(self.hashes))
        # Hashes are uniform, so the largest of the smallest ones shows how many there are in the whole range.
        if seen == SIZE:
            seen = (SIZE - 1) * 2.0**64 / float(self.hashes[-1])
        if part >= 1.0 or not seen:
            return seen
        once, twice = float((self.batches == 1).mean()), float((self.batches == 2).mean())
        return seen + (seen * once * once / (2.0 * twice + part / (1.0 - part) * once) if once else 0.0)


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """What one task would look up.

    Attributes:
        rows, nulls: input rows, and those whose key has a null.
        cut: there are more rows, which were not read.
        lookups: distinct keys of each batch of rows, added up.
        asked, calls: those that the task does not remember, and the number of calls for them.
        misses, miss_calls: the same for keys that are not in a cache, which is empty at the start of the task.
    """

    partition: int
    rows: int
    nulls: int
    cut: bool
    lookups: int
    asked: int
    calls: int
    misses: int
    miss_calls: int
    sketch: Sketch


@dataclass(frozen=True, slots=True)
class Survey:
    """A function for `mapInArrow`. It is sent to the workers.

    Attributes:
        sample: rows to read at least; a batch is always read as a whole.
        max_batch: keys in one call.
        cache_rows: the maximum number of keys in the cache.
        remembered: the maximum number of keys that a task remembers.
    """

    sample: int
    max_batch: int
    cache_rows: int
    remembered: int = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields one row of `SCHEMA`."""
        import pyarrow as pa

        context = TaskContext.get()
        partition = 0 if context is None else context.partitionId()
        names = [part.split()[0] for part in SCHEMA.split(", ")]
        figures = self.figures(partition, batches)
        row = [getattr(figures, name) for name in names[:-2]]
        columns = [
            pa.array([value]) for value in (*row, figures.sketch.hashes.tobytes(), figures.sketch.batches.tobytes())
        ]
        columns[0] = columns[0].cast(pa.int32())
        yield pa.RecordBatch.from_arrays(columns, names=names)

    def figures(self, partition: int, batches: Iterator[pa.RecordBatch]) -> TaskFigures:
        """The figures of a task over batches of one column, which contains hashes."""
        rows = nulls = lookups = asked = calls = misses = miss_calls = 0
        sketch, cache, memory = Sketch(), _LeastRecentlyUsed(self.cache_rows), _LeastRecentlyUsed(self.remembered)
        cut = False
        for batch in batches:
            if rows >= self.sample:
                cut = True
                break
            column = batch.column(0)
            hashes = column.drop_null().to_numpy().view(np.uint64)
            # In the order of their first row, in which a cache would see them.
            keys = hashes[np.sort(np.unique(hashes, return_index=True)[1])]
            missed = cache.misses(keys)
            rows += batch.num_rows
            nulls += column.null_count
            new = memory.misses(keys) if self.remembered else len(keys)
            lookups += len(keys)
            asked += new
            calls += -(-new // self.max_batch)
            misses += missed
            miss_calls += -(-missed // self.max_batch)
            sketch = sketch.with_batch(keys)
        return TaskFigures(partition, rows, nulls, cut, lookups, asked, calls, misses, miss_calls, sketch)


def figures_of(row: dict[str, Any]) -> TaskFigures:
    """The figures in a row of `SCHEMA`."""
    hashes, batches = row.pop("hashes"), row.pop("batches")
    return TaskFigures(**row, sketch=Sketch(np.frombuffer(hashes, np.uint64), np.frombuffer(batches, np.int64)))


class _LeastRecentlyUsed:
    """A cache of at most `rows` keys, which drops the least recently used one."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._kept: OrderedDict[int, None] = OrderedDict()

    def misses(self, keys: npt.NDArray[np.uint64]) -> int:
        """Adds keys, and returns how many of them were not in the cache."""
        kept, misses = self._kept, 0
        for key in keys.tolist():
            if key in kept:
                kept.move_to_end(key)
                continue
            misses += 1
            kept[key] = None
            if len(kept) > self._rows:
                kept.popitem(last=False)
        return misses
