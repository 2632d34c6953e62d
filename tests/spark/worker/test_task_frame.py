"""A task without Spark: hand-made batches in, batches out, on the real loop thread. Only upper bounds of time are
asserted, and generous ones; what has to be slow waits for an event."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator import FunctionError
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.spark.worker.link import EnrichTask
from asyncio_operator.spark.worker.links import ChainTask
from asyncio_operator.spark.worker.rows import Layout
from enrichers import FunctionEnricher

ENDS = 20.0
"""Seconds in which everything here must end, on however busy a machine."""

_numbers = iter(range(10**9))


@pytest.fixture(params=[True, False], ids=["ordered", "unordered"])
def ordered(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def task_of(function: Any, *, reporting: Any = None, inner: bool = False, **options: Any) -> ChainTask:
    enricher = FunctionEnricher(function, "x long")
    layout = Layout((0,), enricher.schema(), inner)
    task = EnrichTask(
        enricher, f"test {next(_numbers)}", layout, LookupOptions(**options), enricher.schema(), "", reporting
    )
    return ChainTask([task])


def batches_of(*sizes: int) -> Iterator[pa.RecordBatch]:
    start = 0
    for size in sizes:
        yield pa.RecordBatch.from_pydict({"id": range(start, start + size)})
        start += size


def ids_of(output: Any) -> list[int]:
    return [row for batch in output for row in batch.column(0).to_pylist()]


def feeders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "asyncio-operator-feeder"]


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + ENDS
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    yield
    wait_for(lambda: not feeders())

    async def others() -> int:
        return len(asyncio.all_tasks()) - 1

    loop = loop_thread().loop
    wait_for(lambda: asyncio.run_coroutine_threadsafe(others(), loop).result(ENDS) == 0)


async def double(key: int) -> Any:
    return {"x": 2 * key}


class Signal:
    """An event that lookups wait for and a thread sets; counts the lookups that wait."""

    def __init__(self) -> None:
        self._event: asyncio.Event | None = None
        self.waiting = 0

    async def wait(self) -> None:
        self._event = self._event or asyncio.Event()
        self.waiting += 1
        try:
            await self._event.wait()
        finally:
            self.waiting -= 1

    def set(self) -> None:
        wait_for(lambda: self._event is not None)
        assert self._event is not None
        loop_thread().loop.call_soon_threadsafe(self._event.set)


def test_X9_ready_rows_leave_although_a_key_of_their_batch_is_slow(ordered: bool) -> None:
    signal, came = Signal(), list[int]()

    async def look_up(key: int) -> Any:
        if key == 5:
            await signal.wait()
        return {"x": key}

    def consume() -> None:
        for batch in task_of(look_up, ordered=ordered)(batches_of(10)):
            came.extend(batch.column(0).to_pylist())

    thread = threading.Thread(target=consume)
    thread.start()
    early = [0, 1, 2, 3, 4] if ordered else [0, 1, 2, 3, 4, 6, 7, 8, 9]
    wait_for(lambda: came == early)
    signal.set()
    thread.join(ENDS)
    assert came == (list(range(10)) if ordered else [*early, 5])


def test_X9_nothing_is_read_without_bound_ahead_of_a_consumer_that_rests(ordered: bool) -> None:
    read = 0

    def source() -> Iterator[pa.RecordBatch]:
        nonlocal read
        for batch in batches_of(*[10_000] * 60):
            read += 1
            yield batch

    output = task_of(double, ordered=ordered)(source())
    seen = next(output).num_rows
    for _ in range(20):
        before = read
        time.sleep(0.05)
        if before == read:
            break
    assert read <= 8
    assert seen + sum(batch.num_rows for batch in output) == 600_000


def test_an_error_of_the_input_reaches_the_caller(ordered: bool) -> None:
    def source() -> Iterator[pa.RecordBatch]:
        yield from batches_of(3)
        raise EOFError("Spark is gone")

    with pytest.raises(EOFError, match="Spark is gone"):
        list(task_of(double, ordered=ordered)(source()))


def test_a_batch_that_cannot_be_keyed_is_an_error_not_a_hang() -> None:
    with pytest.raises((pa.ArrowException, NotImplementedError)):
        list(task_of(double)(iter([pa.RecordBatch.from_pydict({"id": [{"a": 1}]})])))


def test_X5_a_failure_names_enricher_key_and_cause_and_leaves_no_call(ordered: bool) -> None:
    signal = Signal()

    async def look_up(key: int) -> Any:
        if key == 3:
            raise ValueError("bad luck")
        await signal.wait()

    with pytest.raises(FunctionError, match=r"look_up, x\) failed for key 3: ValueError: bad luck") as caught:
        list(task_of(look_up, ordered=ordered)(batches_of(10)))
    assert isinstance(caught.value.__cause__, ValueError)
    assert signal.waiting == 0


@pytest.mark.parametrize("error", [OSError("no route to host"), SystemExit(3)])
def test_X5_an_enricher_that_does_not_open_fails_the_task_by_name(error: BaseException) -> None:
    class Broken(FunctionEnricher):
        async def open(self) -> None:
            raise error

    enricher = Broken(double, "x long")
    task = EnrichTask(
        enricher, f"broken {error}", Layout((0,), enricher.schema()), LookupOptions(), enricher.schema(), ""
    )
    with pytest.raises(FunctionError, match=r"could not be opened: .*(no route to host|3)"):
        list(ChainTask([task])(batches_of(3)))


def test_X7_closed_early_it_cancels_what_runs(ordered: bool) -> None:
    signal = Signal()

    async def look_up(key: int) -> Any:
        if key >= 5:
            await signal.wait()
        return {"x": key}

    output = task_of(look_up, ordered=ordered)(batches_of(10, 10))
    assert next(output).column(0).to_pylist() == [0, 1, 2, 3, 4]
    assert signal.waiting == 15
    output.close()  # type: ignore[attr-defined]
    assert signal.waiting == 0


def test_X7_closed_early_while_its_feeder_waits_for_room_it_leaves_no_thread(ordered: bool) -> None:
    output = task_of(double, ordered=ordered, buffer=10)(batches_of(*[10] * 500))
    assert next(output).num_rows == 10
    output.close()  # type: ignore[attr-defined]


def test_X7_a_task_that_is_never_started_starts_nothing() -> None:
    output = task_of(double)(batches_of(10))
    assert feeders() == []
    output.close()  # type: ignore[attr-defined]


def test_X7_closed_while_its_input_waits_it_ends() -> None:
    more = threading.Event()

    def source() -> Iterator[pa.RecordBatch]:
        yield from batches_of(3)
        more.wait(ENDS)

    output = task_of(double)(source())
    assert next(output).num_rows == 3
    output.close()  # type: ignore[attr-defined]
    more.set()


def test_L8_two_tasks_at_once_in_one_process_do_not_disturb_each_other(ordered: bool) -> None:
    opened = 0

    class Counted(FunctionEnricher):
        async def open(self) -> None:
            nonlocal opened
            opened += 1
            await asyncio.sleep(0.01)

    enricher = Counted(double, "x long")
    task = EnrichTask(
        enricher,
        f"two at once {ordered}",
        Layout((0,), enricher.schema()),
        LookupOptions(ordered=ordered),
        enricher.schema(),
        "",
    )
    results: dict[int, list[int]] = {}

    def run(number: int) -> None:
        results[number] = ids_of(ChainTask([task])(batches_of(*[100] * (number + 3))))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ENDS)
    assert {n: sorted(ids) for n, ids in results.items()} == {n: list(range(100 * (n + 3))) for n in range(4)}
    assert opened == 1
