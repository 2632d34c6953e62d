"""Draws the picture of the live page: the page itself in a headless Chromium, with five minutes of figures.

    .venv/bin/python tools/live_picture.py            draws docs/pictures/live-page.png

The page, its server and its samples are those of `metrics.serve()`. Only the figures are made up: two lookups in four
tasks, a service that slows down for a minute and answers 503, and retries that follow.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

from asyncio_operator.clock import wall
from asyncio_operator.figures import Figures
from asyncio_operator.spark.driver.ledger import Ledger, Lookup
from asyncio_operator.spark.driver.live_page import LivePage, LiveSamples
from asyncio_operator.spark.worker.reporting import Origin, TaskReport
from asyncio_operator.testing import ManualClock
from asyncio_operator.trace import Trace

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "live-page.png"

SECONDS = 300
TASKS = 4
WIDTH, HEIGHT = 1200, 1330


class Job:
    """The figures of two lookups, second after second."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._random = random.Random(7)
        prices = Lookup("HttpEnricher('https://prices.example/rows/{product}')", "prices", None, slow_keys())
        planes = Lookup("PostgresEnricher('db.example/flights', table='planes')", "planes")
        self._lookups = [(ledger.begin(one), one.part) for one in (prices, planes)]
        self._figures = {(part, task): Figures() for _, part in self._lookups for task in range(TASKS)}

    def second(self, number: int) -> None:
        """One second goes by."""
        trouble = 180 < number < 240
        for enrichment, part in self._lookups:
            slow = trouble and part == "prices"
            for task in range(TASKS):
                figures = self._figures[part, task]
                self._work(figures, slow, 40 if part == "prices" else 6)
                flying = self._random.randint(70, 100) if slow else self._random.randint(15, 40)
                origin = Origin(enrichment, 5, task, 20 + task, "r")
                # A copy: a report of a worker does not change afterwards.
                sent = Figures.of_json(figures.as_json())
                self._ledger.extend([TaskReport(part, None, sent, origin, "running", flying)])

    def _work(self, figures: Figures, slow: bool, usual: int) -> None:
        calls = usual // (3 if slow else 1) + self._random.randint(0, 4)
        rows = calls * 30
        figures.rows += rows
        figures.found += rows - rows // 20
        figures.missing += rows // 20
        figures.calls += calls
        figures.cache_hits += calls // 2
        for _ in range(calls):
            seconds = self._random.lognormvariate(-0.7 if slow else -2.6, 0.5)
            figures.attempt_latency.add(seconds)
            figures.latency.add(seconds)
        if slow:
            figures.retries += calls // 3
            figures.errors["EnricherError"] += calls // 3
            figures.errors["ElementTimeoutError"] += calls // 12


def slow_keys() -> Trace:
    """A trace of five slow keys."""
    trace = Trace()
    trace.started(0.0)
    for number, key in enumerate(["lamp", "tea", "ink", "oil", "rope"]):
        trace.admitted(0.0, number, key)
        trace.record("attempt_started", 0.0, number, 1)
        trace.record("attempt_ended", 2.4 - number / 3, number, 1, "error", "EnricherError: status 503")
        trace.record("attempt_started", 2.5 - number / 3, number, 2)
        trace.record("attempt_ended", 2.9 - number / 3, number, 2, "result")
        trace.record("completed", 2.9 - number / 3, number, "result")
        trace.record("emitted", 3.0, number)
    trace.record("ended", 3.0)
    return trace


def main() -> int:
    """Draw it. 1: there is no Chromium."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("there is no Chromium on PATH", file=sys.stderr)
        return 1
    ledger = Ledger()
    job, clock = Job(ledger), ManualClock(wall() - SECONDS)
    samples = LiveSamples(ledger, clock, clock)
    for number in range(SECONDS):
        job.second(number)
        samples.take()
        clock.advance(1)
    with LivePage(ledger, 0, "127.0.0.1") as page:
        page._samples = samples
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=4000"]
        shot = [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={PICTURE}", page.url]
        subprocess.run([chromium, *options, *shot], check=True, capture_output=True, timeout=120)
    print(f"{PICTURE.name} is drawn")
    return 0


if __name__ == "__main__":
    sys.exit(main())
