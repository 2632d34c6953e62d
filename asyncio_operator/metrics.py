"""Counters and latency histograms, cheap enough to be kept per element and mergeable across tasks.

A histogram counts samples in buckets of 1/16 of a power of two, so a percentile is exact to 3.2 % at every scale, and
two histograms are merged by adding their buckets. A sample is an append to a list; the list is folded into the buckets
a thousand at a time, and every sample counts. The bucket of a float is its first two bytes, sign, exponent and four
bits of mantissa: the layout of IEEE 754 does the logarithm. Source of the idea: HdrHistogram.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MANY_SAMPLES = 1024
"""Samples that are counted in bulk: counting fewer at a time costs more each, and keeping more costs memory."""

_NEGATIVE = 0x8000


class Histogram:
    """Durations in seconds.

    One thread counts: it appends to `samples`, or calls `add`, and calls `fold` when there are `MANY_SAMPLES`. Other
    threads may read at any moment. A block that is being folded at that moment may be missing from what they read; the
    next reading has it.
    """

    __slots__ = ("_buckets", "_max", "samples")

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._buckets: dict[int, int] = {}
        self._max = 0.0

    @property
    def count(self) -> int:
        """How many samples there are."""
        return sum(self._buckets.copy().values()) + len(self.samples)

    def add(self, sample: float) -> None:
        """Append a sample, and fold when there are many."""
        samples = self.samples
        samples.append(sample)
        if len(samples) >= MANY_SAMPLES:
            self.fold()

    def fold(self) -> None:
        """Count the samples, and empty the list of them."""
        samples = self.samples
        if samples:
            block = samples.copy()
            samples.clear()
            self._count(block)

    def merge(self, other: Histogram) -> None:
        """Add what the other one has counted."""
        read = other._folded()
        self._add(read._buckets)
        self._max = max(self._max, read._max)

    def _count(self, block: list[float]) -> None:
        buckets = _counted(block)
        self._add(buckets)
        # Looking for the largest costs as much as the counting, and is rarely of use.
        if max(buckets) >= _bucket(self._max):
            block.append(self._max)
            self._max = max(block)

    def _add(self, buckets: dict[int, int]) -> None:
        mine = self._buckets
        for bucket, count in buckets.items():
            # A clock that goes back gives negative durations.
            bucket = bucket if bucket < _NEGATIVE else 0
            mine[bucket] = mine.get(bucket, 0) + count

    def _folded(self) -> Histogram:
        """A copy in which all samples are counted; this one is not changed."""
        read = Histogram()
        read._buckets, read._max = self._buckets.copy(), self._max
        samples = self.samples.copy()
        if samples:
            read._count(samples)
        return read

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """What travels is counted, whatever the thread that counts does meanwhile."""
        read = self._folded()
        return None, {"samples": read.samples, "_buckets": read._buckets, "_max": read._max}

    def percentiles(self) -> Latency:
        """The figures so far; all zero if there is no sample."""
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


def _counted(samples: Sequence[float]) -> dict[int, int]:
    """How many samples are in each bucket.

    The first byte of a float is the same for nearly all samples of a block, because it spans 16 powers of two (from 30
    microseconds to 2 seconds, say). So the second bytes are counted, which costs a third of counting both: all under
    the first byte of the first sample, then those with another one are taken out.
    """
    count = len(samples)
    packed = struct.pack(f"<{count}d", *samples)
    first, second = packed[7::8], packed[6::8]
    others = first.translate(None, first[:1])
    if 8 * len(others) > count:
        pairs = bytearray(2 * count)
        pairs[0::2], pairs[1::2] = first, second
        found = Counter(struct.unpack(f">{count}H", pairs))
    else:
        base = first[0] << 8
        found = Counter({base | byte: times for byte, times in Counter(second).items()})
        for other in set(others):
            at = first.find(other)
            while at >= 0:
                found[base | second[at]] -= 1
                found[other << 8 | second[at]] += 1
                at = first.find(other, at + 1)
    return found


def _bucket(sample: float) -> int:
    return int(struct.unpack(">Hxxxxxx", struct.pack(">d", sample))[0])


def _middle(bucket: int) -> float:
    low, high = (struct.unpack(">d", struct.pack(">Hxxxxxx", edge))[0] for edge in (bucket, bucket + 1))
    return float(low + high) / 2 if bucket else 0.0


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of a duration, in seconds."""

    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0


@dataclass(frozen=True, slots=True)
class OperatorStatistics:
    """What an operator has done in its latest run. It counts records, not watermarks.

    Attributes:
        admitted: elements read from the input.
        emitted: elements whose outputs were all handed over; `skipped` ones are among them.
        in_flight: calls running now.
        buffered: elements admitted and not yet emitted.
        backing_off: elements waiting for their next attempt.
        retries: attempts beyond an element's first.
        timeouts: elements that passed their deadline.
        failures: elements that ended in an error, whatever `on_error` made of it.
        skipped: elements dropped by ``on_error="skip"``.
        backpressure_seconds: time in which no input was read because the buffer was full.
        latency: from admission to completion of an element.
        attempt_latency: from start to end of a call; every call counts, except those that the end of the run cancels.
    """

    admitted: int = 0
    emitted: int = 0
    in_flight: int = 0
    buffered: int = 0
    backing_off: int = 0
    retries: int = 0
    timeouts: int = 0
    failures: int = 0
    skipped: int = 0
    backpressure_seconds: float = 0.0
    latency: Latency = field(default_factory=Latency)
    attempt_latency: Latency = field(default_factory=Latency)
