"""Random runs of the pipeline with all that a lookup can have: every key gets an outcome that it may have, once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import (
    AdaptiveCapacity,
    Batching,
    Cache,
    CircuitBreaker,
    EnricherError,
    FixedBackoff,
    RateLimit,
    Retry,
)
from asyncio_operator.lookup.key_batch import PENDING, Answer, Failure
from tests.lookup.helpers import Recorded, forever, lookups_of
from tests.operator.helpers import now, virtual

FATES = ["found", "missing", "fails", "fails once", "hangs", "deaf", "odd"]


class World:
    """An enricher by fates; it knows whether a key has two calls at a time."""

    def __init__(self, fates: list[tuple[str, float]], max_batch: int) -> None:
        self.fates = fates
        self.calls: Counter[int] = Counter()
        self.running: Counter[int] = Counter()
        self.twice: list[int] = []
        self.enricher = Recorded(self.answer, max_batch)

    def fate(self, key: int) -> str:
        return self.fates[key % len(self.fates)][0]

    def delay(self, key: int) -> float:
        return self.fates[key % len(self.fates)][1]

    async def answer(self, key: Any) -> Any:
        keys = key if isinstance(key, list) else [key]
        self.running.update(keys)
        self.twice += [k for k in keys if self.running[k] > 1]
        try:
            answers = []
            for k in keys:
                answers.append(await self.one(k))
                if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                    # A call that went on to wait for ever would hold its place for ever.
                    return [None] * len(keys) if isinstance(key, list) else None
        finally:
            self.running.subtract(keys)
        return answers if isinstance(key, list) else answers[0]

    async def one(self, key: int) -> Any:
        fate, delay = self.fates[key % len(self.fates)]
        self.calls[key] += 1
        if delay:
            await asyncio.sleep(delay)
        match fate:
            case "missing":
                return None
            case "fails":
                raise EnricherError("never", retryable=False)
            case "then fails" if self.calls[key] > 1:
                raise EnricherError("down")
            case "fails once" if self.calls[key] == 1:
                raise EnricherError("not now")
            case "hangs":
                await forever()
            case "deaf":
                try:
                    await asyncio.sleep(30)
                except asyncio.CancelledError:
                    await asyncio.sleep(1.5)
            case "odd":
                return 7
        return {"x": key}

    def may_be(self, key: int, outcome: Any, batched: bool, limited: bool) -> bool:
        fate = self.fate(key)
        if isinstance(outcome, Failure):
            return fate in ("fails", "then fails", "fails once", "hangs", "deaf") or batched or limited
        if isinstance(outcome, Answer):
            assert outcome.error is None or self.calls[key] > 1
            outcome = outcome.answer
        if fate in ("found", "fails once", "then fails"):
            return bool(outcome == {"x": key})
        return outcome is None if fate == "missing" else fate == "odd" and outcome == 7


@pytest.mark.usefixtures("silence")
@given(
    keys=st.lists(st.lists(st.integers(0, 12), max_size=9, unique=True), max_size=7),
    fates=st.lists(st.tuples(st.sampled_from(FATES), st.sampled_from([0, 0, 0.1, 0.5, 4])), min_size=1, max_size=6),
    ordered=st.booleans(),
    timed=st.booleans(),
    capacity=st.integers(1, 5) | st.just(AdaptiveCapacity(2, 1, 5)),
    buffer=st.integers(1, 20),
    max_batch=st.sampled_from([1, 1, 2, 5]),
    linger=st.sampled_from([0, 0.05]),
    cache=st.sampled_from(
        [
            None,
            Cache(),
            Cache(max_rows=2),
            Cache(expire_after_write=0.3, stale_if_error=True),
            Cache(expire_after_access=0.2, refresh_after=0.1, cache_missing=False),
            Cache(expire_after_write=9, refresh_after=0.001),
        ]
    ),
    retry=st.sampled_from([None, Retry(2, FixedBackoff(0)), Retry(3, FixedBackoff(0.7))]),
    rate_limit=st.sampled_from([None, None, RateLimit(3, per=1.0)]),
    breaker=st.sampled_from([None, None, CircuitBreaker(minimum_calls=2, open_for=1.0)]),
    attempt_timeout=st.sampled_from([None, None, 1.0]),
    pause=st.sampled_from([0.0, 0.001, 0.3]),
    source_pause=st.sampled_from([0.0, 0.05]),
)
def test_L1_L2_every_key_gets_an_outcome_that_it_may_have_whatever_happens(
    keys: list[list[int]],
    fates: list[tuple[str, float]],
    ordered: bool,
    timed: bool,
    capacity: Any,
    buffer: int,
    max_batch: int,
    linger: float,
    cache: Cache | None,
    retry: Retry | None,
    rate_limit: RateLimit | None,
    breaker: CircuitBreaker | None,
    attempt_timeout: float | None,
    pause: float,
    source_pause: float,
) -> None:
    async def main() -> None:
        world = World(fates, max_batch)
        enricher = world.enricher
        done = lookups_of(
            enricher,
            keys,
            ordered=ordered,
            capacity=capacity,
            buffer=buffer,
            timeout=6.0,
            attempt_timeout=attempt_timeout,
            retry=retry,
            batching=Batching(linger=linger) if max_batch > 1 else None,
            rate_limit=rate_limit,
            circuit_breaker=breaker,
            cache=cache,
            timed=timed,
            pause=pause,
            source_pause=source_pause,
        )
        await done.run()
        ended = now()
        await asyncio.sleep(500)
        limited = breaker is not None
        for batch in done.batches:
            assert PENDING not in batch.outcomes
            for key, outcome in zip(batch.keys, batch.outcomes, strict=True):
                cut = attempt_timeout is not None and world.delay(key) > attempt_timeout
                assert world.may_be(key, outcome, max_batch > 1, limited or cut), (key, outcome, ended)
        assert enricher.running == 0
        most = capacity if isinstance(capacity, int) else capacity.maximum
        assert enricher.most <= most
        # A call that ignores its cancellation at its deadline may still run when its key is asked for again.
        assert all(world.fate(key) == "deaf" or max_batch > 1 for key in world.twice)

    virtual(main)()
