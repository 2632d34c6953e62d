"""What `async_udf` does in a Python worker, without Spark: arrays in, arrays out, and no row in a wrong place."""

from __future__ import annotations

import asyncio
import datetime
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import AsyncFunction, ConfigurationError, FixedBackoff, FunctionError, Retry
from asyncio_operator.arrow import columns
from asyncio_operator.arrow.columns import array_of
from asyncio_operator.loop.channels import AHEAD
from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.spark import async_udf
from asyncio_operator.spark.udf import ColumnFunction
from asyncio_operator.spark.worker import udf_task
from asyncio_operator.spark.worker.task_frame import READ_AHEAD


def run(function: ColumnFunction, batches: Any) -> Iterator[pa.Array]:
    return function._task(iter(batches))


def results(function: ColumnFunction, *batches: Any) -> list[Any]:
    return [value for array in run(function, batches) for value in array.to_pylist()]


def ints(*values: Any) -> pa.Array:
    return pa.array(values, pa.int64())


BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 9), st.one_of(st.none(), st.text(max_size=2)))), max_size=6)


@given(BATCHES, st.integers(1, 5), st.integers(1, 8), st.booleans())
def test_X2_the_nth_result_is_that_of_the_nth_row(
    batches: list[list[tuple[int, str | None]]], capacity: int, buffer: int, retry: bool
) -> None:
    @async_udf("n int, s string", capacity=capacity, buffer=buffer, retry=Retry() if retry else None)
    async def echo(n: int, s: str | None) -> Any:
        for _ in range(n):
            await asyncio.sleep(0)
        return None if n == 9 else {"n": n, "s": s}

    arrays = [
        (pa.array([n for n, _ in rows], pa.int32()), pa.array([s for _, s in rows], pa.string())) for rows in batches
    ]
    expected = [None if n == 9 else {"n": n, "s": s} for rows in batches for n, s in rows]
    assert results(echo, *arrays) == expected


def test_X9_what_is_ready_leaves_before_its_batch_is_complete() -> None:
    release = asyncio.Event()

    @async_udf("long", timeout=None)
    async def first_ones(n: int) -> int:
        if n >= 3:
            await release.wait()
        return n

    output = run(first_ones, [ints(*range(10))])
    first: list[int] = []
    while len(first) < 3:
        first += next(output).to_pylist()
    assert first == [0, 1, 2]
    loop_thread().loop.call_soon_threadsafe(release.set)
    assert [value for array in output for value in array.to_pylist()] == list(range(3, 10))


def test_X9_a_consumer_that_stands_still_stops_the_calls() -> None:
    called = 0

    @async_udf("long", capacity=5, buffer=20)
    async def count(n: int) -> int:
        nonlocal called
        called += 1
        return n

    output = run(count, (ints(*range(start, start + 10)) for start in range(0, 10_000, 10)))
    next(output)
    before = -1
    while before != called:
        before = called
        time.sleep(0.3)
    # The buffer, what has come for the thread and what it has taken, and the batches that were read ahead.
    assert called <= 20 + 2 * (AHEAD + READ_AHEAD) + 10 * (READ_AHEAD + 2)
    output.close()  # type: ignore[attr-defined]


def test_timestamps_come_in_utc_whatever_the_zone_of_the_session() -> None:
    moment = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)

    @async_udf("string")
    async def told(value: datetime.datetime) -> str:
        return str(value)

    assert results(told, pa.array([moment], pa.timestamp("us", "America/New_York"))) == ["2020-01-01 00:00:00+00:00"]


def test_a_value_that_python_cannot_hold_fails_the_task() -> None:
    far = pa.array([10**17], pa.int64()).cast(pa.timestamp("s")).cast(pa.timestamp("s"))

    @async_udf("string", on_error="null")
    async def told(a: int, value: Any) -> str:
        return str(value)

    with pytest.raises(ConfigurationError, match=r"told is given a timestamp_ntz that Python cannot hold"):
        results(told, (ints(1), far))


def test_a_wrong_number_of_columns_fails_the_task_also_where_failures_are_null() -> None:
    @async_udf("string", on_error="null")
    async def told(a: int, b: int) -> str:
        return ""

    with pytest.raises(ConfigurationError, match="told is called with 1 column: missing a required argument: 'b'"):
        results(told, ints(1))
    with pytest.raises(ConfigurationError, match="told is called with 0 columns"):
        results(told, ())


MISFITS: list[tuple[str, Any, str]] = [
    ("double", "abc", r"column 'give' is double, which the answer does not fit: 'abc'"),
    ("int", 1.5, r"column 'give' is int, which the answer does not fit: 1.5 \(ValueError: it has a fraction"),
    ("int", 2**40, r"column 'give' is int,"),
    ("a int, b date", {"a": 1, "b": datetime.datetime(2020, 1, 1)}, r"column 'b' is date,"),
    ("a int", 7, r"the result is of type int: 7; it must be a mapping of a to values, or None"),
    ("a int", [("a", 1)], r"the result is of type list"),
    ("array<int>", {1.5}, r"column 'give' is array<int>,"),
]


@pytest.mark.parametrize(("kind", "misfit", "says"), MISFITS)
def test_a_result_that_does_not_fit_is_named_with_its_column_and_its_arguments(
    kind: str, misfit: Any, says: str
) -> None:
    async def give(n: int) -> Any:
        return misfit if n in (5, 15) else None

    batches = [ints(*range(10)), ints(*range(10, 20))]
    with pytest.raises(FunctionError, match=r"give failed for arguments \(5,\): ResultError: " + says) as raised:
        results(async_udf(kind)(give), *batches)
    assert (raised.value.element, raised.value.attempts) == ("(5,)", 1)
    assert results(async_udf(kind, on_error="null")(give), *batches) == [None] * 20


def test_misfits_under_null_leave_the_others_as_they_are() -> None:
    @async_udf("a int, b string", on_error="null")
    async def give(n: int) -> Any:
        return {"a": n if n % 3 else "x", "b": str(n)}

    assert results(give, ints(*range(7))) == [{"a": n, "b": str(n)} if n % 3 else None for n in range(7)]


def test_results_of_several_columns_are_mappings_of_any_kind() -> None:
    answers = [{"a": 1, "c": 3}, {}, None, defaultdict(str, b="x"), {"a": None, "b": "y"}]

    @async_udf("a int, b string")
    async def give(n: int) -> Any:
        return answers[n]

    none: dict[str, Any] = {"a": None, "b": None}
    assert results(give, ints(*range(5))) == [{**none, "a": 1}, none, None, {**none, "b": "x"}, {**none, "b": "y"}]


def test_X5_the_first_failure_ends_the_run_with_the_arguments_and_the_cause() -> None:
    @async_udf("long", retry=Retry(max_attempts=2, backoff=FixedBackoff(0), on=(OSError,)))
    async def fails(a: int, b: str) -> int:
        if a == 3:
            raise OSError("no route")
        return a

    columns = (ints(1, 2, 3, 4), pa.array(["w", "x", "y", "z"]))
    says = (
        r"^fails failed for arguments \(3, 'y'\) in attempt 2: OSError: no route; "
        r'on_error="null" lets the job go on without$'
    )
    with pytest.raises(FunctionError, match=says) as raised:
        results(fails, columns)
    assert isinstance(raised.value.__cause__, OSError)
    assert (raised.value.element, raised.value.attempts) == ("(3, 'y')", 2)


@pytest.mark.parametrize("error", [SystemExit(3), ImportError("cannot import name 'x'")])
@pytest.mark.parametrize("on_error", ["fail", "null"])
def test_X5_what_no_option_can_hide_fails_the_task_and_no_option_is_advised(on_error: Any, error: Any) -> None:
    @async_udf("long", on_error=on_error)
    async def leave(n: int) -> int:
        raise error

    with pytest.raises(FunctionError, match=r"leave failed for arguments \(1,\): \w+: [^;]*$"):
        results(leave, ints(1))


def test_failures_and_timeouts_are_null_if_that_is_wanted() -> None:
    @async_udf("long", timeout=0.5, on_error="null")
    async def some(n: int) -> int:
        if n == 1:
            raise ValueError
        if n == 2:
            await asyncio.sleep(3600)
        return n

    assert results(some, ints(0, 1, 2, 3)) == [0, None, None, 3]


def test_an_error_of_open_fails_the_task_as_it_is() -> None:
    class Broken(Client):
        async def open(self) -> None:
            raise KeyError("TOKEN")

    with pytest.raises(KeyError, match="TOKEN"):
        results(async_udf("string", on_error="null")(Broken()), ints(1))


class Client(AsyncFunction[Any, str]):
    def __init__(self) -> None:
        self.life: list[str] = []

    async def open(self) -> None:
        self.life.append(f"open on {threading.current_thread().name}")

    async def invoke(self, value: Any) -> str:
        return repr(value)

    async def close(self) -> None:
        self.life.append(f"close on {threading.current_thread().name}")


def test_a_function_with_a_life_is_opened_and_closed_once_on_the_loop_and_gets_one_value() -> None:
    client = Client()
    function = async_udf("string")(client)
    assert results(function, ints(1, None), ints(2)) == ["1", "None", "2"]
    assert client.life == ["open on asyncio-operator-loop", "close on asyncio-operator-loop"]
    assert results(function, (ints(1), pa.array(["a"]))) == ["(1, 'a')"]


def test_large_results_leave_in_arrays_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(udf_task, "OUTPUT_BYTES", 10_000)

    @async_udf("s string, n int")
    async def large(n: int) -> Any:
        return {"s": "x" * 1000, "n": n}

    arrays = list(run(large, [ints(*range(100))]))
    assert max(map(len, arrays)) <= 10
    assert [row["n"] for array in arrays for row in array.to_pylist()] == list(range(100))


def test_results_that_one_array_cannot_hold_leave_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array of text holds 2 GB; here one that holds two values takes its place."""

    def narrow(values: Any, data_type: pa.DataType) -> Any:
        one = array_of(values, data_type)
        return one if len(values) <= 2 else pa.chunked_array([one[:2], one[2:]])

    for module in (columns, udf_task):
        monkeypatch.setattr(module, "array_of", narrow)
    for kind in ("string", "a string"):

        @async_udf(kind)
        async def large(n: int, kind: str = kind) -> Any:
            return str(n) if kind == "string" else {"a": str(n)}

        arrays = list(run(large, [ints(*range(7))]))
        assert all(isinstance(array, pa.Array) and len(array) <= 2 for array in arrays)
        assert [value for array in arrays for value in array.to_pylist()] == results(
            async_udf(kind)(large._function), *[ints(n) for n in range(7)]
        )


@pytest.mark.parametrize("on_error", ["fail", "null"])
def test_X6_a_module_that_the_worker_lacks_is_no_rows_fault(on_error: Any) -> None:
    @async_udf("long", on_error=on_error)
    async def imports(n: int) -> int:
        import no_such_driver  # type: ignore[import-not-found]

        return int(no_such_driver.get(n))

    with pytest.raises(FunctionError, match=r"has no module 'no_such_driver': install it in the Python of every"):
        results(imports, ints(1, 2))
