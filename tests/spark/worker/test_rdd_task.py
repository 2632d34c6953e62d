"""A task of `map_partitions` without Spark: elements in, results out, on the real loop thread."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import ClassVar

import pytest

from asyncio_operator import AsyncFunction
from asyncio_operator.spark.rdd import PartitionTask
from tests.spark.helpers import wait_until
from tests.spark.worker.tasks import ENDS

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


class Counted(AsyncFunction[int, int]):
    """Counts what is done, by the name it was given; of the numbers from `hangs` on none gets a result."""

    done: ClassVar[Counter[str]] = Counter()

    def __init__(self, name: str, hangs: int = 10**9) -> None:
        self.name = name
        self.hangs = hangs
        self.client: object = None

    async def open(self) -> None:
        assert self.client is None, "opened twice"
        self.client = object()
        Counted.done[f"{self.name} opened"] += 1

    async def invoke(self, value: int) -> int:
        if value >= self.hangs:
            Counted.done[f"{self.name} hangs"] += 1
            try:
                await asyncio.Event().wait()
            finally:
                Counted.done[f"{self.name} cancelled"] += 1
        return value

    async def close(self) -> None:
        Counted.done[f"{self.name} closed"] += 1


def test_X7_closed_early_it_cancels_what_runs_and_closes_the_function() -> None:
    Counted.done.clear()
    results = PartitionTask(Counted("early", hangs=3), {"capacity": 10})(range(100))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    results.close()  # type: ignore[attr-defined]
    assert Counted.done["early cancelled"] == Counted.done["early hangs"] > 0
    assert Counted.done["early closed"] == 1


@pytest.mark.parametrize("between", [False, True])
def test_X7_a_task_ends_with_the_one_that_reads_its_results(between: bool) -> None:
    """It waits in a thread that cannot be interrupted, and has nothing more to give."""
    Counted.done.clear()
    first = PartitionTask(Counted("first", hangs=3), {}, watch=0.01)(range(100))
    second = PartitionTask(Counted("second"), {})(map(int, first) if between else first)
    assert [next(second) for _ in range(3)] == [0, 1, 2]
    wait_until(lambda: Counted.done["first hangs"] == 97, ENDS, "the first task waits")
    second.close()  # type: ignore[attr-defined]
    wait_until(lambda: Counted.done["first closed"] == 1, ENDS, "the first task has ended")
    assert Counted.done["first cancelled"] == 97
    assert Counted.done["second closed"] == 1
