"""Law Y1: the history of a simulation has options that a wrong run breaks."""

from __future__ import annotations

import pytest

from asyncio_operator.lookup.key_batch import BATCHES, Delivery
from asyncio_operator.testing import Simulation
from asyncio_operator_proof.simulation.scenario import Lookup, Scenario, Service, Task
from tests.proof.simulation import names

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
