"""Random runs of the pipeline with all that a lookup can have: every key gets an outcome that it may have, once."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator import (
    AdaptiveCapacity,
    Batching,
    Cache,
    CircuitBreaker,
    CircuitOpenError,
    ElementTimeoutError,
    EnricherError,
    FixedBackoff,
    RateLimit,
    Retry,
)
from asyncio_operator.errors import ResultError
from asyncio_operator.lookup.key_batch import PENDING, Answer, Failure
from asyncio_operator.lookup.places import HELD
from asyncio_operator.state.entries import ABSENT
from tests.lookup.helpers import Recorded, forever, lookups_of, outcomes_of
from tests.lookup.test_known import Elsewhere
from tests.operator.helpers import virtual

FATES = ["found", "found", "missing", "fails", "fails once", "then fails", "hangs", "deaf", "odd"]
SAYS = {"fails": "never", "fails once": "not now", "then fails": "down"}
"""By fate, what the errors of a key say."""


class World:
    """An enricher by fates; it knows whether a key has two calls at a time.

    Attributes:
        running: by key, the tasks of its calls.
        twice: keys that had two calls at a time, neither of which had been cut.
        trouble: keys of calls that were cut, or have failed: these alone may end by a deadline, where no attempt is
            refused.
        refuses: whether attempts may be refused.
    """

    def __init__(self, fates: list[tuple[str, float]], max_batch: int, refuses: bool = False) -> None:
        self.fates = fates
        self.refuses = refuses
        self.calls: Counter[int] = Counter()
        self.running: defaultdict[int, list[asyncio.Task[Any]]] = defaultdict(list)
        self.twice: list[int] = []
        self.trouble: set[int] = set()
        self.max_batch = max_batch

    def fate(self, key: int) -> str:
        return self.fates[key % len(self.fates)][0]

    def enricher(self) -> Recorded:
        return Recorded(self.answer, self.max_batch)

    async def answer(self, key: Any) -> Any:
        keys = key if isinstance(key, list) else [key]
        task: Any = asyncio.current_task()
        for k in keys:
            self.twice += [k for other in self.running[k] if not other.cancelling()]
            self.running[k].append(task)
        try:
            answers = []
            for k in keys:
                answers.append(await self.one(k))
                if task.cancelling():
                    # A call that went on to wait for ever would hold its place for ever.
                    self.trouble.update(keys)
                    return [None] * len(keys) if isinstance(key, list) else None
        except BaseException:
            self.trouble.update(keys)
            raise
        finally:
            for k in keys:
                self.running[k].remove(task)
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
                raise EnricherError(SAYS[fate], retryable=False)
            case "then fails" if self.calls[key] > 1:
                raise EnricherError(SAYS[fate])
            case "fails once" if self.calls[key] == 1:
                raise EnricherError(SAYS[fate])
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

    def may_be(self, key: int, outcome: Any) -> bool:
        """Whether a key may end so. Other keys of its calls can cost it time, and nothing else."""
        fate = self.fate(key)
        if isinstance(outcome, Failure):
            error = outcome.error
            if isinstance(error, ElementTimeoutError):
                return key in self.trouble or self.refuses
            if isinstance(error, ResultError):
                return fate == "odd"
            return (self.refuses and isinstance(error, CircuitOpenError)) or str(error) == SAYS.get(fate)
        if isinstance(outcome, Answer):
            # The last call may have been refused, or cut before it came to this key.
            assert outcome.error is None or self.calls[key] + (self.refuses or key in self.trouble) > 1
            outcome = outcome.answer
        if fate in ("found", "fails once", "then fails"):
            return bool(outcome == {"x": key})
        return fate == "missing" and outcome is None


class Store(Elsewhere):
    """What workers share: it forgets, is slow, and gives locks."""

    def __init__(self, forgets: Sequence[int], delays: Sequence[float], most: int) -> None:
        super().__init__({}, most=most)
        self.forgets, self.delays, self.keeps_misses = set(forgets), list(delays), True

    async def find(self, keys: Sequence[Any]) -> list[Any]:
        self.delay = self.delays[len(self.asked) % len(self.delays)]
        answers = await super().find(keys)
        return [ABSENT if key in self.forgets else answer for key, answer in zip(keys, answers, strict=True)]

    async def renew(self, keys: Sequence[Any]) -> list[Any]:
        return [HELD if key % 3 == 0 else ABSENT for key in keys]

    def learn(self, keys: Any, answers: Any, calls: Any = None) -> None:
        for key, answer in zip(keys, answers, strict=True):
            if answer is not None or self.keeps_misses:
                self.answers[key] = answer


CACHES = st.sampled_from(
    [
        None,
        Cache(),
        Cache(max_rows=2),
        Cache(expire_after_write=0.3, stale_if_error=True),
        Cache(expire_after_access=0.2, refresh_after=0.1, cache_missing=False),
        Cache(expire_after_write=9, refresh_after=0.001),
    ]
) | st.builds(
    Cache,
    max_rows=st.sampled_from([1, 3, 1000]),
    expire_after_write=st.sampled_from([None, 2, 6]),
    cache_missing=st.booleans(),
    refresh_after=st.sampled_from([None, 0.5]),
    stale_if_error=st.booleans(),
)

OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "ordered": st.booleans(),
    "timed": st.booleans(),
    "capacity": st.integers(1, 5) | st.just(AdaptiveCapacity(2, 1, 5)),
    "buffer": st.integers(1, 20),
    "cache": CACHES,
    "retry": st.sampled_from([None, Retry(2, FixedBackoff(0)), Retry(3, FixedBackoff(0.7))]),
    "rate_limit": st.sampled_from([None, None, RateLimit(3, per=1.0)]),
    "circuit_breaker": st.sampled_from([None, None, CircuitBreaker(minimum_calls=2, open_for=1.0)]),
    "attempt_timeout": st.sampled_from([None, None, 1.0]),
    "pause": st.sampled_from([0.0, 0.001, 0.3]),
    "source_pause": st.sampled_from([0.0, 0.05]),
    "every": st.sampled_from([None, None, 0.05, 1.5]),
}

STORES = st.builds(
    Store,
    st.lists(st.integers(0, 9), max_size=5),
    st.lists(st.sampled_from([0.0, 0.05, 2.0]), min_size=1, max_size=3),
    st.sampled_from([1, 2, 100]),
)


@pytest.mark.usefixtures("silence")
@settings(max_examples=2 * settings().max_examples)
@given(
    keys=st.lists(st.lists(st.integers(0, 12), max_size=9, unique=True), max_size=7),
    fates=st.lists(st.tuples(st.sampled_from(FATES), st.sampled_from([0, 0, 0.1, 0.5, 4])), min_size=1, max_size=10),
    max_batch=st.sampled_from([1, 1, 2, 5]),
    linger=st.sampled_from([0, 0.05]),
    options=st.fixed_dictionaries(OPTIONS),
    store=st.none() | STORES,
)
@virtual
async def test_L1_to_L6_every_key_gets_an_outcome_that_it_may_have_whatever_happens(
    keys: list[list[int]],
    fates: list[tuple[str, float]],
    max_batch: int,
    linger: float,
    options: dict[str, Any],
    store: Store | None,
) -> None:
    """A worker, or one after another with a store of answers between them."""
    cache, capacity, known = options["cache"], options["capacity"], () if store is None else (store,)
    batching = Batching(linger=linger) if max_batch > 1 else None
    world = World(fates, max_batch, options["circuit_breaker"] is not None)
    if store is not None and cache is not None:
        store.keeps_misses = cache.cache_missing
    for _ in range(1 + len(known)):
        enricher, before = world.enricher(), set(store.answers) - store.forgets if store is not None else set()
        done = lookups_of(enricher, keys, timeout=6.0, batching=batching, known=known, **options)
        await done.run()
        await asyncio.sleep(500)
        for batch in done.batches:
            assert PENDING not in outcomes_of(batch)
            for key, outcome in zip(batch.keys, outcomes_of(batch), strict=True):
                assert world.may_be(key, outcome), (key, outcome)
                if isinstance(outcome, Answer):
                    kept_miss = outcome.source == "cache" and outcome.answer is None
                    assert not kept_miss or cache is None or cache.cache_missing
                    assert outcome.error is None or cache.stale_if_error
        figures = done.figures
        if options["timed"]:
            by_source = Counter(outcome.source for batch in done.batches for outcome in outcomes_of(batch))
            assert (by_source["cache"], by_source["shared"]) == (figures.cache_hits, figures.shared)
        assert figures.attempt_latency.count == figures.calls == len(enricher.calls)
        assert enricher.running == 0
        assert enricher.most <= (capacity if isinstance(capacity, int) else capacity.maximum)
        called = [key for call in enricher.calls for key in (call if isinstance(call, list) else [call])]
        assert before.isdisjoint(called) or (cache is not None and cache.refresh_after is not None)
        assert asyncio.all_tasks() == {asyncio.current_task()}
    assert max_batch > 1 or world.twice == []
