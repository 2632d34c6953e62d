"""Counters and latency histograms, cheap enough to be kept per element and mergeable across tasks.

A histogram counts samples in buckets of 1/32 of a power of two, so a percentile is exact to 3.2 % at every scale, and
two histograms are merged by adding their buckets. A sample is an append to a list; the list is folded into the buckets
in bulk. The bucket of a float is read off its bits, sign, exponent and five bits of mantissa: the layout of IEEE 754
does the logarithm. Source of the idea: HdrHistogram.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

_SHIFT = 47
_THINNED_FROM = 1024
_THIN = 8


class Histogram:
    """Durations in seconds.

    `samples` is where callers append; `fold` counts and empties it. Of a block of more than a thousand samples every
    eighth is counted eightfold (and the largest exactly): it is what keeps the cost of a sample near that of the
    append.
    """

    __slots__ = ("_buckets", "_max", "samples")

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._buckets: Counter[int] = Counter()
        self._max = 0.0

    def add(self, sample: float) -> None:
        """Append a sample, and fold when there are many."""
        samples = self.samples
        samples.append(sample)
        if len(samples) > _THINNED_FROM:
            self.fold()

    def fold(self) -> None:
        """Count the samples."""
        # A copy, because another thread may append or fold; it may cost a few samples, not an error.
        samples = self.samples[:]
        if not samples:
            return
        del self.samples[: len(samples)]
        largest = max(samples)
        self._max = max(self._max, largest)
        weight = _THIN if len(samples) > _THINNED_FROM else 1
        bits = memoryview(array("d", samples[::weight])).cast("B").cast("q")
        for bucket, count in Counter([b >> _SHIFT for b in bits]).items():
            self._buckets[bucket] += count * weight

    def merge(self, other: Histogram) -> None:
        """Add what the other one has counted."""
        self.fold()
        other.fold()
        self._buckets.update(other._buckets)
        self._max = max(self._max, other._max)

    def percentiles(self) -> Latency:
        """The figures so far; all zero if there is no sample."""
        self.fold()
        wanted = [0.50, 0.95, 0.99]
        found: list[float] = []
        total, seen = sum(self._buckets.values()), 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            while len(found) < len(wanted) and seen >= wanted[len(found)] * total:
                found.append(min(_middle(bucket), self._max))
        p50, p95, p99 = found or [0.0, 0.0, 0.0]
        return Latency(p50=p50, p95=p95, p99=p99, max=self._max)


def _middle(bucket: int) -> float:
    if bucket <= 0:
        return 0.0
    low, high = array("q", [bucket << _SHIFT, (bucket + 1) << _SHIFT]).tobytes(), array("d")
    high.frombytes(low)
    return (high[0] + high[1]) / 2


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
        attempt_latency: from start to end of a call.
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
