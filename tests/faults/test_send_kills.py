"""Law W2 with whole jobs: workers and drivers are killed at random moments, in the middle of calls, and jobs run again.

A service answers some requests with 429 and 503, and refuses some rows for good. It notes every answer that decides
about a row, by its idempotency key. A request with a key that was decided may come only if the process that had the
answer was killed, at most `BOUND` seconds after it (see `killed_jobs`). Some rows are equal.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from asyncio_operator.testing import FakeAnswer, FakeRequest, FakeService
from examples.cluster import executors, options, standalone
from tests.faults.killed_jobs import KEYS, SESSION, Ask, Service, kill_at_random_moments
from tests.faults.programs import Kill, line_of, spark_program

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(3600)]

PROGRAM = (
    SESSION
    + """
directory, flush_every, keys, runs = given
spark.conf.set("spark.sql.shuffle.partitions", 2)
target = HttpEnricher(
    url + "/orders", key="id", method="POST", schema="x string", json_body={"id": "{id}"}, headers=process
)
for number in map(int, sys.stdin):
    # Of ten rows two are equal.
    rows = spark.range(number * keys, (number + 1) * keys, numPartitions=2).selectExpr("if(id % 10 = 1, id - 1, id) id")
    for run in range(runs):
        journal = Journal(f"{directory}/{number}", flush_every=flush_every, identity="orders")
        options = {"on": "id", "journal": journal, "capacity": 10, "timeout": 60, "on_error": "keep"}
        options["retry"] = Retry(2, FixedBackoff(0.01), on="retryable")
        # What has failed is sent again by the next run, in other partitions. So is what a lost executor had to report.
        report = None
        while report is None or report.failed:
            try:
                report = send(rows if report is None else rows.repartition(3), target, **options)
            except Exception:
                pass
        print("good" if report.rows == keys else f"wrong: {report}", flush=True)
"""
)


REPORT = (
    SESSION
    + """
spark.conf.set("spark.sql.shuffle.partitions", 8)
target = HttpEnricher(url + "/orders", key="id", method="POST", schema="x string", json_body={"id": "{id}"})
report = send(spark.range(0, 400, 1, 8), target, on="id", on_error="keep")
print(report.refused, flush=True)
input()
print(report.failures.where("http_status = 422").count(), flush=True)
"""
)


class OrderService(Service):
    """Decides about orders. One row of ten is refused.

    Attributes:
        decided: how often it has accepted or refused each order, every idempotency key once.
    """

    program = PROGRAM

    def __init__(self) -> None:
        super().__init__()
        self.decided: Counter[int] = Counter()
        self._drawn = random.Random(5)
        self._orders: dict[str, int] = {}

    async def _answer(self, request: FakeRequest) -> Any:
        process, order = int(request.headers["x-process"]), json.loads(request.body)["id"]
        key = request.headers["idempotency-key"]
        assert self._orders.setdefault(key, order) == order, "two rows have one key"
        came, answered = monotonic(), inf
        self.asked += 1
        self.processes.add(process)
        if self.latency and self._drawn.random() < 0.1:
            return FakeAnswer({"error": "later"}, self._drawn.choice([429, 503]), {"Retry-After": "0"})
        try:
            await self.wait(order)
            answered = monotonic()
        finally:
            if key not in self.asks:
                self.decided[order] += 1
            self.asks[key].append(Ask(process, came, answered))
        return FakeAnswer({"error": "no"}, 422) if order % 10 == 3 else FakeAnswer("", 204)

    def check(self, kills: Sequence[Kill]) -> None:
        super().check(kills)
        assert {(order % 10, count) for order, count in self.decided.items()} == {
            (last, 2 if last == 0 else 1) for last in range(10) if last != 1
        }
        assert sum(self.decided.values()) % KEYS == 0


@pytest.mark.parametrize("victims", ["workers", "executors", "drivers"])
def test_W2_processes_killed_at_a_hundred_moments_send_twice_only_what_was_in_flight(
    tmp_path: Path, victims: str
) -> None:
    """Asserted: no row that was decided more than 0.8 s before the kill of its process is sent again."""
    service = OrderService()
    service.check(kill_at_random_moments(service, tmp_path, victims, 11))


def test_W1_a_report_outlives_the_executor_that_made_it(tmp_path: Path) -> None:
    def refuse(request: FakeRequest) -> FakeAnswer:
        return FakeAnswer({"error": "no"}, 422) if json.loads(request.body)["id"] % 10 == 3 else FakeAnswer("", 204)

    with (
        standalone(tmp_path) as master,
        FakeService(handler=refuse) as service,
        spark_program(REPORT, options(tmp_path, master, Path(sys.executable)), service.url) as job,
    ):
        assert line_of(job) == "40"
        lost = executors(tmp_path)
        assert len(lost) == 2
        lost[0].kill()
        lost[0].wait(30)
        told, _ = job.communicate("\n", 120)
        assert told == "40\n"
        assert len(service.requests) == 400
