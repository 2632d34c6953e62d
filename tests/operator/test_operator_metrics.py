"""Figures of a run, and the memory that it takes."""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
import threading
from collections import Counter
from random import Random
from typing import Any

import hypothesis.strategies as st
import psutil
import pytest
from hypothesis import given

from asyncio_operator import AsyncWaitOperator, BatchAsyncFunction, Batching, Hedge, RateLimit
from asyncio_operator.engine.flights import Flight
from asyncio_operator.metrics import MANY_SAMPLES, Histogram
from tests.operator.helpers import collect, forever, run_on, same, virtual


def histogram(samples: list[float]) -> Histogram:
    made = Histogram()
    made.samples.extend(samples)
    return made


def histograms_of(operator: AsyncWaitOperator) -> list[Histogram]:
    """What its run counts: durations of calls that were outcomes, of other calls, and of the elements of these."""
    run = operator._run
    assert run is not None
    return [run.lanes.direct, run.lanes.latency, run.outcomes.figures.latency]


@given(st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=300))
def test_percentiles_are_exact_to_the_width_of_a_bucket(samples):
    found = histogram(samples).percentiles()
    ordered = sorted(samples)
    for percent, value in ((50, found.p50), (95, found.p95), (99, found.p99)):
        exact = ordered[-(-len(ordered) * percent // 100) - 1]
        assert value == pytest.approx(exact, rel=0.032)
    assert found.max == max(samples)


@pytest.mark.parametrize("seed", range(5))
def test_V1_percentiles_of_many_calls_are_within_the_bound_whatever_the_latencies(seed):
    """Seldom slow calls among many fast ones: an estimate from few samples misses them."""
    random = Random(seed)
    slow = random.choice([0.004, 0.012, 0.04, 0.06])
    samples = [random.lognormvariate(-7, 0.7) * (1000 if random.random() < slow else 1) for _ in range(10_000)]
    made, parts = Histogram(), [Histogram() for _ in range(3)]
    for number, sample in enumerate(samples):
        parts[number % 3].add(sample)
    for part in parts:
        made.merge(Histogram.of_json(json.loads(json.dumps(part.as_json()))))
    assert made.count == len(samples)
    found, ordered = made.percentiles(), sorted(samples)
    for percent, value in ((50, found.p50), (95, found.p95), (99, found.p99)):
        assert value == pytest.approx(ordered[len(ordered) * percent // 100 - 1], rel=0.032)
    assert found.max == max(samples)


@given(st.lists(st.floats(0, 1e6), max_size=50), st.lists(st.floats(0, 1e6), max_size=50))
def test_V1_samples_that_were_added_can_be_removed(first, second):
    made = histogram(first)
    made.merge(histogram(second))
    made.subtract(histogram(first))
    assert made.count == len(second)
    made.merge(histogram(first))
    assert made.percentiles() == histogram(first + second).percentiles()


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1e-9, 2.4e-7, 3.05e-5, 3.06e-5, 0.01, 1.99, 2.01, 7.0]), st.integers(1, 700)),
        min_size=1,
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_O14_every_sample_is_counted_once_under_its_own_bucket(blocks, random):
    """However many there are, and whatever else is in their block."""
    samples = [sample for sample, times in blocks for _ in range(times)]
    random.shuffle(samples)
    made = Histogram()
    for sample in samples:
        made.add(sample)
    by_value = Histogram()
    for value, times in Counter(samples).items():
        by_value.merge(histogram([value] * times))
    assert made.count == by_value.count == len(samples)
    assert made.percentiles() == by_value.percentiles()
    assert made.percentiles().max == max(samples)


def test_O14_what_travels_is_counted():
    made = histogram([0.5, 1.0])
    arrived = pickle.loads(pickle.dumps(made))
    assert (arrived.samples, arrived.count) == ([], 2)
    assert arrived.percentiles() == made.percentiles()
    arrived.add(7.0)
    assert (arrived.count, made.count, arrived.percentiles().max) == (3, 2, 7.0)


def test_O14_threads_that_read_while_another_counts_cost_no_sample():
    made = Histogram()
    errors: list[BaseException] = []
    done = threading.Event()

    def read():
        try:
            while not done.is_set():
                made.percentiles()
                assert made.count <= 30_000
                pickle.dumps(made)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(30_000):
        made.add(i % 100 + 1.0)
    done.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert made.count == 30_000
    assert made.percentiles().max == 100.0


@pytest.mark.parametrize("options", [{}, {"key": id, "mode": "key_ordered"}], ids=["direct", "flights"])
@pytest.mark.parametrize("seconds", [None, 0, 1e-6])
@virtual
async def test_O14_durations_are_counted_a_thousand_at_a_time_whatever_the_clock_does(seconds, options):
    """Also where a turn of the loop takes no time, as on virtual time, or hardly any."""

    async def call(value):
        if seconds is not None:
            await asyncio.sleep(seconds)

    operator, calls = AsyncWaitOperator(call, capacity=50, **options), 5000
    async for _ in operator.process(range(calls)):
        assert max(len(each.samples) for each in histograms_of(operator)) <= MANY_SAMPLES
    assert [each.count for each in histograms_of(operator)] == ([0, calls, calls] if options else [calls, 0, 0])


@virtual
async def test_O14_the_latency_of_an_element_runs_from_its_admission_and_that_of_a_call_from_its_start():
    class Slow(BatchAsyncFunction[int, int]):
        async def invoke_batch(self, values):
            await asyncio.sleep(1)
            return values

    async def one():
        yield 1
        await asyncio.sleep(10)

    operator = AsyncWaitOperator(Slow(), batching=Batching(max_size=5, linger=2.0), capacity=1)
    assert [output async for output in operator.process(one())] == [1]
    assert operator.metrics.latency.p50 == pytest.approx(3.0, rel=0.032)
    assert operator.metrics.attempt_latency.p50 == pytest.approx(1.0, rel=0.032)


@virtual
async def test_O14_latency_has_the_wait_for_a_key_and_for_a_limit_in_it():
    async def slow(value: int) -> int:
        await asyncio.sleep(1.0)
        return value

    keyed = AsyncWaitOperator(slow, mode="key_ordered", key=lambda value: 0)
    assert await collect(keyed.process(range(3))) == [0, 1, 2]
    assert keyed.metrics.latency.max == pytest.approx(3.0)
    limited = AsyncWaitOperator(slow, rate_limit=RateLimit(1, per=1.0))
    assert await collect(limited.process(range(2))) == [0, 1]
    assert limited.metrics.latency.max == pytest.approx(2.0)


# -- memory does not grow with the number of elements


ELEMENTS = 400_000
BOUND = 24 * 2**20


def resident() -> int:
    gc.collect()
    size: int = psutil.Process().memory_info().rss
    return size


async def count(outputs: Any) -> int:
    counted = 0
    async for _ in outputs:
        counted += 1
    return counted


async def sometimes(value: int) -> int:
    """Waits, fails or misses its deadline now and then."""
    if value % 1000 == 1:
        await asyncio.sleep(0)
    if value % 10_000 == 2:
        raise ValueError
    if value % 100_000 == 3:
        await forever()
    return value


def test_many_elements_need_no_more_memory_than_a_few(mode):
    async def main():
        operator = AsyncWaitOperator(sometimes, mode=mode, capacity=200, timeout=0.001, on_error="skip")
        await count(operator.process(range(100_000)))
        before = resident()
        # Four are late, and forty fail; a busy machine may make some more of them late.
        assert ELEMENTS - await count(operator.process(range(ELEMENTS))) >= 44
        assert operator.metrics.admitted == operator.metrics.emitted == ELEMENTS
        assert resident() - before < BOUND

    run_on(asyncio.new_event_loop, main())


def test_the_synchronous_face_needs_no_more_memory_either():
    operator = AsyncWaitOperator(same)
    assert sum(1 for _ in operator(range(20_000))) == 20_000
    before = resident()
    assert sum(1 for _ in operator(range(200_000))) == 200_000
    assert resident() - before < BOUND


@pytest.mark.parametrize(
    "options", [{"retry": 3, "timeout": 60.0}, {"retry": 3, "hedge": Hedge(after=9.0)}, {"batching": Batching(2)}]
)
@virtual
async def test_only_elements_in_trouble_have_an_object_of_their_own(options: dict[str, Any]) -> None:
    seen: list[int] = []

    async def slow(value: Any) -> Any:
        """The call of the first element fails once."""
        await asyncio.sleep(1.0)
        if not seen:
            seen.append(0)
            raise ConnectionError
        seen.append(sum(type(one) is Flight for one in gc.get_objects()))
        return value

    class InBatches(BatchAsyncFunction[Any, Any]):
        async def invoke_batch(self, values: Any) -> Any:
            return await slow(values)

    gc.collect()
    function: Any = InBatches() if "batching" in options else slow
    operator = AsyncWaitOperator(function, mode="unordered", capacity=20, on_error="skip", **options)
    assert len(await collect(operator.process(range(100)))) == 98 + 2 * ("retry" in options)
    assert max(seen) == (2 if "batching" in options else 1)
