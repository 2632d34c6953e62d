"""Law Y1: a simulation is real code on virtual time, and one seed has one history."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from asyncio_operator.testing import Simulation

SEEDS = range(50)

HASH = """
import hashlib
from asyncio_operator.testing import Simulation
whole = hashlib.sha256()
for seed in range(40, 50):
    whole.update(Simulation(seed).run().to_bytes())
print(whole.hexdigest())
"""


def digest(seeds: range) -> str:
    whole = hashlib.sha256()
    for seed in seeds:
        whole.update(Simulation(seed).run().to_bytes())
    return whole.hexdigest()


@pytest.mark.parametrize("seeds", [range(start, start + 25) for start in SEEDS[::25]])
def test_Y1_simulations_obey_the_laws_and_give_the_rows_of_a_join(seeds: range) -> None:
    for seed in seeds:
        Simulation(seed).check()


def test_Y1_the_same_seed_has_the_same_history_in_every_process() -> None:
    here = digest(range(40, 50))
    assert digest(range(40, 50)) == here
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    there = subprocess.run([sys.executable, "-c", HASH], env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here
