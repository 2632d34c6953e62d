"""The whole operator against a small model, on random schedules in virtual time.

A schedule says what every call does, what the options of each part are, how fast the input comes and the consumer
takes, and when the run is left or continued from a snapshot (`schedules`). The model says what becomes of an element
once an attempt has begun (`schedules_model`); the laws are checked after every turn (`schedules_laws`).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings

from asyncio_operator import AdaptiveCapacity, RateLimit
from tests.operator.schedules import Act, Options, Part, Schedule, schedules
from tests.operator.schedules_explorer import explore

SCHEDULES = 10_000 if settings().max_examples >= 1000 else 400


ADAPTS_WHILE_DRAINED = Schedule(
    parts=(Part(Options(capacity=AdaptiveCapacity(3, 2, 5), buffer=3, attempt_timeout=2, on_error="skip")),),
    scripts=((Act(3),), (Act(),)),
    records=(False, False),
    keys=1,
    gaps=None,
    input_error=False,
    input_swallows=False,
    pauses=(0,),
)

# The element that was read ahead took a place that the window over the input had counted as free.
READS_AHEAD_BESIDE_ITS_WINDOW = replace(
    ADAPTS_WHILE_DRAINED,
    parts=(
        Part(Options(capacity=2, buffer=2, on_error="skip"), snapshot_after=9),
        Part(Options(capacity=3, buffer=3, on_error="skip", rate_limit=RateLimit(2, per=1.0))),
    ),
    scripts=tuple((Act(seconds),) for seconds in (1, 0, 1, 2, 0, 1, 1, 2)),
    records=(False,) * 8,
)


pytestmark = pytest.mark.usefixtures("silence")


@pytest.mark.timeout(3600)
@settings(max_examples=SCHEDULES, suppress_health_check=list(HealthCheck))
@given(schedules())
@example(ADAPTS_WHILE_DRAINED)
@example(READS_AHEAD_BESIDE_ITS_WINDOW)
def test_any_schedule(schedule: Schedule) -> None:
    explore(schedule)
