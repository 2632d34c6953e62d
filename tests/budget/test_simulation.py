"""Laws G2 and G3 in the scenarios of `make simulate ARGS=budget`, with fewer workers."""

from __future__ import annotations

import pytest

from asyncio_operator import Budget, Limit
from benchmarks.simulate.budget import SCENARIOS, Scenario, always, run
from benchmarks.simulate.cluster import Cluster


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.what)
def test_G2_G3_what_is_allowed_is_used_and_no_window_is_exceeded(scenario: Scenario) -> None:
    _, used, broken = run(scenario.smaller(workers=16, windows=3, calls=1000))
    assert not broken
    assert used >= scenario.target


def test_G3_what_estimates_were_too_high_is_used_in_every_window() -> None:
    """Units that a call gets back may come from several permits, with which calls of one look have started."""
    budget = Budget("b", Limit(4_000.0, 10.0, "tokens"))
    cluster = Cluster(
        budget, 1, work=always, weigh=lambda _: {"tokens": 100.0}, settle=lambda *_: {"tokens": 60.0}, latency=0.3
    )
    cluster.run(40.0)
    for begin in (10.0, 20.0, 30.0):
        used = sum(weights["tokens"] for time, weights in cluster.starts if begin <= time < begin + 10.0)
        assert used >= 0.97 * 4_000
