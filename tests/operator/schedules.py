"""Random schedules: what every call does, what the options are, how the input comes and the consumer takes.

Times are whole seconds, so that much happens at the same moment. Half a second means one turn of the loop.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import hypothesis.strategies as st

from asyncio_operator import (
    AdaptiveCapacity,
    Batching,
    CircuitBreaker,
    ExponentialBackoff,
    FixedBackoff,
    Hedge,
    RateLimit,
    Retry,
)


@dataclass(frozen=True)
class Act:
    """What the function does in one attempt for one value; a batch lasts as long as the longest act of its values."""

    seconds: float = 0
    ending: str = "result"
    when_cancelled: str = "ends"  # "ends" | "cleans up" | "swallows" | "fails"
    inside: str = "lane"  # "lane" | "task" | "group": where the waiting is done
    outputs: int = 1


@dataclass(frozen=True)
class Options:
    """Of one operator."""

    mode: Any = "ordered"
    capacity: int | AdaptiveCapacity = 1
    buffer: int = 1
    timeout: float | None = None
    attempt_timeout: float | None = None
    retry: Retry | None = None
    on_error: Any = "fail"  # "fail" | "skip" | "replace" | "raise"
    on_timeout: str = "none"  # "none" | "hook" | "method" | "raise"
    flatten: bool = False
    batching: Batching | None = None
    rate_limit: RateLimit | None = None
    circuit_breaker: CircuitBreaker | None = None
    hedge: Hedge | None = None
    traced: bool = False


@dataclass(frozen=True)
class Part:
    """One run, and when it is interrupted, in turns of the loop or in outputs; a snapshot, in turns and calls of hooks;
    None: never."""

    options: Options
    snapshot_after: int | None = None
    close_after: int | None = None
    cancel_after: int | None = None


@dataclass(frozen=True)
class Schedule:
    """A part begins with the snapshot of the one before it, and goes on with the input from there."""

    parts: tuple[Part, ...]
    scripts: tuple[
        tuple[Act, ...] | None, ...
    ]  # of each input, one act per attempt, the last one again; None: Watermark
    records: tuple[bool, ...]
    keys: int
    gaps: tuple[float, ...] | None  # before each input; None is an ordinary iterable
    input_error: bool
    input_swallows: bool  # its cancellation: it gives the next input at once
    pauses: tuple[float, ...]  # of the consumer, in turn


def _acts() -> list[Act]:
    """Acts to choose from, the simplest first; what goes well is the most frequent."""
    rng = random.Random(7)
    acts = {
        Act(
            seconds=rng.choice([0, 0, 0.5, 1, 1, 2, 3, 4, 5, 9, 30]),
            ending=rng.choice(
                ["result"] * 8
                + ["error"] * 4
                + ["bad", "bad", "lost", "busy", "hopeless", "cancelled", "junk", "short"]
            ),
            when_cancelled=rng.choice(["ends", "ends", "ends", "cleans up", "swallows", "fails"]),
            inside=rng.choice(["lane", "lane", "lane", "task", "group"]),
            outputs=rng.choice([1, 1, 0, 2, 3]),
        )
        for _ in range(1500)
    }
    plain = Act()
    return sorted(
        acts,
        key=lambda act: (sum(a != b for a, b in zip(vars(act).values(), vars(plain).values(), strict=True)), str(act)),
    )


ACTS = st.sampled_from(_acts())
SCRIPTS = st.lists(ACTS, min_size=1, max_size=4).map(tuple)

INPUTS = st.sampled_from([True] * 6 + [False]).flatmap(lambda record: SCRIPTS if record else st.none())

RETRIES = st.builds(
    Retry,
    max_attempts=st.sampled_from([2, 3, 4, 1]),
    backoff=st.sampled_from(
        [FixedBackoff(0), FixedBackoff(1), FixedBackoff(3), ExponentialBackoff(1, 2, 4, jitter=False)]
    ),
    on=st.sampled_from([Exception] * 5 + [ConnectionError]),
    if_result=st.sampled_from([None, lambda result: "bad" in str(result)]),
)
ADAPTIVE = [AdaptiveCapacity(initial=1, maximum=3), AdaptiveCapacity(3, 2, 5)]
BATCHINGS = st.builds(Batching, max_size=st.integers(1, 6), linger=st.sampled_from([0, 1, 2]))
RATE_LIMITS = st.builds(
    RateLimit, rate=st.sampled_from([1, 2, 4]), per=st.sampled_from([1, 2]), burst=st.sampled_from([None, 1, 3])
)
BREAKERS = st.builds(CircuitBreaker, minimum_calls=st.integers(1, 4), open_for=st.sampled_from([1, 5]))
HEDGES = st.builds(Hedge, st.sampled_from([1, 2, 3]), extra=st.sampled_from([0.5, 0.5, 0.3]))


def seldom(strategy: st.SearchStrategy, times: int) -> st.SearchStrategy:
    """None, `times` out of `times` + 1 times."""
    return st.sampled_from([False] * times + [True]).flatmap(lambda some: strategy if some else st.none())


COMMON: dict[str, st.SearchStrategy] = {
    "buffer": st.integers(1, 9),
    "timeout": st.sampled_from([None, 7, 4, 3, 12, 1]),
    "on_error": st.sampled_from(["skip", "replace"] * 4 + ["fail", "raise"]),
    "on_timeout": st.sampled_from(["none", "hook", "method", "raise"]),
    "flatten": st.booleans(),
}
PLAIN = st.builds(Options, mode=st.sampled_from(["ordered", "unordered"]), capacity=st.integers(1, 5), **COMMON)
MANAGED = st.builds(
    Options,
    mode=st.sampled_from(["ordered", "unordered", "key_ordered"]),
    capacity=st.sampled_from([1, 2, 3, 4, 5, 1, 2, 3, 4, 5, *ADAPTIVE]),
    attempt_timeout=st.sampled_from([None, None, 2, 3, 1]),
    retry=seldom(RETRIES, 1),
    batching=seldom(BATCHINGS, 1),
    rate_limit=seldom(RATE_LIMITS, 4),
    circuit_breaker=seldom(BREAKERS, 6),
    traced=st.sampled_from([False] * 5 + [True]),
    **COMMON,
)
HEDGED = st.builds(
    lambda options, hedge: options if options.mode == "key_ordered" else replace(options, hedge=hedge), MANAGED, HEDGES
)
OPTIONS = st.sampled_from([MANAGED, MANAGED, HEDGED, PLAIN]).flatmap(lambda options: options)
PARTS = st.builds(
    Part,
    options=OPTIONS,
    snapshot_after=seldom(st.integers(1, 120), 1),
    close_after=seldom(st.integers(0, 12), 7),
    cancel_after=seldom(st.integers(1, 60), 7),
)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    count = draw(st.integers(0, 16))
    many: Any = {"min_size": count, "max_size": count}
    return Schedule(
        parts=tuple(draw(st.lists(PARTS, min_size=1, max_size=3))),
        scripts=tuple(draw(st.lists(INPUTS, **many))),
        records=tuple(draw(st.lists(st.booleans(), **many))),
        keys=draw(st.integers(1, 4)),
        gaps=draw(st.none() | st.lists(st.sampled_from([0, 0, 0.5, 1, 5]), **many).map(tuple)),
        input_error=draw(st.sampled_from([False] * 5 + [True])),
        input_swallows=draw(st.booleans()),
        pauses=tuple(draw(st.lists(st.sampled_from([0, 0, 0.5, 1, 6]), min_size=1, max_size=5))),
    )
