"""O19: results of an operator are kept in a cache, under the laws of lookups' caches."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from asyncio_operator import (
    AsyncWaitOperator,
    Cache,
    ConfigurationError,
    FixedBackoff,
    FunctionError,
    Hedge,
    RateLimit,
    Record,
    Retry,
    Watermark,
)
from asyncio_operator.lookup import cache_directories
from asyncio_operator.testing import ManualClock, VirtualTimeLoop
from asyncio_operator.trace import Trace
from tests.operator.helpers import Life, collect, collect_timed, nap, now, run_on, same, turns_during, virtual

MODES: dict[str, dict[str, Any]] = {
    "ordered": {},
    "unordered": {"mode": "unordered"},
    "key_ordered": {"mode": "key_ordered", "key": lambda value: value % 2},
}


class Asked:
    """A function that counts its calls by value. It takes a second, and returns what `answer` says."""

    def __init__(self, answer: Callable[[Any], Any] = lambda value: value, seconds: float = 1.0) -> None:
        self.calls: Counter[Any] = Counter()
        self.answer = answer
        self.seconds = seconds

    async def __call__(self, value: Any) -> Any:
        self.calls[repr(value)] += 1
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return self.answer(value)


def raising(error: BaseException) -> Callable[[Any], Any]:
    def answer(value: Any) -> Any:
        raise error

    return answer


async def times(function: Any, runs: int, *elements: Any, **options: Any) -> list[Any]:
    """The outputs of each run of one operator."""
    operator = AsyncWaitOperator(function, **{"cache": Cache()} | options)
    return [await collect(operator.process(elements)) for _ in range(runs)]


# -- one call for a key


@pytest.mark.parametrize("mode", MODES)
@virtual
async def test_O19_elements_of_one_key_share_a_call_and_a_second_run_is_warm(mode):
    function = Asked(lambda value: 10 * value)
    operator = AsyncWaitOperator(function, cache=Cache(), capacity=4, **MODES[mode])
    outputs = await collect(operator.process([Record(one % 3, n) for n, one in enumerate(range(12))]))
    assert sorted(outputs, key=repr) == sorted([Record(10 * (n % 3), n) for n in range(12)], key=repr)
    assert function.calls == {"0": 1, "1": 1, "2": 1}
    begun = now()
    assert await collect(operator.process([2, 1, 5])) == [20, 10, 50]
    assert now() == begun + 1
    assert function.calls == {"0": 1, "1": 1, "2": 1, "5": 1}
    assert operator.metrics.cache_hits == 2


@virtual
async def test_O19_L10_keys_are_values_by_type_or_what_cache_key_gives():
    function = Asked()
    assert (await times(function, 1, 1, True, 1.0, "1", 0.0, -0.0))[0] == [1, True, 1.0, "1", 0.0, 0.0]
    assert function.calls.total() == 5
    function = Asked()
    values = [{"id": 1, "n": 1}, {"id": 1, "n": 2}, {"id": 2, "n": 3}]
    assert await times(function, 2, *values, cache_key=lambda value: value["id"]) == 2 * [
        [values[0], values[0], values[2]]
    ]
    assert function.calls.total() == 2


@virtual
async def test_O19_None_is_called_for_every_time_and_not_kept():
    function = Asked(lambda value: "called")
    assert await times(function, 2, None, None, (None, 1)) == 2 * [["called"] * 3]
    assert function.calls == {"None": 4, "(None, 1)": 2}


@pytest.mark.parametrize("options", [{}, {"mode": "key_ordered", "key": len}])
@pytest.mark.parametrize(
    ("wrong", "cache_key"), [({}, None), ([1], None), ("a", lambda value: [value]), ("a", lambda value: 1 / 0)]
)
@virtual
async def test_O19_a_value_that_cannot_be_a_key_is_an_error_that_names_cache_key(wrong, cache_key, options):
    operator = AsyncWaitOperator(same, cache=Cache(), cache_key=cache_key, on_error="skip", **options)
    with pytest.raises(FunctionError, match="cache_key"):
        await collect(operator.process([wrong]))
    assert [element for element, _ in operator.snapshot().elements] == [wrong]


@virtual
async def test_O19_L2_an_error_goes_to_all_who_wait_and_is_not_kept():
    function = Asked(raising(ValueError("no")))
    errors: list[Any] = []

    def on_error(value: Any, error: BaseException) -> str:
        errors.append((value, error))
        return "error"

    assert await times(function, 2, 1, 1, 2, on_error=on_error) == 2 * [["error"] * 3]
    assert function.calls == {"1": 2, "2": 2}
    assert [value for value, _ in errors] == [1, 1, 2] * 2
    assert await times(function, 1, 1, 1, on_error="skip") == [[]]
    with pytest.raises(FunctionError, match="no"):
        await times(function, 1, 1, 1)


@virtual
async def test_O19_a_result_of_a_hook_is_not_kept():
    function = Asked(seconds=5)
    on_timeout = lambda value: f"late {value}"  # noqa: E731
    assert await times(function, 2, 1, 1, timeout=2, on_timeout=on_timeout) == 2 * [["late 1", "late 1"]]
    assert function.calls == {"1": 2}
    coroutine = Asked(same)
    assert await times(coroutine, 2, 1, 1, on_error=lambda value, error: "coroutine") == 2 * [["coroutine"] * 2]
    assert coroutine.calls == {"1": 2}


@virtual
async def test_O19_metrics_count_every_element():
    operator = AsyncWaitOperator(Asked(raising(ValueError("no"))), cache=Cache(), on_error="skip")
    await collect(operator.process([1, 1, 2, Watermark(1)]))
    metrics = operator.metrics
    assert (metrics.admitted, metrics.emitted, metrics.failures, metrics.skipped, metrics.shared) == (3, 3, 3, 3, 1)
    assert metrics.latency.max == 1.0


@virtual
async def test_O19_a_consumer_cannot_change_what_is_kept():
    operator = AsyncWaitOperator(Asked(lambda value: {"list": [value]}), cache=Cache())
    for _ in range(3):
        async for output in operator.process([1, 1]):
            assert output == {"list": [1]}
            output["list"].append(2)
            output["more"] = 3


@virtual
async def test_O19_what_cannot_be_copied_is_not_kept(caplog):
    function = Asked(lambda value: (value for value in "ab"))
    outputs = await times(function, 2, 1, 2)
    assert [list(output) for run in outputs for output in run] == [["a", "b"]] * 4
    assert function.calls == {"1": 2, "2": 2}
    assert [record.message[:35] for record in caplog.records] == ["the result for key 1 cannot be kept"] * 2


@virtual
async def test_O19_a_snapshot_holds_elements_that_wait_for_the_call_of_another():
    operator = AsyncWaitOperator(Asked(), cache=Cache())
    outputs = operator.process([1, 1, 2, Record(2, 5)])
    step = asyncio.ensure_future(anext(outputs))
    await asyncio.sleep(0.5)
    snapshot = operator.snapshot()
    assert snapshot.elements == ((1, 0), (1, 0), (2, 0), (Record(2, 5), 0))
    assert await step == 1
    await outputs.aclose()
    function = Asked()
    restored = AsyncWaitOperator(function, cache=Cache()).process([], restore=snapshot)
    assert await collect(restored) == [1, 1, 2, Record(2, 5)]
    assert function.calls == {"1": 1, "2": 1}


@virtual
async def test_O19_many_kept_results_let_the_loop_turn():
    operator = AsyncWaitOperator(Asked(seconds=0), cache=Cache(), buffer=100_000)
    await collect(operator.process(range(10)))
    assert await turns_during(collect(operator.process(n % 10 for n in range(10_000)))) >= 10_000 / 200
    assert operator.metrics.emitted == 10_000


@virtual
async def test_O19_O5_many_kept_results_of_one_key_leave_after_the_input_has_ended():
    """They wait for their key, and not for the input."""
    assert await times(Asked(), 1, *[7] * 700, mode="key_ordered", key=lambda value: 0) == [[7] * 700]


@virtual
async def test_O19_a_trace_shows_elements_without_calls():
    trace = Trace()
    operator = AsyncWaitOperator(Asked(), cache=Cache(), trace=trace)
    assert await collect(operator.process([1, 1])) == [1, 1]
    assert [len(life.attempts) for life in trace.story().lives] == [1, 0]
    assert await collect(operator.process([1])) == [1]
    assert [len(life.attempts) for life in trace.story().lives] == [0]


# -- how long


def cached(clock: ManualClock, function: Any, **options: Any) -> tuple[AsyncWaitOperator, Callable[[Any], Any]]:
    operator = AsyncWaitOperator(function, cache=Cache(**options), clock=clock)

    async def get(*values: Any) -> list[Any]:
        return await collect(operator.process(values))

    return operator, get


@pytest.mark.parametrize("flatten", [False, True])
@virtual
async def test_O19_L3_a_result_of_nothing_is_a_miss(flatten):
    clock, function = ManualClock(1_000.0), Asked(lambda value: [] if flatten else None)
    operator = AsyncWaitOperator(
        function, cache=Cache(missing_ttl=5, expire_after_write=50), clock=clock, flatten=flatten
    )
    for _ in range(2):
        assert await collect(operator.process([1, 1])) == ([] if flatten else [None, None])
    assert function.calls == {"1": 1}
    clock.advance(5)
    await collect(operator.process([1]))
    assert function.calls == {"1": 2}
    assert await times(function, 2, 7, cache=Cache(cache_missing=False), flatten=flatten)
    assert function.calls["7"] == 2


@virtual
async def test_O19_L6_an_old_result_is_used_and_called_for_again_in_the_background():
    clock, versions = ManualClock(1_000.0), iter("abc")
    function = Asked(lambda value: next(versions))
    operator, get = cached(clock, function, refresh_after=10)
    assert await get(1) == ["a"]
    clock.advance(10)
    began = now()
    assert await collect_timed(operator.process([1, 1, 1])) == [("a", began)] * 3
    assert function.calls == {"1": 2}
    assert (operator.metrics.admitted, operator.metrics.emitted, operator.metrics.cache_hits) == (3, 3, 3)
    assert await get(1) == ["b"]


@virtual
async def test_O19_L6_a_refresh_that_fails_does_not_end_the_run_and_the_old_result_stays():
    clock, answers = ManualClock(1_000.0), iter([1, ValueError("no"), 3])

    def answer(value: Any) -> Any:
        given = next(answers)
        if isinstance(given, ValueError):
            raise given
        return given

    function = Asked(answer)
    operator, get = cached(clock, function, refresh_after=10)
    assert await get(1) == [1]
    clock.advance(10)
    assert await collect(operator.process([1, 1])) == [1, 1]
    assert (function.calls, operator.metrics.failures) == ({"1": 2}, 0)
    assert await get(1) == [1]
    assert await get(1) == [3]


@virtual
async def test_O19_L6_a_refresh_waits_for_its_turn_also_when_the_input_has_ended():
    clock, function = ManualClock(1_000.0), Asked()
    operator = AsyncWaitOperator(
        function, cache=Cache(refresh_after=10), clock=clock, rate_limit=RateLimit(1, per=10.0), mode="unordered"
    )
    await collect(operator.process([1]))
    clock.advance(10)
    assert sorted(await collect(operator.process([2, 1]))) == [1, 2]
    assert function.calls == {"1": 2, "2": 1}


@pytest.mark.parametrize("late", [False, True])
@virtual
async def test_O19_L6_with_stale_if_error_an_expired_result_replaces_an_error(late):
    clock, fails = ManualClock(1_000.0), False

    async def function(value: Any) -> Any:
        await asyncio.sleep(1)
        if fails and late:
            await asyncio.sleep(100)
        if fails:
            raise ValueError("no")
        return value

    operator = AsyncWaitOperator(
        function, cache=Cache(expire_after_write=10, stale_if_error=True), clock=clock, timeout=5, on_error="skip"
    )
    assert await collect(operator.process([1])) == [1]
    clock.advance(10)
    fails = True
    assert await collect(operator.process([1, 1, 2])) == [1, 1]
    assert operator.metrics.failures == 3


# -- on disk


def on_disk(tmp_path: Path, **options: Any) -> Cache:
    return Cache(store="rocksdb", directory=str(tmp_path), **options)


CALLS: Counter[Any] = Counter()


async def plus(value: Any) -> Any:
    CALLS[value] += 1
    return value + CALLS.total()


@virtual
async def test_O19_L7_a_cache_on_disk_belongs_to_equal_functions_and_options(tmp_path):
    CALLS.clear()
    operator = AsyncWaitOperator(plus, cache=on_disk(tmp_path))
    for equal in (operator, AsyncWaitOperator(plus, cache=on_disk(tmp_path))):
        assert await collect(equal.process([5, 5])) == [6, 6]
        assert await collect(equal.process([5])) == [6]
    copied = pickle.loads(pickle.dumps(operator))
    assert await collect(copied.process([5])) == [6]
    assert CALLS == {5: 1}
    for other in ({"cache_key": abs}, {"cache": on_disk(tmp_path, max_rows=7)}, {"flatten": True, "on_error": "skip"}):
        await collect(AsyncWaitOperator(plus, **{"cache": on_disk(tmp_path)} | other).process([5]))
    assert CALLS == {5: 4}


@virtual
async def test_O19_a_cache_on_disk_is_closed_with_its_run(tmp_path):
    operator = AsyncWaitOperator(nap, cache=on_disk(tmp_path), timeout=5)
    for elements in ([1, 1], [100, 1]):
        outputs = operator.process(elements)
        step = asyncio.ensure_future(anext(outputs, None))
        await asyncio.sleep(0.5)
        assert any(str(path).startswith(str(tmp_path)) for path in cache_directories._locked)
        step.cancel()
        await asyncio.wait([step])
        await outputs.aclose()
        assert not any(str(path).startswith(str(tmp_path)) for path in cache_directories._locked)


@virtual
async def test_O19_a_result_that_cannot_be_written_is_not_kept(tmp_path, caplog):
    function = Asked(lambda value: object())
    await times(function, 2, 1, cache=on_disk(tmp_path))
    assert function.calls == {"1": 2}
    assert any("cannot be kept" in record.message for record in caplog.records if record.levelno == logging.WARNING)


@virtual
async def test_O19_a_cache_that_cannot_be_opened_ends_the_run_and_closes_the_function(tmp_path):
    (tmp_path / "file").touch()
    function = Life()
    with pytest.raises(ConfigurationError, match="directory"):
        await collect(AsyncWaitOperator(function, cache=on_disk(tmp_path / "file")).process([1]))
    assert function.events == ["open", "close"]


# -- against a model


@given(
    values=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 0, 3, 11])), max_size=15),
    mode=st.sampled_from([*MODES]),
    store=st.sampled_from(["heap", "rocksdb"]),
    capacity=st.integers(1, 3),
    failing=st.sets(st.integers(0, 3)),
    max_rows=st.integers(1, 4),
    again=st.booleans(),
)
def test_O19_every_output_is_one_that_a_call_of_its_time_gave(
    tmp_path_factory, values, mode, store, capacity, failing, max_rows, again
):
    """One value after the other, with waits between them, against a dictionary; then all of them at once."""
    directory = str(tmp_path_factory.mktemp("cache")) if store == "rocksdb" else None
    clock, calls = ManualClock(1_000.0), Counter[int]()

    async def function(value: int) -> tuple[int, int]:
        calls[value] += 1
        await asyncio.sleep(value)
        if value in failing:
            raise ValueError(value)
        return value, calls[value]

    async def run() -> None:
        cache = Cache(max_rows=max_rows, expire_after_write=10, store=store, directory=directory)
        operator = AsyncWaitOperator(
            function, cache=cache, clock=clock, capacity=capacity, on_error=lambda value, _: value, **MODES[mode]
        )
        kept: dict[int, tuple[float, Any]] = {}
        expected: Counter[int] = Counter()
        for value, wait in values if again else ():
            clock.advance(wait)
            written, output = kept.pop(value, (0.0, None))
            if clock() >= written + 10:
                expected[value] += 1
                written, output = clock(), (value if value in failing else (value, expected[value]))
            if value not in failing:
                kept[value] = written, output
                while len(kept) > max_rows:
                    del kept[next(iter(kept))]
            assert await collect(operator.process([value])) == [output]
        assert calls == expected
        before = calls.copy()
        outputs = await collect(operator.process([value for value, _ in values]))
        found = [output if isinstance(output, int) else output[0] for output in outputs]
        assert sorted(found) == sorted(value for value, _ in values)
        assert all(calls[value] - before[value] <= found.count(value) for value in calls)
        if max_rows == 4:
            assert all(calls[value] - before[value] <= 1 for value in set(found) - failing)

    run_on(VirtualTimeLoop, run())


@given(draw=st.randoms(use_true_random=False), mode=st.sampled_from([*MODES]))
def test_O19_O4_whatever_the_options_every_element_leaves_once_also_through_snapshots(draw, mode):
    """Runs that each go on from a snapshot of the last, with calls that fail, hang, and are made again."""
    values = [draw.randint(0, 5) for _ in range(draw.randint(0, 25))]
    cache = {"max_rows": draw.randint(1, 6), "expire_after_write": 3, "stale_if_error": draw.random() < 0.3}
    options: dict[str, Any] = {
        "rate_limit": draw.choice([None, RateLimit(2, per=1.0)]),
        "retry": draw.choice([None, Retry(3, FixedBackoff(0.3))]),
        "attempt_timeout": draw.choice([None, 1.0]),
        **draw.choice([{}, {"timeout": 2.0, "on_timeout": lambda value: value}]),
    }
    if mode != "key_ordered":
        cache["refresh_after"] = draw.choice([None, 1])
        options["hedge"] = draw.choice([None, Hedge(after=0.5, floor=0.1)])

    async def call(value: int) -> int:
        await asyncio.sleep(draw.choice([0, 0.1, 0.7, 1.5]))
        if draw.random() < 0.2:
            raise ValueError(value)
        return value

    async def runs() -> list[int]:
        loop, source = asyncio.get_running_loop(), iter(values)
        got: list[int] = []
        snapshot = None
        for most in [*(draw.randint(1, 8) for _ in range(draw.randint(0, 3))), len(values) + 1]:
            operator = AsyncWaitOperator(
                call,
                cache=Cache(**cache),
                clock=lambda: 1_000 + loop.time(),
                capacity=draw.randint(1, 4),
                buffer=draw.randint(4, 9),
                on_error=lambda value, _: value,
                **options | MODES[mode],
            )
            outputs, ends = operator.process(source, restore=snapshot), len(got) + most
            async for output in outputs:
                got.append(output)
                if len(got) == ends:
                    break
            snapshot = operator.snapshot()
            await outputs.aclose()
        return got

    got = run_on(VirtualTimeLoop, runs())
    assert Counter(got) == Counter(values)
    if mode == "ordered":
        assert got == values
