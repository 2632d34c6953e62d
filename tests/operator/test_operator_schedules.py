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

# Only a suite that has imported other modules draws it: hypothesis takes constants from them.
WAITS_WITH_ROOM = replace(
    ADAPTS_WHILE_DRAINED,
    parts=(
        Part(Options(capacity=1, buffer=1, on_error="skip"), snapshot_after=2),
        Part(Options(capacity=2, buffer=3, on_error="skip", rate_limit=RateLimit(1, per=1.0))),
    ),
    scripts=(*((Act(),),) * 5, (Act(2, ending="busy"),), None, (Act(),)),
    records=(False,) * 8,
)


pytestmark = pytest.mark.usefixtures("silence")


@pytest.mark.timeout(3600)
@settings(max_examples=SCHEDULES, suppress_health_check=list(HealthCheck))
@given(schedules())
@example(ADAPTS_WHILE_DRAINED)
@example(WAITS_WITH_ROOM)
def test_any_schedule(schedule: Schedule) -> None:
    explore(schedule)
