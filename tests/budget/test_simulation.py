"""Laws G2 and G3 in the scenarios of `make simulate ARGS=budget`, with fewer workers."""

from __future__ import annotations

import pytest

from benchmarks.simulate.budget import SCENARIOS, Scenario, run


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.what)
def test_G2_G3_what_is_allowed_is_used_and_no_window_is_exceeded(scenario: Scenario) -> None:
    _, used, broken = run(scenario.smaller(workers=16, windows=3))
    assert not broken
    assert used >= scenario.target
