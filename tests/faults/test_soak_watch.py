"""The soak sees a leak where there is one, and only there."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.soak.watch import TOLERANCES, Sample, grown, trend


def minutes(count: float, **leaks: float) -> list[Sample]:
    """Samples of a run, each with noise; and what leaks in a minute."""
    drawn = Random(1)
    samples = []
    for step in range(int(count * 30)):
        at = step * 2.0
        flat = Sample(at, 2, 200 + drawn.gauss(0, 8), 11 + drawn.randrange(2), 90 + drawn.randrange(12), 400, 60, 300)
        samples.append(replace(flat, **{name: getattr(flat, name) + more * at / 60 for name, more in leaks.items()}))
    return samples


def test_what_goes_up_and_down_is_flat() -> None:
    assert grown(minutes(20)) == []


@pytest.mark.parametrize("name", TOLERANCES)
def test_what_rises_by_twice_its_tolerance_is_found(name: str) -> None:
    found = grown(minutes(20, **{name: 2 * TOLERANCES[name] / 12}))
    assert [text.split()[0] for text in found] == [name]


def test_a_trend_is_that_of_most_values_and_not_of_a_few() -> None:
    assert trend([5.0] * 100) == 0
    assert trend([*range(101)]) == 100
    assert trend([5.0] * 60 + [5000.0] * 3 + [5.0] * 37) == 0


def test_a_short_run_says_that_it_tells_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert grown(minutes(5, memory=100)) == []
    assert "too short" in capsys.readouterr().out
