"""Counters and latency histograms, cheap enough for a sample per element, and mergeable across tasks.

A histogram counts samples in buckets of 1/16 of a power of two. So a percentile is exact to 3.2 % at every scale, and
two histograms are merged by adding their buckets. A sample is appended to a list, and about a thousand samples at a
time are counted into the buckets. The bucket of a float is its first two bytes: sign, exponent and four bits of
mantissa. So the layout of IEEE 754 computes the logarithm. Source of the idea: HdrHistogram.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MANY_SAMPLES = 1024
"""The number of samples counted at a time. With fewer, each sample costs more; with more, the list takes more
memory."""

FEW_BYTES = 8  # Different bytes that are deleted one by one, before the rest is counted.

_NEGATIVE = 0x8000


class Histogram:
    """Durations in seconds.

    One thread writes: it appends to `samples`, or calls `add`, and calls `fold` when there are `MANY_SAMPLES`. Other
    threads may read at any time. A read during a `fold` may miss the samples of that fold; the next read has them.
    """

    __slots__ = ("_buckets", "_max", "samples")

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._buckets: dict[int, int] = {}
        self._max = 0.0

    @property
    def count(self) -> int:
        """The number of samples."""
        return sum(self._buckets.copy().values()) + len(self.samples)

    @property
    def sum(self) -> float:
        """The sum of the samples, within 3.2 %."""
        return sum(count * _middle(bucket) for bucket, count in self._folded()._buckets.items())

    def below(self, bounds: Sequence[float]) -> list[int]:
        """For each bound, a power of two in seconds, the number of smaller samples."""
        buckets = self._folded()._buckets
        return [sum(count for bucket, count in buckets.items() if bucket < _bucket(bound)) for bound in bounds]

    def add(self, sample: float) -> None:
        """Append a sample, and fold if there are `MANY_SAMPLES`."""
        samples = self.samples
        samples.append(sample)
        if len(samples) >= MANY_SAMPLES:
            self.fold()

    def add_many(self, sample: float, count: int) -> None:
        """The same sample several times."""
        self._add({_bucket(sample): count})
        self._max = max(self._max, sample)

    def fold(self) -> None:
        """Count the samples into the buckets, and empty the list."""
        samples = self.samples
        if samples:
            block = samples.copy()
            samples.clear()
            self._count(block)

    def merge(self, other: Histogram) -> None:
        """Add the samples of another histogram."""
        read = other._folded()
        self._add(read._buckets)
        self._max = max(self._max, read._max)

    def subtract(self, other: Histogram) -> None:
        """Remove the samples of another histogram, all of which were added before.

        If the largest sample is removed, that of the others is known within 6.3 %: it is the end of its bucket.
        """
        self.fold()
        buckets = self._buckets
        for bucket, count in other._folded()._buckets.items():
            left = buckets.get(bucket, 0) - count
            if left > 0:
                buckets[bucket] = left
            else:
                buckets.pop(bucket, None)
        largest = max(buckets, default=None)
        if largest is None or largest < _bucket(self._max):
            self._max = 0.0 if largest is None else _edge(largest + 1)

    def as_json(self) -> list[Any]:
        """The largest sample, then each bucket and its number of samples."""
        read = self._folded()
        return [read._max, *(number for item in read._buckets.items() for number in item)]

    @classmethod
    def of_json(cls, numbers: list[Any]) -> Histogram:
        """From the result of `as_json`."""
        made = cls()
        made._max = float(numbers[0])
        made._buckets = dict(zip(map(int, numbers[1::2]), map(int, numbers[2::2]), strict=True))
        return made

    def _count(self, block: list[float]) -> None:
        # Nearly all samples of a block have the same first byte, because it covers 16 powers of two (for example from
        # 30 microseconds to 2 seconds). So only the second bytes are counted, which costs a third of counting both. All
        # samples are counted as if they had the first byte of the first sample; then those with another are corrected.
        count = len(block)
        packed = struct.pack(f"<{count}d", *block)
        first, second = packed[7::8], packed[6::8]
        others = first.translate(None, first[:1])
        # To correct more than an eighth of the samples, one by one, would cost more than counting both bytes.
        if 8 * len(others) > count:
            pairs = bytearray(2 * count)
            pairs[0::2], pairs[1::2] = first, second
            buckets = Counter(struct.unpack(f">{count}H", pairs))
        else:
            base = first[0] << 8
            buckets = Counter()
            # Durations of one kind of call have few different bytes, and to delete all of one costs a tenth of counting
            # them.
            left = second
            for _ in range(FEW_BYTES):
                if left:
                    rest = left.translate(None, left[:1])
                    buckets[base | left[0]] = len(left) - len(rest)
                    left = rest
            for byte, times in Counter(left).items():
                buckets[base | byte] = times
            for other in set(others):
                at = first.find(other)
                while at >= 0:
                    buckets[base | second[at]] -= 1
                    buckets[other << 8 | second[at]] += 1
                    at = first.find(other, at + 1)
        self._add(buckets)
        # Finding the largest sample costs as much as counting, and is rarely needed.
        if max(buckets) >= _bucket(self._max):
            block.append(self._max)
            self._max = max(block)

    def _add(self, buckets: dict[int, int]) -> None:
        mine = self._buckets
        for bucket, count in buckets.items():
            # If the clock goes back, a duration is negative.
            bucket = bucket if bucket < _NEGATIVE else 0
            mine[bucket] = mine.get(bucket, 0) + count

    def _folded(self) -> Histogram:
        """A copy in which all samples are counted. This histogram does not change."""
        read = Histogram()
        read._buckets, read._max = self._buckets.copy(), self._max
        samples = self.samples.copy()
        if samples:
            read._count(samples)
        return read

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """A pickle has all samples counted, also if another thread writes meanwhile."""
        read = self._folded()
        return None, {"samples": read.samples, "_buckets": read._buckets, "_max": read._max}

    def percentiles(self) -> Latency:
        """The percentiles so far; all zero if there is no sample."""
        read = self._folded()
        buckets, largest = read._buckets, read._max
        wanted = [0.50, 0.95, 0.99]
        found: list[float] = []
        total, seen = sum(buckets.values()), 0
        for bucket in sorted(buckets):
            seen += buckets[bucket]
            while len(found) < len(wanted) and seen >= wanted[len(found)] * total:
                found.append(min(_middle(bucket), largest))
        p50, p95, p99 = found or [0.0, 0.0, 0.0]
        return Latency(p50=p50, p95=p95, p99=p99, max=largest)


def _bucket(sample: float) -> int:
    return int(struct.unpack(">Hxxxxxx", struct.pack(">d", sample))[0])


def _middle(bucket: int) -> float:
    return (_edge(bucket) + _edge(bucket + 1)) / 2 if bucket else 0.0


def _edge(bucket: int) -> float:
    """Where a bucket begins."""
    return float(struct.unpack(">d", struct.pack(">Hxxxxxx", bucket))[0])


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of a duration, in seconds."""

    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0
