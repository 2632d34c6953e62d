"""What the tests of examples share: a PostgreSQL, and a Spark for those that need not be programs of their own."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples.enrich_flights import DSN_VARIABLE
from examples.stage import Stage
from tests.examples.programs import temporary_directory
from tests.servers import postgres

__all__ = ["play", "postgres"]


class Inherited(dict[str, str]):
    """What the workers of the Spark that runs already are given: also what they would inherit of one that an example
    starts, which it sets itself."""

    def keys(self) -> Any:
        return super().keys() | {DSN_VARIABLE} & os.environ.keys()

    def __missing__(self, name: str) -> str:
        return os.environ[name]


@pytest.fixture
def play(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Runs an example, with arguments, in this process and its Spark, in a tenth of the time; what it prints.

    It must succeed, complain of nothing and leave no file. `make faults` runs the programs.
    """

    def run(name: str, *arguments: str) -> str:
        example = importlib.import_module(f"examples.{name}")
        options = example.parse([*arguments])
        with temporary_directory() as directory, monkeypatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(directory))
            patch.setattr(spark.sparkContext, "environment", Inherited(spark.sparkContext.environment))
            patch.setenv(DSN_VARIABLE, "")
            error = Stage().play(lambda stage: example.demo(stage, options))
            printed, complaints = capsys.readouterr()
            assert (error, complaints) == (None, ""), printed
            assert [*directory.iterdir()] == []
        return printed

    assert spark.range(1).count() == 1, "else the example would start a Spark"
    return run
