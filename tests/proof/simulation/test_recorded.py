"""Law Y1: what a simulation records of options and calls shows a wrong run, and repeats no mistake of the library."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from asyncio_operator import FixedBackoff, Retry
from asyncio_operator.errors import EnricherError, wait_of
from asyncio_operator.lookup.key_batch import BATCHES, Delivery
from asyncio_operator.policies import retry
from asyncio_operator.testing import Simulation
from asyncio_operator_proof.simulation.judge import broken
from asyncio_operator_proof.simulation.recorded import facts_of
from asyncio_operator_proof.simulation.scenario import Lookup, Scenario, Service, Task
from tests.proof.simulation import names


def test_R7_a_wait_that_the_library_reads_as_shorter_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"retry": Retry(5, FixedBackoff(0.01)), "on_error": "null", "status_column": "status", "timeout": None}
    lookup = Lookup(options, Service(errors=0.6, error="asked"))
    scenario = Scenario(1, (lookup,), (Task(tuple(range(20))),))
    assert Simulation.from_scenario(scenario).violations() == []
    right = wait_of
    monkeypatch.setattr(retry, "wait_of", lambda value: None if value is None else (right(value) or 0.0) / 2)
    assert any(one.startswith("R7") for one in Simulation.from_scenario(scenario).violations())


@pytest.mark.parametrize(
    ("asked", "noted"),
    [
        (2, 2.0),
        (0.5, 0.5),
        ("1.5", 1.5),
        (timedelta(minutes=1), 60.0),
        (None, None),
        (True, None),
        (-1, None),
        ("soon", None),
        (float("nan"), None),
        (10**400, None),
    ],
)
def test_R7_what_an_error_asks_for_is_noted(asked: Any, noted: float | None) -> None:
    assert facts_of(EnricherError("later", retry_after=asked))["retry_after"] == noted


@pytest.mark.parametrize("number", [0, 1])
def test_R1_a_call_that_is_cut_for_no_reason_is_seen(number: int) -> None:
    options = {"attempt_timeout": 0.2, "on_error": "null", "status_column": "status"}
    scenario = Scenario(1, (Lookup(options, Service(hangs=0.5)),), (Task(tuple(range(20))),))
    outcome = Simulation.from_scenario(scenario).outcome()
    assert broken(scenario, outcome) == []
    cut = [event for event in outcome.history if event["event"] == "call_ended" and event["outcome"] == "timed_out"]
    cut[number]["outcome"] = "cancelled"
    assert any("was cut after 0.200000 s" in one for one in broken(scenario, outcome))


KEYS = tuple(number // 5 for number in range(40))


class TwiceTheRows(Delivery):
    """Reads rows up to twice the buffer."""

    def takes_a_batch(self) -> bool:
        return self._count < BATCHES or self._rows < 2 * self._buffer


@pytest.mark.parametrize("chained", [False, True])
def test_O1_a_lookup_that_reads_more_rows_than_it_may_is_seen(monkeypatch: pytest.MonkeyPatch, chained: bool) -> None:
    quick, slow = Lookup({"buffer": 100}, Service(mean=0.0)), Lookup({"buffer": 20, "capacity": 20}, Service(mean=1.0))
    scenario = Scenario(1, (quick, slow) if chained else (slow,), (Task(KEYS, batch=5, pause=0.01),))
    assert Simulation.from_scenario(scenario).violations() == []
    monkeypatch.setattr(Delivery, "takes_a_batch", TwiceTheRows.takes_a_batch)
    wrong = Simulation.from_scenario(scenario).violations()
    assert wrong != []
    assert all("rows are inside, and buffer is 20" in one for one in wrong)


class NotIdempotent(names.Names):
    """Its calls must not be made twice."""

    idempotent = False


def test_H2_the_history_says_whether_calls_may_be_made_twice() -> None:
    rows = {1: {"name": "Ada"}}
    for enricher in (names.Names, NotIdempotent):
        scenario = Scenario(1, (Lookup(),), (Task((1,)),), rows=rows)
        [setting] = Simulation.from_scenario(scenario, enricher).run().settings
        assert setting["idempotent"] is enricher.idempotent
