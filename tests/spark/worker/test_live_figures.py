"""Figures of running tasks on their way to the driver: once a second, and a last time."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from asyncio_operator.engine import lent
from asyncio_operator.figures import Figures
from asyncio_operator.loop.runner import on_loop
from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.spark.driver.driver_service import DriverService
from asyncio_operator.spark.driver.ledger import Ledger, collections, take
from asyncio_operator.spark.worker import reporting
from asyncio_operator.spark.worker.driver_wire import FIGURES, DriverAddress, DriverClient
from asyncio_operator.spark.worker.reporting import Destination, Origin, Sender, TaskReport, TaskReporter
from tests.spark.helpers import wait_until

SOON = 20.0
"""Seconds in which something happens that takes no time."""

EVERY = reporting.EVERY
"""The usual pause. The tests have a shorter one."""


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reporting, "EVERY", 0.02)
    yield
    senders = reporting._senders.all()
    reporting._senders.forget_all()

    async def end() -> None:
        for sender in senders:
            if sender._regular is not None:
                sender._regular.cancel()
            async with sender._one_at_a_time:
                await sender._client.close()

    asyncio.run_coroutine_threadsafe(end(), loop_thread().loop).result(SOON)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def messages() -> list[list[Any]]:
    """All messages that have come."""
    return []


@pytest.fixture
def service(messages: list[list[Any]]) -> Iterator[DriverService]:
    def noted(message: Any) -> None:
        messages.append(message)
        take(message)

    running = DriverService("127.0.0.1", "127.0.0.1", 0, {FIGURES: noted})
    yield running
    running.stop()


class Task:
    """A run that counts rows."""

    def __init__(self, address: DriverAddress, ledger: Ledger, partition: int = 0) -> None:
        self.rows = 0
        self._origin = Origin("e", 1, partition, partition, "r")
        accumulator: Any = SimpleNamespace(add=lambda reports: None)
        self.run = TaskReporter(Destination(accumulator, collections.register(ledger)), self.report, address)

    def report(self) -> TaskReport:
        figures = Figures(rows=self.rows, calls=self.rows)
        return TaskReport("", None, figures, self._origin, "running", in_flight=1)

    def begin(self) -> None:
        on_loop(loop_thread().loop, self.run.running)

    def end(self, state: str) -> None:
        self.run.end(state)


def wait(condition: Callable[[], bool]) -> None:
    wait_until(condition, SOON, "the condition holds")


def test_V1_figures_of_a_running_task_move(service: DriverService, ledger: Ledger) -> None:
    assert EVERY <= 1
    task = Task(service.address, ledger)
    task.begin()
    for rows in (3, 10):
        task.rows = rows
        wait(lambda rows=rows: ledger.sum().rows == rows)  # type: ignore[misc]
    assert ledger.in_flight() == 1
    task.end("succeeded")
    wait(lambda: ledger.in_flight() == 0)


@pytest.mark.parametrize(("state", "rows"), [("failed", 0), ("ended", 7), ("succeeded", 7)])
def test_V1_a_task_has_told_all_when_it_ends_because_spark_may_drop_its_report(
    service: DriverService,
    ledger: Ledger,
    messages: list[list[Any]],
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    rows: int,
) -> None:
    monkeypatch.setattr(reporting, "EVERY", 60)
    monkeypatch.setattr(reporting, "MOMENT", SOON)
    task = Task(service.address, ledger)
    task.begin()
    task.rows = 7
    task.end(state)
    assert (ledger.sum().rows, ledger.sum().calls, len(messages)) == (rows, 7, 1)


def test_V1_a_driver_that_does_not_answer_holds_up_a_short_task_for_a_moment(ledger: Ledger) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        task = Task(DriverAddress("127.0.0.1", silent.getsockname()[1], b"t" * 32), ledger)
        task.begin()
        begun = time.monotonic()
        task.end("succeeded")
        assert time.monotonic() - begun < 5


def test_V1_one_message_has_the_figures_of_all_tasks_of_a_process(
    service: DriverService, ledger: Ledger, messages: list[list[Any]]
) -> None:
    tasks = [Task(service.address, ledger, number) for number in range(5)]
    for task in tasks:
        task.rows = 10
        task.begin()
    wait(lambda: ledger.sum().rows == 50)
    assert max(map(len, messages)) == 5
    for task in tasks:
        task.end("succeeded")
    wait(lambda: ledger.in_flight() == 0)
    count = len(messages)
    time.sleep(0.1)
    assert len(messages) == count, "nothing is sent while no task runs"


def test_V1_a_driver_that_cannot_be_reached_holds_up_nothing(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    asked: list[float] = []
    ask = DriverClient.ask

    async def counting(self: Any, topic: str, question: Any) -> Any:
        asked.append(time.monotonic())
        return await ask(self, topic, question)

    monkeypatch.setattr(DriverClient, "ask", counting)
    caplog.set_level("INFO", "asyncio_operator.metrics")
    task = Task(DriverAddress("127.0.0.1", port, b"t" * 32), ledger)
    task.begin()
    wait(lambda: bool(asked))
    time.sleep(0.1)
    begun = time.monotonic()
    task.end("failed")
    assert time.monotonic() - begun < reporting.LAST
    assert len(asked) == 1
    assert "figures arrive when tasks have ended: the driver at 127.0.0.1" in caplog.text


def test_V1_figures_move_again_after_code_of_the_user_has_cancelled_all_tasks(
    service: DriverService, ledger: Ledger
) -> None:
    first, second = Task(service.address, ledger), Task(service.address, ledger, 1)
    first.begin()
    [sender] = reporting._senders.all()
    on_loop(loop_thread().loop, lambda: sender._regular and sender._regular.cancel())
    wait(lambda: sender._regular is not None and sender._regular.done())
    first.rows = second.rows = 5
    second.begin()
    wait(lambda: ledger.sum().rows == 10)
    for task in (first, second):
        task.end("succeeded")
    wait(lambda: ledger.in_flight() == 0)


def test_V1_figures_move_of_a_task_that_begins_while_the_connection_is_closed(
    service: DriverService, ledger: Ledger
) -> None:
    first, second = Task(service.address, ledger), Task(service.address, ledger, 1)
    first.begin()
    wait(lambda: ledger.in_flight() == 1)
    first.end("succeeded")
    second.rows = 5
    senders = reporting._senders

    def close_and_begin() -> None:
        senders.give_back(service.address, senders.borrow(service.address, no_other), keep=False)
        second.run.running()

    on_loop(loop_thread().loop, close_and_begin)
    wait(lambda: ledger.sum().rows == 5)
    second.end("succeeded")
    wait(lambda: ledger.in_flight() == 0)


def no_other() -> Sender:
    raise AssertionError("it is not kept")


def test_V1_the_connection_is_closed_when_no_task_has_run_for_a_while(
    service: DriverService, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lent, "IDLE", 0.05)
    task = Task(service.address, ledger)
    task.begin()
    wait(lambda: ledger.in_flight() == 1)
    [sender] = reporting._senders.all()
    task.end("succeeded")
    wait(lambda: sender._client._wire is None)
