"""Law Y1: a simulation owns the state of the process while it runs, and no longer."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from asyncio_operator.errors import ConfigurationError
from asyncio_operator.testing import Simulation
from tests.proof.simulation.names import Names

ROWS = {1: {"name": "Ada"}, 2: {"name": "Grace"}, 3: {"name": "Edsger"}}


def history(seed: int) -> bytes:
    return Simulation(seed).run().to_bytes()


def test_Y1_simulations_in_threads_have_the_histories_that_they_have_alone() -> None:
    before = logging.root.manager.disable
    alone = [history(seed) for seed in range(12)]
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(history, range(12))] == alone
    assert logging.root.manager.disable == before
    state = random.getstate()
    history(1)
    assert random.getstate() == state


def test_Y1_a_simulation_in_a_running_loop_is_refused() -> None:
    async def check() -> None:
        with pytest.raises(ConfigurationError, match=r"await asyncio.to_thread\(simulation.check\)"):
            Simulation(1).check()
        await asyncio.to_thread(Simulation(1).check)

    asyncio.run(check())


class Interrupted(Names):
    """Its calls are stopped at the keyboard."""

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        raise KeyboardInterrupt


def test_Y1_an_interrupt_in_a_call_ends_the_simulation() -> None:
    for seed in range(4):
        with pytest.raises(KeyboardInterrupt):
            Simulation(seed, Interrupted, rows=ROWS, tasks=3).check()
