"""The wheel in an environment of its own: what it imports, and what it says where an extra is missing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.release.conftest import run
from tests.test_import import LIGHT

pytestmark = pytest.mark.faults

TRACED = """
from asyncio_operator import AsyncWaitOperator
from asyncio_operator.trace import Trace
async def double(x): return 2 * x
trace = Trace()
list(AsyncWaitOperator(double, trace=trace)([1]))
trace.timeline("x.png")
"""

NEEDS = [
    ("import asyncio_operator.spark", "asyncio_operator.spark needs pyspark", "spark"),
    ("from enrichers import FunctionEnricher", "FunctionEnricher needs pyarrow", "spark"),
    ("from enrichers import BlockingEnricher", "BlockingEnricher needs pyarrow", "spark"),
    ("from enrichers import TableEnricher", "TableEnricher needs pyarrow", "spark"),
    ("from enrichers import enricher", "enricher needs pyarrow", "spark"),
    ("from enrichers import PostgresEnricher", "PostgresEnricher needs asyncpg", "postgres"),
    ("from enrichers import HttpEnricher", "HttpEnricher needs aiohttp", "http"),
    ("from enrichers import SqlEnricher", "SqlEnricher needs sqlalchemy[asyncio]", "sql"),
    ("from enrichers import RedisEnricher", "RedisEnricher needs redis", "redis"),
    ("from enrichers.redis import RedisEnricher", "RedisEnricher needs redis", "redis"),
    ("from asyncio_operator.state import RocksDBStateBackend", "RocksDBStateBackend needs rocksdict", "rocksdb"),
    ("from enrichers import *", "BlockingEnricher needs pyarrow", "spark"),
    (
        "from asyncio_operator.testing import FakeEnricher; FakeEnricher({})",
        "FakeEnricher needs pyarrow, which is not installed",
        "spark",
    ),
    ("from asyncio_operator.testing import FakeService", "FakeService needs aiohttp, which is not installed", "http"),
    *(
        (f"from asyncio_operator.testing import {name}", f"{name} needs asyncio_operator_proof", "proof")
        for name in ("Simulation", "check_history", "History", "history_laws", "history_of_trace")
    ),
    (TRACED, "pictures need matplotlib, which is not installed", "plot"),
]


@pytest.mark.parametrize("module", LIGHT)
def test_it_is_imported_without_any_extra_and_without_a_warning(bare: Path, tmp_path: Path, module: str) -> None:
    place = run([str(bare), "-I", "-W", "error", "-c", f"import {module}; print({module}.__file__)"], tmp_path)
    assert str(bare.parents[1]) in place


@pytest.mark.parametrize(("statement", "problem", "extra"), NEEDS, ids=[problem for _, problem, _ in NEEDS])
def test_where_an_extra_is_missing_its_name_is_told(
    bare: Path, tmp_path: Path, statement: str, problem: str, extra: str
) -> None:
    command = [str(bare), "-I", "-W", "error", "-c", statement]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith(f"asyncio_operator.errors.ConfigurationError: {problem}")
    assert f"pip install 'asyncio-operator[{extra}]'" in last


def test_an_operator_runs_without_any_extra(bare: Path, tmp_path: Path) -> None:
    program = (
        "from asyncio_operator import AsyncWaitOperator\n"
        "async def double(x): return 2 * x\n"
        "print(list(AsyncWaitOperator(double, capacity=2)(range(3))))"
    )
    assert run([str(bare), "-I", "-W", "error", "-c", program], tmp_path) == "[0, 2, 4]\n"


def test_with_all_extras_every_public_name_is_there(furnished: Path, tmp_path: Path) -> None:
    program = (
        "import importlib, sys\n"
        f"for name in {[*LIGHT, 'asyncio_operator.spark', 'asyncio_operator.enricher']!r}:\n"
        "    module = importlib.import_module(name)\n"
        "    for public in getattr(module, '__all__', []):\n"
        "        getattr(module, public)\n"
        "print(sys.modules['enrichers'].__file__)"
    )
    assert str(furnished.parents[1]) in run([str(furnished), "-I", "-W", "error", "-c", program], tmp_path)


def test_with_both_wheels_a_simulation_runs_and_its_history_is_checked(furnished: Path, tmp_path: Path) -> None:
    program = (
        "from asyncio_operator.testing import Simulation, check_history\n"
        "simulation = Simulation(42)\n"
        "simulation.check()\n"
        "print(check_history(simulation.run()).violations, __import__('asyncio_operator_proof').__file__)"
    )
    said = run([str(furnished), "-I", "-W", "error", "-c", program], tmp_path)
    assert said.startswith("[] ")
    assert str(furnished.parents[1]) in said
