"""What a network does to a lookup: right answers if the fault passes, one clear error in time if it lasts.

Nothing is left behind in either case: no connection, no task, no thread. Faults are counted in bytes and connections,
not in time, so that they strike in the middle of answers on every machine.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from asyncio_operator import ConfigurationError, ElementTimeoutError, EnricherError, FixedBackoff, Retry
from asyncio_operator.engine import lent
from asyncio_operator.lookup import Lookup
from asyncio_operator.spark.driver.build_task import EnrichOptions, enrich_task
from asyncio_operator.spark.worker.links import ChainTask
from enrichers import HttpEnricher, PostgresEnricher
from tests.faults.outsides import LASTING, PASSING, SILENT, Outside, row
from tests.faults.proxy import Mode
from tests.servers import PostgresServer
from tests.spark.helpers import GONE, wait_until

KEYS = 400

IN_TIME = 60.0
"""Seconds, on a machine that is busy with something else; a fault that hangs takes for ever."""

RETRY = Retry(max_attempts=30, backoff=FixedBackoff(0.01))


@asynccontextmanager
async def leaves_nothing(outside: Outside) -> AsyncIterator[None]:
    """What is inside of it ends in time, and everything that it began has ended with it."""
    threads = set(threading.enumerate())
    async with asyncio.timeout(IN_TIME):
        yield
    await asyncio.to_thread(outside.proxy.pass_on)
    async with asyncio.timeout(GONE):
        while outside.proxy.open or len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    # The executor of the loop may keep a thread for later calls, and the thread that watches loops ends a second later.
    left = [thread.name for thread in threading.enumerate() if thread not in threads]
    assert not [name for name in left if not name.startswith(("asyncio_", "asyncio-operator-watch"))]


async def answers(lookup: Lookup, keys: int = KEYS) -> list[Any]:
    return await asyncio.gather(*[lookup.get(key) for key in range(keys)], return_exceptions=True)


@pytest.mark.parametrize(
    "fault", [fault if "in an" in fault else pytest.param(fault, marks=pytest.mark.faults) for fault in PASSING]
)
async def test_a_fault_that_passes_costs_attempts_and_no_answer(outside: Outside, fault: str) -> None:
    outside.enricher.schema()
    await asyncio.to_thread(outside.proxy.set, PASSING[fault])
    async with leaves_nothing(outside):
        attempt = 0.5 if "black" in fault else 20.0
        async with Lookup(outside.enricher, retry=RETRY, attempt_timeout=attempt, capacity=10) as lookup:
            assert await answers(lookup) == [row(key) for key in range(KEYS)]
            assert await answers(lookup, 20) == [row(key) for key in range(20)], "it goes on working"
        # On a busy machine fewer connections are opened, and the last faults come with those of further lookups.
        while outside.proxy.struck < (PASSING[fault].times or 0):
            async with Lookup(outside.enricher, retry=RETRY, attempt_timeout=attempt, capacity=10) as lookup:
                assert await answers(lookup) == [row(key) for key in range(KEYS)]
    assert outside.proxy.struck == PASSING[fault].times, "the fault has not happened"


@pytest.mark.parametrize("slow", [Mode("delay", 0.02), Mode("trickle", 40_000)], ids=lambda mode: mode.kind)
async def test_a_slow_way_costs_time_and_no_answer(outside: Outside, slow: Mode) -> None:
    outside.enricher.schema()
    await asyncio.to_thread(outside.proxy.set, slow)
    async with leaves_nothing(outside), Lookup(outside.enricher, timeout=30.0) as lookup:
        assert await answers(lookup) == [row(key) for key in range(KEYS)]


@pytest.mark.parametrize("warm", [True, pytest.param(False, marks=pytest.mark.faults)], ids=["connected", "new"])
@pytest.mark.parametrize("fault", LASTING)
async def test_a_fault_that_lasts_is_one_clear_error_in_time_and_is_over_when_it_is_over(
    outside: Outside, fault: str, warm: bool
) -> None:
    mode, http, postgres = LASTING[fault]
    expected = http if outside.name == "http" else postgres
    outside.enricher.schema()
    async with leaves_nothing(outside):
        retry = Retry(max_attempts=3, backoff=FixedBackoff(0.01))
        timeout = 0.5 if fault in SILENT else 60.0
        async with Lookup(outside.enricher, retry=retry, timeout=timeout) as lookup:
            if warm:
                assert await answers(lookup, 30) == [row(key) for key in range(30)]
            await asyncio.to_thread(outside.proxy.set, mode)
            kind = EnricherError if "timeout" not in expected else ElementTimeoutError
            for error in await answers(lookup, 30):
                with pytest.raises(kind, match=expected):
                    raise error
            await asyncio.to_thread(outside.proxy.pass_on)
            found = [await answers(lookup, 30) for _ in range(3)][-1]
            assert found == [row(key) for key in range(30)]


UNKNOWN = "there-is-no-such-host.invalid"


@pytest.mark.parametrize("name", ["http", "postgres"])
async def test_a_name_that_does_not_resolve_is_one_clear_error(name: str, postgres: PostgresServer) -> None:
    addresses = [postgres.tcp_dsn(password="hunter2"), f"postgresql://me:hunter2@{UNKNOWN}/db"]
    enricher: HttpEnricher | PostgresEnricher
    if name == "http":
        enricher = HttpEnricher(f"http://{UNKNOWN}/{{key}}", schema="v long")
    else:
        # The driver still finds the server, its workers do not.
        sql = "SELECT k AS id, k AS v FROM unnest($1::int8[]) AS k"
        enricher = PostgresEnricher(lambda: addresses[0].replace("hunter2", postgres.password), query=sql, key="id")
        enricher.schema()
        addresses.pop(0)
    async with asyncio.timeout(IN_TIME):
        async with Lookup(enricher, retry=Retry(max_attempts=3, backoff=FixedBackoff(0.01)), timeout=30) as lookup:
            for error in await answers(lookup, 5):
                assert isinstance(error, EnricherError)
                assert error.retryable is True
                assert re.search("the (service|server) is not reachable", str(error))
                assert "hunter2" not in str(error)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_name_that_the_driver_cannot_resolve_is_told_before_a_job_runs() -> None:
    enricher = PostgresEnricher(f"postgresql://me:hunter2@{UNKNOWN}/db", table="planes", key="id")
    with pytest.raises(
        ConfigurationError, match=rf"at {UNKNOWN}/db: the server is not reachable \(.*not known"
    ) as told:
        enricher.schema()
    assert "hunter2" not in str(told.value)


async def test_a_name_that_resolves_again_is_found_again(outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve, known = socket.getaddrinfo, True

    def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
        if host not in ("service.test", b"service.test"):
            return resolve(host, *arguments, **options)
        if not known:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return resolve("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    enricher = outside.at("service.test")
    enricher.schema()
    async with leaves_nothing(outside), Lookup(enricher, timeout=20, retry=RETRY) as lookup:
        known = False
        asked = asyncio.gather(*[lookup.get(key) for key in range(30)])
        await asyncio.sleep(0.1)
        assert not asked.done()
        known = True
        assert await asked == [row(key) for key in range(30)]


async def test_a_call_that_is_cancelled_in_a_black_hole_ends_within_the_grace_period(
    outside: Outside, caplog: pytest.LogCaptureFixture
) -> None:
    outside.enricher.schema()
    async with leaves_nothing(outside):
        async with Lookup(outside.enricher, timeout=0.3) as lookup:
            await answers(lookup, 30)
            await asyncio.to_thread(outside.proxy.blackhole)
            assert all(isinstance(error, ElementTimeoutError) for error in await answers(lookup, 30))
        assert "ignored its cancellation" not in caplog.text


def batches(outside: Outside, connected: threading.Event, keys: int) -> Iterator[pa.RecordBatch]:
    """Keys of which the first ones get their answers; then the network turns silent."""
    yield pa.RecordBatch.from_pydict({"id": range(keys)})
    connected.wait(IN_TIME)
    outside.proxy.blackhole()
    yield pa.RecordBatch.from_pydict({"id": range(keys, 2 * keys)})


@pytest.mark.parametrize("capacity", [4, 10])
def test_X7_a_task_on_a_silent_network_ends_and_blames_no_call(
    outside: Outside, capacity: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A cancelled lookup waits for its server, but less long than the task waits for the lookup."""
    monkeypatch.setattr(lent, "IDLE", 0.0)
    task, _ = enrich_task(
        StructType().add("id", "long"),
        outside.enricher,
        EnrichOptions(on="id", timeout=0.2, capacity=capacity, on_error="null", buffer=100),
    )
    connected, rows = threading.Event(), 0
    keys = 80 if outside.name == "postgres" else 4
    for output in ChainTask([task])(batches(outside, connected, keys)):
        rows += output.num_rows
        if rows == keys:
            connected.set()
    assert rows == 2 * keys
    assert outside.proxy.struck > 0
    assert "ignore" not in caplog.text
    outside.proxy.pass_on()
    wait_until(lambda: outside.proxy.open == 0, GONE, "the client is closed")
