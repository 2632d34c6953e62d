"""What the steps of examples print about a Spark job."""

from __future__ import annotations

import threading
from contextlib import nullcontext
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


@pytest.mark.parametrize(("error", "shown"), [(None, " 1/2 2/2"), (ValueError("ValueError: no"), " 1/2")])
def test_the_last_tasks_are_shown_although_the_job_ends_before_the_next_look_and_of_a_failed_one_those_that_were_done(
    error: Exception | None, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spark: Any = Spark()
    failing = pytest.raises(ProblemError, match="the Spark job failed: ValueError: no")
    with nullcontext() if error is None else failing, job(spark, every=0.001):
        assert spark.looked.wait(60)
        if error is not None:
            raise error
    assert capsys.readouterr().out == shown
