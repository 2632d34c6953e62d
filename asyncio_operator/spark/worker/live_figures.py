"""How the figures of running tasks get to the driver: once a second, over the connection that budgets use too.

All runs of a worker share a connection, and one message has the figures of all. Figures are those since the start of a
run, so a lost message does no harm. A run that fails, or that Spark ends, waits for the answer to a last one, `LAST`
seconds at most. If a run succeeds, Spark itself passes on its report, except after a `limit`: once Spark has enough
rows, it drops the report and ends the worker. So a run that succeeds waits for the answer too, `MOMENT` seconds at
most.

Law: a driver that cannot be reached costs a task nothing but these seconds, once a minute. All of this runs on the
loop, except for `RunReport.end`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from asyncio_operator.clock import monotonic
from asyncio_operator.engine.lent import Lent
from asyncio_operator.engine.timing import start_task
from asyncio_operator.errors import CoordinatorError
from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.spark.worker.driver_client import DriverClient
from asyncio_operator.spark.worker.driver_wire import DriverAddress
from asyncio_operator.spark.worker.task_report import TaskReport

logger = logging.getLogger("asyncio_operator.metrics")

FIGURES_TOPIC = "figures"
"""The topic of figures."""

EVERY = 1.0
"""Seconds between two messages."""

LAST = 1.0
"""Seconds that a task which does not succeed waits until its last figures have arrived."""

MOMENT = 0.05
"""Seconds that a task which succeeds waits until its last figures have arrived."""

PAUSE = 60.0
"""Seconds without a message after the driver did not answer."""

MOST_RUNS = 50
"""Reports in one message. One has a few kilobytes at most, and a message has room for a megabyte."""


@dataclass(frozen=True, slots=True)
class LiveMetrics:
    """Where the figures of running tasks go. It is sent to the workers.

    Attributes:
        ledger: names the ledger on the driver.
    """

    address: DriverAddress
    ledger: str


class Sender:
    """Sends the figures of this process to one driver."""

    def __init__(self, address: DriverAddress) -> None:
        self._client = DriverClient(address)
        self._runs: dict[RunReport, None] = {}
        self._regular: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._not_before = 0.0

    def begin(self, run: RunReport) -> None:
        """Send its figures from now on."""
        self._runs[run] = None
        # A function of the user may have cancelled all tasks of the loop.
        if self._regular is None or self._regular.done():
            self._regular = start_task(self._send_regularly())

    async def last(self, run: RunReport) -> None:
        """Send the figures of one run that has ended."""
        self._runs.pop(run, None)
        await self._send([run])

    async def _send_regularly(self) -> None:
        while self._runs:
            await asyncio.sleep(EVERY)
            runs = list(self._runs)
            for start in range(0, len(runs), MOST_RUNS):
                await self._send(runs[start : start + MOST_RUNS])

    async def _send(self, runs: Sequence[RunReport]) -> None:
        async with self._one_at_a_time:
            # What has ended by now is sent for the last time.
            for run in runs:
                if run.over is not None:
                    self._runs.pop(run, None)
            if not runs or monotonic() < self._not_before:
                return
            reports = [[run.ledger, run.now().as_json()] for run in runs]
            try:
                await self._client.ask(FIGURES_TOPIC, reports)
            except CoordinatorError as error:
                self._not_before = monotonic() + PAUSE
                logger.info("figures arrive when tasks have ended: %s", error)

    async def close(self) -> None:
        """Close the connection, when nothing runs."""
        await self._client.close()


_senders: Lent[DriverAddress, Sender] = Lent(end=Sender.close)


class RunReport:
    """The reports of one run while it runs, and at its end.

    Args:
        report: returns the figures so far, as a report of a running task.

    Attributes:
        over: the last report of a run that has ended.
    """

    def __init__(self, live: LiveMetrics, report: Callable[[], TaskReport]) -> None:
        self.ledger = live.ledger
        self.over: TaskReport | None = None
        self._address = live.address
        self._report = report
        self._sender: Sender | None = None

    def now(self) -> TaskReport:
        """The figures so far."""
        return self.over or self._report()

    def begin(self) -> None:
        """Report from now on. Call it on the loop."""
        self._sender = _senders.borrow(self._address, partial(Sender, self._address))
        self._sender.begin(self)

    def end(self, report: TaskReport, state: str) -> None:
        """The last report. Call it on the task's main thread, which may wait `MOMENT` seconds if the state is
        "succeeded", and `LAST` seconds if it is "failed", or if Spark has "ended" the task."""
        succeeded = state == "succeeded"
        # Rows of a task that has succeeded are those of Spark's own report.
        self.over = replace(report, state="ended" if succeeded else state)
        loop = loop_thread().loop
        if self._sender is None or not loop.is_running():
            return
        last = asyncio.run_coroutine_threadsafe(self._sender.last(self), loop)
        loop.call_soon_threadsafe(_senders.give_back, self._address, self._sender)
        try:
            last.result(MOMENT if succeeded else LAST)
        except Exception:  # The task's own error matters more.
            if not succeeded:
                last.cancel()
