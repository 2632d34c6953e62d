"""Counters and histograms: exact to 3.2 %, mergeable, and readable while somebody else counts."""

from __future__ import annotations

import threading

import hypothesis.strategies as st
import pytest
from hypothesis import given

from asyncio_operator import Latency, OperatorStatistics
from asyncio_operator.metrics import Histogram


def histogram(samples: list[float]) -> Histogram:
    made = Histogram()
    made.samples.extend(samples)
    return made


def test_an_empty_histogram_is_all_zero():
    assert Histogram().percentiles() == Latency(0.0, 0.0, 0.0, 0.0)


@given(st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=300))
def test_percentiles_are_exact_to_the_width_of_a_bucket(samples):
    found = histogram(samples).percentiles()
    ordered = sorted(samples)
    for percent, value in ((50, found.p50), (95, found.p95), (99, found.p99)):
        exact = ordered[-(-len(ordered) * percent // 100) - 1]
        assert value == pytest.approx(exact, rel=0.032)
    assert found.max == max(samples)


@given(st.lists(st.lists(st.floats(0, 1e6), max_size=50), max_size=5))
def test_merging_is_counting_together(parts):
    merged = Histogram()
    for part in parts:
        merged.merge(histogram(part))
    assert merged.percentiles() == histogram([sample for part in parts for sample in part]).percentiles()


def test_many_samples_are_thinned_and_the_largest_is_kept():
    samples = [0.001] * 99_000 + [1.0] * 1_000
    samples[50] = 7.0
    found = histogram(samples).percentiles()
    assert found.p50 == pytest.approx(0.001, rel=0.032)
    assert found.max == 7.0


def test_samples_may_be_appended_between_and_the_list_stays_the_same():
    made = Histogram()
    append = made.samples.append
    for _ in range(3):
        append(1.0)
        assert made.percentiles().max == 1.0
    assert made.samples == []


def test_a_clock_that_goes_back_breaks_nothing():
    assert histogram([-1.0, 0.0]).percentiles().max == 0.0


def test_two_threads_may_fold_while_a_third_appends():
    made = Histogram()
    errors: list[BaseException] = []
    done = threading.Event()

    def fold():
        try:
            while not done.is_set():
                made.percentiles()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=fold) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(30_000):
        made.samples.append(i % 100 + 1.0)
    done.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert made.percentiles().max == 100.0


def test_statistics_are_frozen_and_zero_to_begin_with():
    statistics = OperatorStatistics()
    assert statistics.latency == Latency()
    with pytest.raises(AttributeError):
        statistics.admitted = 1  # type: ignore[misc]
