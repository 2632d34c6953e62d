"""What the steps of examples print about a Spark job."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from examples.stage import ProblemError, job


class Spark:
    """A session whose only stage has done one task of two, which `looked` tells."""

    def __init__(self) -> None:
        self.looked = threading.Event()
        self.sparkContext = self

    def statusTracker(self) -> Any:
        return self

    def getActiveStageIds(self) -> list[int]:
        return [7]

    def getStageInfo(self, number: int) -> Any:
        self.looked.set()
        return SimpleNamespace(numCompletedTasks=1, numTasks=2)


def test_the_last_tasks_are_shown_although_the_job_ends_before_the_next_look(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spark: Any = Spark()
    with job(spark, every=0.001):
        assert spark.looked.wait(60)
    assert capsys.readouterr().out == " 1/2 2/2"


def test_a_failed_job_shows_only_the_tasks_that_were_done(capsys: pytest.CaptureFixture[str]) -> None:
    spark: Any = Spark()

    def fail() -> None:
        with job(spark, every=0.001):
            assert spark.looked.wait(60)
            raise ValueError("ValueError: no")

    with pytest.raises(ProblemError, match="the Spark job failed: ValueError: no"):
        fail()
    assert capsys.readouterr().out == " 1/2"
