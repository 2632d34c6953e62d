"""The links of a chain without Spark: hand-made batches in, batches out, on the real loop thread. What has to be slow
waits for an event, and the only times that are asserted are generous upper bounds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial, reduce
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator import Cache, Enricher, FixedBackoff, FunctionError, MissingKeyError, Retry
from asyncio_operator.figures import Figures
from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.policies.shutdown import TASK_END
from asyncio_operator.spark.worker import links
from asyncio_operator.spark.worker.links import ChainTask, EnrichTask, Link
from asyncio_operator.spark.worker.output_batches import OUTPUT_ROWS
from asyncio_operator.spark.worker.reporting import Reporting
from asyncio_operator.spark.worker.rows import Layout
from asyncio_operator.spark.worker.task_frame import outputs_of
from enrichers import FunctionEnricher, PostgresEnricher
from tests.spark.worker.tasks import (
    ENDS,
    Batches,
    Gate,
    batches_of,
    chained,
    rows_of,
    same,
    task_for,
    task_of,
    wait_for,
)
from tests.test_import import printed

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")


def separate(tasks: list[EnrichTask], batches: Batches) -> Batches:
    """The same as stages of their own: each task reads what the one before it gives."""
    return reduce(lambda rows, task: ChainTask([task])(rows), tasks, batches)


def reporting(figures: list[Figures]) -> Reporting:
    """Puts the figures that a task reports at its end into the list."""
    destination: Any = SimpleNamespace(add=lambda reports: figures.extend(report.figures for report in reports))
    return Reporting(destination, "", "an enrichment")


@contextlib.contextmanager
def consumed(output: Batches) -> Iterator[list[dict[str, Any]]]:
    """The rows that have come so far, read by another thread."""
    came: list[dict[str, Any]] = []

    def read() -> None:
        for batch in output:
            came.extend(batch.to_pylist())

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield came
    finally:
        thread.join(ENDS)
        assert not thread.is_alive()


# -- C1: the rows of separate stages


async def odd(name: str, key: int) -> Any:
    """Misses, several rows, failures and nulls, by the key."""
    await asyncio.sleep(0)
    match key % 7:
        case 0:
            return None
        case 1:
            return [{name: key // 2}, {name: key + 1}]
        case 2:
            raise ValueError("bad luck")
        case 3:
            return {name: None}
    return {name: key // 3}


LINKS = st.fixed_dictionaries(
    {
        "inner": st.booleans(),
        "drop_failed": st.booleans(),
        "status": st.booleans(),
        "buffer": st.sampled_from([1, 5, 1000]),
        "capacity": st.sampled_from([1, 3, 100]),
        "cache": st.sampled_from([None, Cache(max_rows=5)]),
    }
)


@settings(max_examples=40)
@given(
    keys=st.lists(st.lists(st.integers(0, 30) | st.none(), max_size=12), max_size=5),
    made=st.lists(LINKS, min_size=2, max_size=3),
    ordered=st.booleans(),
)
def test_C1_rows_statuses_and_figures_are_those_of_separate_stages(
    keys: list[list[int | None]], made: list[dict[str, Any]], ordered: bool
) -> None:
    def batches() -> Batches:
        for batch in keys:
            yield pa.RecordBatch.from_pydict({"id": pa.array(batch, pa.int64())})

    def run(how: Callable[..., Batches]) -> tuple[list[Any], list[Any]]:
        figures: list[Figures] = []
        tasks, key, width = [], 0, 1
        for name, options in zip("abc", made, strict=False):
            options = {"fail": False, "ordered": ordered, "timed": options["status"], **options}
            tasks.append(task_of(name, partial(odd, name), key, reporting=reporting(figures), **options))
            # The next key is the column that this lookup added.
            key, width = width, width + 1 + options["status"]
        rows = [tuple(map(plain, row.items())) for row in rows_of(how(tasks, batches()))]
        counted = [(f.rows, f.found, f.missing, f.failures, f.skipped, f.timeouts) for f in figures]
        return (rows if ordered else sorted(rows, key=repr)), sorted(counted)

    assert run(chained) == run(separate)


def plain(item: tuple[str, Any]) -> Any:
    """A column without what depends on where batches end, and on the clock."""
    name, value = item
    if isinstance(value, dict):
        value = {part: value[part] for part in ("status", "error_type", "error_message")}
    return name, value


def test_C1_event_time_bounds_the_order_of_a_later_lookup_too() -> None:
    gate = Gate()

    async def all_but_the_first(key: int) -> Any:
        if key == 0:
            await gate.wait()
        return {"b": key}

    tasks = [
        task_of("a", same, ordered=False, event_time=0, delay=2),
        task_of("b", all_but_the_first, 1, ordered=False, event_time=1, delay=2),
    ]
    output = chained(tasks, batches_of(10, 10))
    ids: list[int] = next(output).column(0).to_pylist()
    assert ids == [1, 2]
    gate.open()
    ids += [row["id"] for row in rows_of(output)]
    assert sorted(ids) == list(range(20))
    assert all(before - after <= 2 for i, before in enumerate(ids) for after in ids[i:])


def test_C1_lookups_of_one_specification_share_their_client() -> None:
    opened = 0

    class Counted(FunctionEnricher):
        async def open(self) -> None:
            nonlocal opened
            opened += 1
            await asyncio.sleep(0)

    task = task_of("a", same)
    enricher = Counted(same, "a long")
    tasks = [replace(task, enricher=enricher, layout=Layout((key,), enricher.schema())) for key in (0, 1)]
    assert [len(row) for row in rows_of(chained(tasks, batches_of(3)))] == [3, 3, 3]
    assert opened == 1


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """The rows of each batch that a lookup has read, by the column that it adds."""
    sizes: dict[str, list[int]] = {}

    class Counting(Link):
        def keys_of(self, batch: pa.RecordBatch) -> Any:
            sizes.setdefault(self.name[-2], []).append(batch.num_rows)
            return super().keys_of(batch)

    monkeypatch.setattr(links, "Link", Counting)
    return sizes


@pytest.mark.parametrize("most_rows", [OUTPUT_ROWS, 60])
def test_C1_parts_that_wait_are_joined_to_whole_batches(
    read: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch, most_rows: int
) -> None:
    """A batch costs the same however few its keys are. Its bytes are bounded too."""
    gate = Gate()
    monkeypatch.setattr(links, "OUTPUT_BYTES", most_rows * 16)

    async def slow(key: int) -> Any:
        await gate.wait()
        return {"b": key}

    tasks = [task_of("a", same, buffer=1000), task_of("b", slow, 1, buffer=10, capacity=10)]
    with consumed(chained(tasks, batches_of(*[10] * 200))) as came:
        wait_for(lambda: gate.waiting == 10 and len(read["a"]) >= 100)
        gate.open()
    assert [row["b"] for row in came] == list(range(2000))
    assert len(read["a"]) == 200
    assert len(read["b"]) < 100
    assert max(read["b"]) <= most_rows


def test_C1_many_rows_of_a_key_reach_the_next_lookup_piece_by_piece(read: dict[str, list[int]]) -> None:
    """All at once they could be more than fits into memory."""
    gate, rows = Gate(), 12 * OUTPUT_ROWS

    async def many(key: int) -> Any:
        return [{"a": i} for i in range(rows)]

    async def slow(key: int) -> Any:
        await gate.wait()
        return {"b": key}

    with consumed(chained([task_of("a", many), task_of("b", slow, 1, buffer=100)], batches_of(1))) as came:
        wait_for(lambda: gate.waiting == 100)
        assert sum(read["b"]) <= 5 * OUTPUT_ROWS
        gate.open()
    assert [row["b"] for row in came] == list(range(rows))


# -- C4: lookups that overlap, bounds, and ends


@pytest.mark.parametrize("count", [1, 2])
def test_X9_C4_rows_leave_while_a_key_of_the_first_lookup_hangs(ordered: bool, count: int) -> None:
    gate = Gate()

    async def some(key: int) -> Any:
        if key == 5:
            await gate.wait()
        return {"a": key}

    tasks = [task_of("a", some, ordered=ordered), task_of("b", same, 1, ordered=ordered)]
    early = {0, 1, 2, 3, 4} if ordered else set(range(10)) - {5}
    with consumed(chained(tasks[:count], batches_of(10))) as came:
        wait_for(lambda: {row["id"] for row in came} == early)
        gate.open()
    assert {row["id"] for row in came} == set(range(10))


@pytest.mark.parametrize("count", [2, 3])
def test_C4_when_the_last_lookup_stands_still_each_one_before_it_begins_its_buffer_more(
    ordered: bool, count: int, read: dict[str, list[int]]
) -> None:
    gate, calls = Gate(), [0] * count

    async def counted(number: int, key: int) -> Any:
        calls[number] += 1
        if number == count - 1:
            await gate.wait()
        return {"abc"[number]: key}

    buffers = [50, 40, 30][3 - count :]
    tasks = [
        task_of("abc"[i], partial(counted, i), i, ordered=ordered, buffer=buffer, capacity=100)
        for i, buffer in enumerate(buffers)
    ]
    rows = 2_000
    with consumed(chained(tasks, batches_of(*[10] * (rows // 10)))) as came:
        wait_for(lambda: gate.waiting == buffers[-1])
        settled(lambda: tuple(calls))
        begun, taken = calls.copy(), [sum(read["abc"[i]]) for i in range(1, count)]
        gate.open()
    assert begun[-1] == buffers[-1]
    for calls_begun, rows_taken, buffer in zip(begun, taken, buffers, strict=False):
        assert buffer <= calls_begun <= rows_taken + buffer
    assert len(came) == rows
    assert calls == [rows] * count


def test_C4_a_key_with_many_rows_keeps_its_room_until_the_next_lookup_has_taken_the_last(
    ordered: bool, read: dict[str, list[int]]
) -> None:
    gate, asked, rows = Gate(), list[int](), 8 * OUTPUT_ROWS

    async def many(key: int) -> Any:
        asked.append(key)
        return [{"a": i} for i in range(1 if key else rows)]

    async def slow(key: int) -> Any:
        await gate.wait()
        return {"b": key}

    tasks = [task_of("a", many, ordered=ordered, buffer=1), task_of("b", slow, 1, ordered=ordered, buffer=100)]
    with consumed(chained(tasks, batches_of(1, 1))) as came:
        wait_for(lambda: gate.waiting == 100)
        settled(lambda: (len(asked), len(read["b"])))
        assert asked == [0]
        gate.open()
    assert len(came) == rows + 1


def settled(value: Callable[[], Any]) -> None:
    """Wait until nothing changes any more for a tenth of a second."""
    before, since = value(), time.monotonic()
    while time.monotonic() - since < 0.1:
        time.sleep(0.01)
        if value() != before:
            before, since = value(), time.monotonic()


def broken(kind: str) -> Any:
    async def look_up(key: int) -> Any:
        if key == 3:
            if kind == "the call":
                raise ValueError("bad luck")
            return "no row" if kind == "the answer" else None
        return dict.fromkeys("abc", key)

    return look_up


class Shut(FunctionEnricher):
    async def open(self) -> None:
        raise OSError("no route to host")


ERRORS = {
    "the call": (FunctionError, r"failed for key 3: ValueError: bad luck"),
    "the answer": (FunctionError, r"invalid result for key 3"),
    "required": (MissingKeyError, r"has no row for key 3"),
    "open": (FunctionError, r"could not be opened: OSError: no route"),
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize(("place", "count"), [(0, 1), (0, 3), (1, 3), (2, 3)])
def test_X5_C4_the_first_failure_ends_all_lookups_and_is_raised(
    place: int, count: int, kind: str, ordered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    gates = [Gate() for _ in "abc"]

    async def hangs(number: int, key: int) -> Any:
        if key > 5:
            await gates[number].wait()
        return {"abc"[number]: key}

    tasks = [task_of("abc"[i], partial(hangs, i), i, ordered=ordered) for i in range(3)]
    failing = task_of("abc"[place], broken(kind), place, ordered=ordered, required=kind == "required")
    if kind == "open":
        failing = replace(failing, enricher=Shut(broken(kind), failing.layout.found))
    tasks[place] = failing
    error, text = ERRORS[kind]
    began = time.monotonic()
    with pytest.raises(error, match=rf"look_up, {'abc'[place]}\).*{text}"), caplog.at_level(logging.WARNING):
        rows_of(chained(tasks[:count], batches_of(10)))
    assert time.monotonic() - began < TASK_END
    assert [gate.waiting for gate in gates] == [0, 0, 0]
    if place and kind != "open":
        assert gates[0].cancelled == 4
    assert caplog.text == ""


@pytest.mark.parametrize("count", [1, 2])
def test_X7_C4_closed_early_all_lookups_are_cancelled(ordered: bool, count: int) -> None:
    gates = [Gate() for _ in range(count)]

    async def some(number: int, key: int) -> Any:
        if key >= 5 * (2 - number):
            await gates[number].wait()
        return {"ab"[number]: key}

    output = chained([task_of("ab"[i], partial(some, i), i, ordered=ordered) for i in range(count)], batches_of(12))
    assert [row["id"] for row in next(output).to_pylist()] == list(range(10 // count))
    hanging = [2, 5][:count]
    wait_for(lambda: [gate.waiting for gate in gates] == hanging)
    output.close()  # type: ignore[attr-defined]
    assert [gate.cancelled for gate in gates] == hanging


def test_C4_calls_that_ignore_their_end_are_waited_for_side_by_side(caplog: pytest.LogCaptureFixture) -> None:
    gates = [Gate() for _ in "abc"]

    async def stubborn(number: int, key: int) -> Any:
        while key > 2 - number:
            with contextlib.suppress(asyncio.CancelledError):
                await gates[number].wait()
                break
        return {"abc"[number]: key}

    tasks = [task_of("abc"[i], partial(stubborn, i), i, grace_period=0.5) for i in range(3)]
    output = chained(tasks, batches_of(4))
    assert next(output).num_rows == 1
    wait_for(lambda: all(gate.waiting for gate in gates))
    began = time.monotonic()
    with caplog.at_level(logging.ERROR, "asyncio_operator"):
        output.close()  # type: ignore[attr-defined]
    assert time.monotonic() - began < 1.4
    assert caplog.text.count("ignored its cancellation for the grace period of 0.5 s") == 3
    for gate in gates:
        gate.open()


@pytest.mark.parametrize(
    ("place", "text"),
    [(-2, r"the run of FunctionEnricher\(same, a\) was cancelled by code"), (-1, r"cancels, b\) cancelled tasks")],
)
def test_O12_whoever_cancels_a_lookup_of_the_chain_is_named(place: int, text: str) -> None:
    async def cancels(key: int) -> Any:
        works = [task for task in asyncio.all_tasks() if task.get_coro().__name__ == "error_of"]  # type: ignore[union-attr]
        works.sort(key=lambda task: int(task.get_name().partition("-")[2]))
        works[place].cancel()
        await asyncio.Event().wait()

    with pytest.raises(FunctionError, match=text):
        rows_of(chained([task_of("a", same), task_of("b", cancels, 1)], batches_of(3)))
    assert len(rows_of(chained([task_of("a", same), task_of("b", same, 1)], batches_of(3)))) == 3


def test_X7_while_the_first_call_hangs_empty_batches_have_the_columns_of_the_last_lookup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "outputs_of", partial(outputs_of, watch=0.02))
    gate = Gate()

    async def hangs(key: int) -> Any:
        await gate.wait()
        return {"a": key}

    tasks = [task_of("a", hangs), task_of("b", same, 1), task_of("c", same, 2, timed=True, status=True)]
    output = chained(tasks, batches_of(3))
    empty = next(output)
    assert (empty.num_rows, empty.schema.names) == (0, ["id", "a", "b", "c", "status"])
    gate.open()
    assert [row["c"] for row in rows_of(output)] == [0, 1, 2]


def test_C1_every_lookup_reports_its_own_figures_also_when_another_fails() -> None:
    first_reports: list[Figures] = []
    second_reports: list[Figures] = []

    async def half(key: int) -> Any:
        return {"a": key} if key % 2 else None

    first, to_second = task_of("a", half, inner=True, reporting=reporting(first_reports)), reporting(second_reports)
    rows_of(chained([first, task_of("b", same, 1, reporting=to_second)], batches_of(10)))
    reports = first_reports + second_reports
    assert [(figures.rows, figures.found, figures.calls) for figures in reports] == [(10, 5, 10), (5, 5, 5)]
    with pytest.raises(FunctionError):
        rows_of(
            chained([first, task_of("b", broken("the call"), 1, cache=Cache(), reporting=to_second)], batches_of(10))
        )
    [_, one], [_, other] = first_reports, second_reports
    assert (one.rows, one.found, other.rows) == (10, 5, 0)


def test_C1_every_lookup_reports_also_when_the_report_of_another_fails() -> None:
    class Full(list[Figures]):
        def extend(self, figures: Iterable[Figures]) -> None:
            raise OSError("no room")

    reports: list[Figures] = []
    for first, second in ((Full(), reports), (reports, Full())):
        tasks = [task_of("a", same, reporting=reporting(first)), task_of("b", same, 1, reporting=reporting(second))]
        with pytest.raises(OSError, match="no room"):
            rows_of(chained(tasks, batches_of(5)))
    assert [figures.rows for figures in reports] == [5, 5]


def test_X5_the_label_of_a_stage_is_one_line_without_a_password() -> None:
    class Odd(FunctionEnricher):
        def __repr__(self) -> str:
            return "odd\n" + "x" * 1000

    task = task_of("a", same)
    secret = PostgresEnricher("postgresql://me:s3cr3t-word@db/shop", table="planes", key="id")
    odd = Odd(same, task.layout.found)
    label = ChainTask([replace(task, enricher=secret), replace(task, enricher=odd)]).__name__
    assert label.startswith("enrich: PostgresEnricher(")
    assert label.endswith("xxx... (2 lookups)")
    assert "s3cr3t" not in label
    assert "\n" not in label
    assert len(label) < 250


@pytest.mark.parametrize("managed", [False, True])
def test_V1_failed_attempts_are_counted_by_the_type_of_their_error(managed: bool) -> None:
    tried: Counter[int] = Counter()

    async def look_up(key: int) -> Any:
        tried[key] += 1
        if key % 3 == 0:
            raise LookupError("never there")
        if key % 3 == 1 and tried[key] == 1:
            raise OSError("lost once")
        return {"a": key}

    figures: list[Figures] = []
    retry = Retry(2, FixedBackoff(0.0)) if managed else None
    rows_of(chained([task_of("a", look_up, reporting=reporting(figures), fail=False, retry=retry)], batches_of(9)))
    [found] = figures
    assert found.errors == ({"LookupError": 6, "OSError": 3} if managed else {"LookupError": 3, "OSError": 3})
    assert Figures.of_json(json.loads(json.dumps(found.as_json()))).errors == found.errors


@pytest.mark.parametrize("count", [1, 2])
def test_C6_room_comes_back_when_the_next_output_is_asked_for_and_not_before(ordered: bool, count: int) -> None:
    """Spark that has enough rows asks for no more, and so never gives back the room of those that it got."""
    calls: Counter[int] = Counter()

    def counting(number: int) -> Any:
        async def look_up(key: int) -> dict[str, int]:
            calls[number] += 1
            await asyncio.sleep(0)
            return {f"v{number}": key}

        return look_up

    tasks = [task_of(f"v{one}", counting(one), ordered=ordered, capacity=10, buffer=10) for one in range(count)]
    outputs = chained(tasks, batches_of(500))
    assert next(output.num_rows for output in outputs if output.num_rows)
    settle()
    begun = calls[count - 1]
    outputs.close()  # type: ignore[attr-defined]
    assert begun <= 10


def settle() -> None:
    """Wait until the loop has nothing to do but what waits for Spark."""

    async def turns() -> None:
        for _ in range(200):
            await asyncio.sleep(0.0005)

    asyncio.run_coroutine_threadsafe(turns(), loop_thread().loop).result(ENDS)


class Rows(Enricher):
    """An enricher without `lookup_columns`."""

    def __init__(self, in_memory: bool, make: Callable[[int], Any]) -> None:
        self.in_memory, self.make = in_memory, make

    def schema(self) -> pa.Schema:
        return pa.schema([("a", pa.int64()), ("b", pa.int64())])

    async def lookup(self, key: int) -> Any:
        return self.make(key)


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("cache", [None, Cache()])
@pytest.mark.parametrize(
    "make", [lambda key: {"a": key}, lambda key: defaultdict(lambda: 9, a=key), lambda key: [{"a": key}]]
)
def test_A5_rows_take_their_own_way_whatever_else_an_enricher_says(
    in_memory: bool, cache: Cache | None, make: Callable[[int], Any]
) -> None:
    task = task_for(Rows(in_memory, make), cache=cache)
    keys = pa.RecordBatch.from_pydict({"id": pa.array([1, 2, 1], pa.int64())})
    assert rows_of(chained([task], iter([keys]))) == [{"id": key, "a": key, "b": None} for key in (1, 2, 1)]


# -- one lookup: its input, and its end


def test_X9_nothing_is_read_without_bound_ahead_of_a_consumer_that_rests(ordered: bool) -> None:
    read = 0

    def source() -> Batches:
        nonlocal read
        for batch in batches_of(*[10_000] * 60):
            read += 1
            yield batch

    output = chained([task_of("a", same, ordered=ordered)], source())
    seen = next(output).num_rows
    settled(lambda: read)
    assert read <= 8
    assert seen + sum(batch.num_rows for batch in output) == 600_000


def test_an_error_of_the_input_reaches_the_caller(ordered: bool) -> None:
    def source() -> Batches:
        yield from batches_of(3)
        raise EOFError("Spark is gone")

    with pytest.raises(EOFError, match="Spark is gone"):
        rows_of(chained([task_of("a", same, ordered=ordered)], source()))
    with pytest.raises((pa.ArrowException, NotImplementedError)):  # This has no keys.
        rows_of(chained([task_of("a", same)], iter([pa.RecordBatch.from_pydict({"id": [{"a": 1}]})])))


@pytest.mark.parametrize("waits", ["for room", "for its input"])
def test_X7_closed_early_while_its_feeder_waits_it_leaves_no_thread(ordered: bool, waits: str) -> None:
    more = threading.Event()

    def source() -> Batches:
        yield from batches_of(*[10] * (500 if waits == "for room" else 1))
        more.wait(ENDS)

    output = chained([task_of("a", same, ordered=ordered, buffer=10)], source())
    assert next(output).num_rows == 10
    output.close()  # type: ignore[attr-defined]
    more.set()


def test_X7_a_task_that_is_never_started_starts_nothing() -> None:
    output = chained([task_of("a", same)], batches_of(10))
    assert "asyncio-operator-feeder" not in [thread.name for thread in threading.enumerate()]
    output.close()  # type: ignore[attr-defined]


LOADED = """
import asyncio, sys
import pyarrow as pa
from pyspark.sql.types import LongType, StructType
from asyncio_operator.lookup import Lookup
from asyncio_operator.spark.driver.build_task import EnrichOptions, enrich_task
from asyncio_operator.spark.worker.links import ChainTask
from enrichers import Enricher
loaded = []
class Source(Enricher):
    schema = lambda self: pa.schema({"n": pa.int64()})
    key_schema = lambda self: pa.schema({"id": pa.int64()})
class Rows(Source):
    async def lookup(self, key):
        loaded.append({*sys.modules})
        return {"n": key}
class Columns(Source):
    async def lookup_columns(self, keys):
        return pa.table({"id": keys, "n": keys})
async def look_up():
    async with Lookup(Columns()) as lookup:
        loaded.append({*sys.modules})
        await lookup.get(1)
def task():
    numbers = pa.Array.from_buffers(pa.int64(), 3, [None, pa.py_buffer(bytes(range(24)))])
    made, _ = enrich_task(StructType().add("id", LongType()), Rows(), EnrichOptions(on="id"))
    assert [*ChainTask([made])(iter([pa.record_batch([numbers], ["id"])]))]
"""


@pytest.mark.parametrize("work", ["task()", "asyncio.run(look_up())"])
def test_R1_no_library_is_imported_on_the_loop_while_calls_run(work: str) -> None:
    # Arrow imports pandas with its first array: half a second and more, in which deadlines pass.
    assert printed(f"{LOADED}{work}; print({{*sys.modules}} - loaded[0])") == "set()"
