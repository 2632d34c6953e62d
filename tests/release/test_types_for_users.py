"""A user's ``mypy --strict`` sees the types of the installed wheel, and finds the user's mistakes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.release.conftest import ROOT

pytestmark = pytest.mark.faults

PROGRAM = """
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator import AsyncWaitOperator, Cache, Enricher, Record, Retry
from asyncio_operator.lookup import Lookup
from asyncio_operator.spark import EnrichmentMetrics, async_udf, enrich, enrich_with
from asyncio_operator.state import HeapStateBackend, ValueStateDescriptor
from asyncio_operator.state import NoSuchBackend  # wrong 0
from asyncio_operator.testing import ManualClock
from enrichers import HttpEnricher, PostgresEnricher, enricher
from enrichers import NoSuchEnricher  # wrong 9


class Own(Enricher):
    def schema(self) -> pa.Schema:
        return pa.schema([("v", pa.string())])

    async def lookup(self, key: object) -> Mapping[str, object] | None:
        return {"v": str(key)}


@enricher("v string")
async def function(key: str) -> dict[str, str]:
    return {"v": key}


async def double(value: int) -> str:
    return str(2 * value)


def right(spark: SparkSession, df: DataFrame) -> None:
    planes = PostgresEnricher("postgresql://h/db", table="planes", key="tailnum")
    out = enrich(df, planes, on="tailnum", cache=Cache(max_rows=10), retry=Retry(max_attempts=2))
    reveal_type(out)
    reveal_type(df.transform(enrich_with(Own(), on="id")))
    reveal_type(enrich(df, function, on="id", metrics=EnrichmentMetrics(spark)))
    operator = AsyncWaitOperator(double, capacity=5, timeout=1.0)
    reveal_type(operator([1, 2]))
    reveal_type(operator.metrics.admitted)
    backend = HeapStateBackend(clock=ManualClock())
    reveal_type(backend.value_state(ValueStateDescriptor("v")))
    HttpEnricher("http://h/{key}", schema="v string", headers=lambda: {"X": "y"})


def wrong(df: DataFrame) -> None:
    enrich(df, Own(), on="id", timeout="soon")  # wrong 1
    enrich(df, Own(), on="id", tiemout=1.0)  # wrong 2
    enrich(df, "planes", on="id")  # wrong 3
    PostgresEnricher("postgresql://h/db", tabel="planes", key="id")  # wrong 4
    AsyncWaitOperator(double, capacity="many")  # wrong 5
    Cache(max_rows="all")  # wrong 6
    Retry(max_attempts=None)  # wrong 7
    enrich(df, Own(), on="id").no_such_method()  # wrong 8
    enrich(df, Own(), on="id", how="outer")  # wrong 10
"""

UNUSED = """
aiohttp google grpc matplotlib numpy opentelemetry pandas PIL pyspark.ml pyspark.mllib pyspark.pandas
pyspark.sql.connect pyspark.streaming redis rocksdict sqlalchemy
"""
"""The program uses no type of these packages, and reading them takes half of the time."""

SETTINGS = f"""
[mypy]
[mypy-{",".join(f"{name}.*" for name in UNUSED.split())}]
follow_imports = skip
follow_imports_for_stubs = True
"""

REVEALED = ["DataFrame", "DataFrame", "DataFrame", "Iterator[Any]", "int", "ValueState[Any]"]


@pytest.fixture(scope="module")
def lines(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy says of the program, a line for each finding."""
    directory = tmp_path_factory.mktemp("user")
    (directory / "program.py").write_text(PROGRAM)
    (directory / "mypy.ini").write_text(SETTINGS)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(furnished)]
    command = [*mypy, "--cache-dir", os.devnull, "--no-error-summary", "program.py"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=110, check=False)
    assert str(ROOT) not in done.stdout
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


def test_what_is_public_has_types(lines: list[str]) -> None:
    revealed = [match[1] for line in lines if (match := re.search(r'Revealed type is "(.*)"', line))]
    assert [re.sub(r"\w+\.", "", told) for told in revealed] == REVEALED


def test_mistakes_are_found_and_nothing_else(lines: list[str]) -> None:
    marked = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if "# wrong" in line}
    untyped = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.startswith("import pyarrow")}
    found = {int(match[1]) for line in lines if (match := re.match(r"program\.py:(\d+): error", line))}
    assert found - untyped == marked, "\n".join(lines)
