"""X7, the numbers of it: every wait at an end is shorter than the wait around it."""

from __future__ import annotations

import inspect

import pytest

from asyncio_operator import AsyncWaitOperator
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.policies.shutdown import (
    CANCEL_TIMEOUT,
    CLIENT_CLOSE_TIMEOUT,
    CLOSE_TIMEOUT,
    FINAL_WAIT,
    LOOKUP_GRACE_PERIOD,
    NOTHING_LEFT,
    OPERATOR_GRACE_PERIOD,
    PROCESS_END,
    TASK_END,
    TASK_GRACE_PERIOD,
    WATCH_INTERVAL,
    longest_end,
)
from asyncio_operator.services import closing
from asyncio_operator.testing import check_enricher
from enrichers import blocking, table
from enrichers.databases import pool

MARGIN = 0.4
"""Seconds between a wait and the wait around it, for a busy machine."""

WITHIN = {
    "a cancelled statement while its pool closes": (CANCEL_TIMEOUT, CLOSE_TIMEOUT),
    "a cancelled lookup in a task": (CANCEL_TIMEOUT, TASK_GRACE_PERIOD),
    "a cancelled lookup in a Lookup": (CANCEL_TIMEOUT, LOOKUP_GRACE_PERIOD),
    "a cancelled lookup in an operator": (CANCEL_TIMEOUT, OPERATOR_GRACE_PERIOD),
    "the run of a task": (longest_end(TASK_GRACE_PERIOD), TASK_END),
    "close, with three waits": (3 * CLOSE_TIMEOUT, CLIENT_CLOSE_TIMEOUT),
    "a run at the end of the process": (longest_end(TASK_GRACE_PERIOD), PROCESS_END),
    "a cancelled lookup in check_enricher": (
        CANCEL_TIMEOUT,
        inspect.signature(check_enricher).parameters["patience"].default,
    ),
    "close in check_enricher": (3 * CLOSE_TIMEOUT, inspect.signature(check_enricher).parameters["patience"].default),
}


@pytest.mark.parametrize("wait", WITHIN)
def test_X7_every_wait_is_shorter_than_the_wait_around_it(wait: str) -> None:
    inner, outer = WITHIN[wait]
    assert 0 < inner <= outer - MARGIN


def test_X7_a_task_is_gone_within_five_seconds() -> None:
    assert WATCH_INTERVAL + TASK_END <= NOTHING_LEFT == 5.0
    assert longest_end(2.0) == 3 * 2.0 + 3 * FINAL_WAIT


def test_X7_the_waits_are_those_of_the_faces_and_of_the_enrichers() -> None:
    assert inspect.signature(AsyncWaitOperator).parameters["grace_period"].default == OPERATOR_GRACE_PERIOD
    assert LookupOptions().grace_period == LOOKUP_GRACE_PERIOD
    assert vars(pool)["CANCEL_TIMEOUT"] == CANCEL_TIMEOUT
    assert {vars(module)["CLOSE_TIMEOUT"] for module in (closing, table, blocking)} == {CLOSE_TIMEOUT}
