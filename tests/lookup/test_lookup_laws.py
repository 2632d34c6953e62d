"""L1, L2, L3, L6 and L9 through `Lookup`, and what it does at its ends; on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from asyncio_operator import (
    Batching,
    Budget,
    Cache,
    CircuitBreaker,
    CircuitOpenError,
    ConfigurationError,
    ElementTimeoutError,
    Enricher,
    EnricherError,
    FixedBackoff,
    FunctionError,
    Limit,
    ResultError,
    Retry,
    StateError,
)
from asyncio_operator.lookup import Lookup
from asyncio_operator.testing import VirtualTimeLoop
from enrichers import FunctionEnricher
from tests.lookup.helpers import Recorded, forever, now
from tests.operator.helpers import run_on, virtual


async def slowly(key: Any) -> Any:
    await asyncio.sleep(1)
    return [{"x": k} for k in key] if isinstance(key, list) else {"x": key}


def failing(times: int, error: Callable[[], Exception] = lambda: EnricherError("no")) -> Callable[[Any], Any]:
    """Fails so often, and then answers."""
    left = [times]

    async def answer(key: Any) -> Any:
        await asyncio.sleep(1)
        if left[0]:
            left[0] -= 1
            raise error()
        return {"x": key}

    return answer


async def outcome(lookup: Lookup, key: Any) -> Any:
    """What a lookup gives, or raises."""
    try:
        return await lookup.get(key)
    except Exception as error:
        return error


# -- L1, L3, L9


@pytest.mark.parametrize("key", [None, (None, 1), (1, None)])
@virtual
async def test_L1_a_null_in_a_key_is_never_looked_up_and_is_a_miss(key: Any) -> None:
    enricher = Recorded(slowly)
    async with Lookup(enricher, cache=Cache()) as lookup:
        assert await lookup.get(key) is None
    assert enricher.calls == []


@virtual
async def test_L1_batches_are_filled_with_keys_that_truly_need_a_call() -> None:
    enricher = Recorded(slowly, max_batch=4)
    async with Lookup(enricher, cache=Cache(), batching=Batching(linger=0.5)) as lookup:
        assert await asyncio.gather(*[lookup.get(key) for key in (1, 2, 1, 3, 2, 4)]) == [
            {"x": key} for key in (1, 2, 1, 3, 2, 4)
        ]
        assert enricher.calls == [[1, 2, 3, 4]]
        await asyncio.gather(*[lookup.get(key) for key in (1, 5, 2, 6, 3, 7, 4, 8)])
    assert enricher.calls == [[1, 2, 3, 4], [5, 6, 7, 8]]


@pytest.mark.parametrize("miss", [None, [], ()])
@virtual
async def test_L3_L9_a_miss_is_kept_and_an_empty_sequence_is_one(miss: Any) -> None:
    async def answer(key: Any) -> Any:
        return miss

    enricher = Recorded(answer)
    async with Lookup(enricher, cache=Cache()) as lookup:
        assert [await lookup.get(1) for _ in range(2)] == [None, None]
    assert enricher.calls == [1]


@virtual
async def test_L3_an_error_is_never_taken_for_a_miss_nor_kept() -> None:
    enricher = Recorded(failing(1))
    async with Lookup(enricher, cache=Cache()) as lookup:
        with pytest.raises(EnricherError, match="no"):
            await lookup.get(1)
        assert await lookup.get(1) == {"x": 1}


@pytest.mark.parametrize("wrong", [{"x": "text"}, [{"x": 1}, {"x": 1.5}], "text", 5, [5], b"x"])
@virtual
async def test_L9_a_row_of_the_wrong_types_is_a_result_error_for_its_key_and_is_not_kept(wrong: Any) -> None:
    answers = {1: wrong, 2: {"x": 2}}

    async def answer(key: Any) -> Any:
        return answers[key]

    enricher = Recorded(answer)
    async with Lookup(enricher, cache=Cache(), retry=Retry()) as lookup:
        with pytest.raises(ResultError, match="the answer for key 1"):
            await lookup.get(1)
        assert await lookup.get(2) == {"x": 2}
        answers[1] = {"x": 1}
        assert await lookup.get(1) == {"x": 1}
    assert enricher.calls == [1, 2, 1]


@virtual
async def test_L2_an_error_that_many_wait_for_comes_to_each_with_the_same_few_frames() -> None:
    async def fail(key: Any) -> Any:
        await asyncio.sleep(1)
        raise EnricherError("down")

    async with Lookup(Recorded(fail)) as lookup:
        frames = []
        for waiting in [asyncio.ensure_future(lookup.get(1)) for _ in range(100)]:
            with pytest.raises(EnricherError) as caught:
                await waiting
            frames.append(len(caught.traceback))
    assert len(set(frames)) == 1


@pytest.mark.parametrize("answer", [{"ex": 1}, [{"x": 1}, {"ex": 1}]])
@virtual
async def test_L11_a_misspelt_column_is_a_result_error_and_no_row_of_nulls(answer: Any) -> None:
    async def misspelt(key: Any) -> Any:
        return answer

    async with Lookup(Recorded(misspelt), cache=Cache()) as lookup:
        with pytest.raises(ResultError, match=r"none of the columns \['x'\]; its fields are \['ex'\]"):
            await lookup.get(1)


# -- L2


@virtual
async def test_L2_cancelling_one_who_waits_does_not_disturb_the_others() -> None:
    enricher = Recorded(slowly)
    async with Lookup(enricher) as lookup:
        first, second = asyncio.ensure_future(lookup.get(1)), asyncio.ensure_future(lookup.get(1))
        await asyncio.sleep(0.5)
        first.cancel()
        assert await second == {"x": 1}
        assert first.cancelled()
    assert (enricher.calls, now()) == ([1], 1.0)


@virtual
async def test_B4_a_key_that_is_left_of_a_failing_batch_is_asked_for_alone() -> None:
    async def answer(keys: list[str]) -> Any:
        await asyncio.sleep(1)
        if "bad" in keys:
            raise ValueError("bad")
        return [{"x": 1} for _ in keys]

    enricher = Recorded(answer, max_batch=2)
    async with Lookup(enricher, batching=Batching(max_size=2)) as lookup:
        leaving, staying = [asyncio.ensure_future(lookup.get(key)) for key in ("bad", "good")]
        await asyncio.sleep(0.5)
        leaving.cancel()
        assert await staying == {"x": 1}
    assert enricher.calls == [["bad", "good"], ["good"]]


@pytest.mark.parametrize("max_batch", [1, 4])
@virtual
async def test_L2_when_the_last_one_is_gone_the_call_is_cancelled(max_batch: int) -> None:
    enricher = Recorded(lambda key: forever(), max_batch)
    async with Lookup(enricher, capacity=1) as lookup:
        waiting = [asyncio.ensure_future(lookup.get(1)) for _ in range(2)]
        await asyncio.sleep(1)
        waiting[0].cancel()
        await asyncio.sleep(1)
        assert enricher.running == 1
        waiting[1].cancel()
        await asyncio.sleep(0.001)
        assert enricher.running == 0
        enricher.answer = slowly
        assert await lookup.get(1) == {"x": 1}, "the place is free, and the key is asked for anew"
    assert len(enricher.calls) == 2


@pytest.mark.parametrize("max_batch", [1, 4])
@virtual
async def test_L2_who_leaves_before_his_call_starts_is_not_called_for(max_batch: int) -> None:
    enricher = Recorded(slowly, max_batch)
    async with Lookup(enricher, capacity=1) as lookup:
        first = asyncio.ensure_future(lookup.get(1))
        await asyncio.sleep(0.1)
        second, third = asyncio.ensure_future(lookup.get(2)), asyncio.ensure_future(lookup.get(3))
        await asyncio.sleep(0.1)
        second.cancel()
        assert [await first, await third] == [{"x": 1}, {"x": 3}]
    assert enricher.calls == ([1, 3] if max_batch == 1 else [[1], [3]])


@virtual
async def test_L2_a_probe_that_nobody_waits_for_lets_the_next_one_try() -> None:
    enricher = Recorded(failing(1))
    breaker = CircuitBreaker(failure_ratio=0.5, minimum_calls=1, open_for=10.0)
    async with Lookup(enricher, circuit_breaker=breaker) as lookup:
        assert isinstance(await outcome(lookup, 1), EnricherError)
        assert isinstance(await outcome(lookup, 2), CircuitOpenError)
        await asyncio.sleep(10)
        probe = asyncio.ensure_future(lookup.get(3))
        await asyncio.sleep(0.5)
        probe.cancel()
        await asyncio.sleep(0.5)
        assert await lookup.get(4) == {"x": 4}


@virtual
async def test_rows_are_the_callers_own() -> None:
    class Lists(Recorded):
        def schema(self) -> pa.Schema:
            return pa.schema([("x", pa.list_(pa.int64()))])

    async def answer(key: Any) -> Any:
        return [{"x": [1, 2]}]

    async with Lookup(Lists(answer), cache=Cache()) as lookup:
        for _ in range(3):
            rows: Any = await lookup.get(1)
            assert rows == [{"x": [1, 2]}]
            rows[0]["x"].append(3)
            rows.append(None)


@pytest.mark.parametrize("cache", [None, Cache()])
@virtual
async def test_L9_bytes_of_a_client_that_cannot_be_copied_are_bytes(cache: Cache | None) -> None:
    class Views(Recorded):
        def schema(self) -> pa.Schema:
            return pa.schema([("x", pa.binary())])

    async def answer(key: Any) -> Any:
        return {"x": memoryview(b"ab")}

    async with Lookup(Views(answer), cache=cache) as lookup:
        assert [await lookup.get(1), await lookup.get(1)] == [{"x": b"ab"}] * 2


# -- L5, L6


@virtual
async def test_L6_an_old_answer_is_served_and_looked_up_again_in_the_background_once() -> None:
    answers = [0]

    async def answer(key: Any) -> Any:
        await asyncio.sleep(1)
        answers[0] += 1
        return {"x": answers[0]}

    enricher = Recorded(answer)
    async with Lookup(enricher, cache=Cache(refresh_after=10, expire_after_write=60)) as lookup:
        assert await lookup.get(1) == {"x": 1}
        await asyncio.sleep(10)
        begun = now()
        assert await asyncio.gather(*[lookup.get(1) for _ in range(3)]) == [{"x": 1}] * 3
        assert now() == begun
        await asyncio.sleep(1.001)
        assert await lookup.get(1) == {"x": 2}
    assert enricher.calls == [1, 1]


@virtual
async def test_L6_who_asks_while_a_refresh_runs_and_the_answer_expires_waits_for_the_refresh() -> None:
    enricher = Recorded(slowly)
    async with Lookup(enricher, cache=Cache(refresh_after=10, expire_after_write=11)) as lookup:
        await lookup.get(1)
        await asyncio.sleep(10.5)
        await lookup.get(1)
        await asyncio.sleep(0.6)
        begun = now()
        assert await lookup.get(1) == {"x": 1}
        assert now() - begun == pytest.approx(0.4)
    assert len(enricher.calls) == 2


@pytest.mark.parametrize("trouble", ["error", "timeout"])
@virtual
async def test_L6_an_expired_answer_is_served_if_the_lookup_fails(trouble: str) -> None:
    enricher = Recorded(slowly)
    async with Lookup(enricher, cache=Cache(expire_after_write=10, stale_if_error=True), timeout=5.0) as lookup:
        await lookup.get(1)
        await asyncio.sleep(100)
        enricher.answer = failing(9) if trouble == "error" else lambda key: forever()
        assert await lookup.get(1) == {"x": 1}
        assert isinstance(await outcome(lookup, 2), EnricherError | ElementTimeoutError)
        enricher.answer = slowly
        assert await lookup.get(1) == {"x": 1}
    assert len(enricher.calls) == 4


# -- retries and limits


@pytest.mark.parametrize("max_batch", [1, 10])
@pytest.mark.parametrize("empty", [None, []])
@virtual
async def test_R5_a_miss_is_asked_again_if_if_result_says_so_and_is_a_miss_when_attempts_run_out(
    empty: Any, max_batch: int
) -> None:
    rows = {1: {"x": 1}, 3: [{"x": 3}, {"x": 30}], 4: {"x": 4}}
    came = iter([empty, {"x": 6}])

    async def answer(key: Any) -> Any:
        if isinstance(key, list):
            return [await answer(one) for one in key]
        return next(came) if key == 6 else rows.get(key, empty)

    enricher = Recorded(answer, max_batch)
    policy = Retry(3, FixedBackoff(1.0), if_result=lambda found: not found)
    async with Lookup(enricher, retry=policy, cache=Cache()) as lookup:
        found = await asyncio.gather(*map(lookup.get, range(1, 7)))
        assert found == [rows.get(1), None, rows.get(3), rows.get(4), None, {"x": 6}]
        calls = [key for call in enricher.calls for key in (call if isinstance(call, list) else [call])]
        assert [calls.count(key) for key in range(1, 7)] == [1, 3, 1, 1, 3, 2]
        assert 2 <= now() < 2.1
        made = len(enricher.calls)
        assert await asyncio.gather(*map(lookup.get, range(1, 7))) == found
        assert len(enricher.calls) == made


# -- ends


class Life(Recorded):
    """Notes what is done with it."""

    def __init__(self, answer: Callable[[Any], Any], **failures: BaseException) -> None:
        super().__init__(answer)
        self.steps: list[str] = []
        self.failures = failures

    async def open(self) -> None:
        await self._step("open")

    async def close(self) -> None:
        await self._step("close")

    async def _step(self, name: str) -> None:
        self.steps.append(name)
        await asyncio.sleep(0)
        if name in self.failures:
            raise self.failures[name]


@virtual
async def test_O8_it_opens_and_closes_the_enricher_once_and_may_be_opened_again() -> None:
    enricher = Life(slowly)
    lookup = Lookup(enricher)
    await lookup.close()
    for _ in range(2):
        await lookup.open()
        with pytest.raises(StateError, match="open already"):
            await lookup.open()
        assert await lookup.get(1) == {"x": 1}
        await lookup.close()
        await lookup.close()
        with pytest.raises(StateError, match="not open"):
            await lookup.get(1)
    assert enricher.steps == ["open", "close"] * 2


@virtual
async def test_closing_cancels_what_runs_and_tells_those_who_wait() -> None:
    enricher = Life(lambda key: forever())
    lookup = Lookup(enricher, capacity=1)
    await lookup.open()
    waiting = [asyncio.ensure_future(outcome(lookup, key)) for key in (1, 2, 1)]
    await asyncio.sleep(1)
    await lookup.close()
    assert [type(error) for error in await asyncio.gather(*waiting)] == [StateError] * 3
    assert (enricher.running, enricher.steps) == (0, ["open", "close"])


@virtual
async def test_an_enricher_that_fails_to_open_is_closed() -> None:
    enricher = Life(slowly, open=OSError("no"))
    with pytest.raises(OSError, match="no"):
        async with Lookup(enricher):
            pass
    assert enricher.steps == ["open", "close"]


@virtual
async def test_an_error_that_asks_the_process_to_end_ends_the_lookup_for_all() -> None:
    async def answer(key: Any) -> Any:
        await asyncio.sleep(key)
        raise SystemExit(3)

    async with Lookup(Recorded(answer)) as lookup:
        outcomes = await asyncio.gather(outcome(lookup, 1), outcome(lookup, 2))
        assert [type(error) for error in outcomes] == [FunctionError] * 2
        with pytest.raises(StateError, match="SystemExit"):
            await lookup.get(3)


@virtual
async def test_a_lookup_that_cancels_itself_does_not_cancel_who_asked() -> None:
    async def answer(key: Any) -> Any:
        raise asyncio.CancelledError

    async with Lookup(Recorded(answer)) as lookup:
        with pytest.raises(EnricherError, match="key 1 cancelled itself"):
            await lookup.get(1)


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
@pytest.mark.parametrize("name", ["if_result", "on"])
@virtual
async def test_a_predicate_that_raises_ends_the_lookup_and_is_named(name: str, error: type[BaseException]) -> None:
    async def answer(key: Any) -> Any:
        if name == "on":
            raise KeyError(key)
        return await slowly(key)

    def broken(outcome: Any) -> bool:
        raise error("broken")

    retry = Retry(on=broken) if name == "on" else Retry(if_result=broken)
    async with Lookup(Recorded(answer), retry=retry) as lookup:
        with pytest.raises(
            FunctionError, match=rf"retry.{name} failed for element 1 in attempt 1 with {error.__name__}"
        ):
            await lookup.get(1)
        with pytest.raises(StateError, match=f"the lookup has ended with FunctionError: retry.{name} failed"):
            await lookup.get(1)


def elsewhere(step: Callable[[], Awaitable[object]]) -> None:
    """A step on the loop of another thread."""

    async def limited() -> None:
        await asyncio.wait_for(step(), 10)

    asyncio.run(limited())


@virtual
async def test_a_lookup_is_not_opened_nor_closed_on_another_loop_while_it_opens_runs_or_closes_on_its_own() -> None:
    enricher = Lives(slowly)
    lookup = Lookup(enricher)

    async def refused(*steps: Callable[[], Awaitable[object]]) -> None:
        for step in steps:
            with pytest.raises(StateError, match=r"opened on another event loop|open already"):
                await asyncio.to_thread(elsewhere, step)

    for _ in range(2):
        opening = asyncio.ensure_future(lookup.open())
        await asyncio.sleep(0.5)
        await refused(lookup.open, lookup.close)
        closing = asyncio.ensure_future(lookup.close())
        await refused(lookup.open, lookup.close)
        await closing
        await opening
        await lookup.open()
        await refused(lookup.open, lookup.close, lambda: lookup.get(1))
        assert await lookup.get(1) == {"x": 1}
        closing = asyncio.ensure_future(lookup.close())
        await asyncio.sleep(0.5)
        await refused(lookup.open, lookup.close)
        await closing
        await asyncio.to_thread(elsewhere, lookup.close)
    assert enricher.steps == ["open", "close"] * 4


def test_a_lookup_whose_loop_is_closed_is_closed_on_the_next_one_and_may_be_opened_again() -> None:
    enricher = Life(slowly)
    lookup = Lookup(enricher, budget=Budget("closed on the next loop", Limit(1000)))

    async def ask() -> None:
        await lookup.open()
        assert await lookup.get(1) == {"x": 1}

    for _ in range(2):
        run_on(VirtualTimeLoop, ask())
        run_on(VirtualTimeLoop, lookup.close())
    assert enricher.steps == ["open", "close"] * 2


@virtual
async def test_a_key_that_cannot_be_hashed_is_named() -> None:
    async with Lookup(Recorded(slowly)) as lookup:
        with pytest.raises(ConfigurationError, match=r"key \[1\] cannot be looked up; a key must be hashable"):
            await lookup.get([1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": 5}, "cache is 5; it must be a Cache, True, or None"),
        ({"retry": Cache()}, "retry is Cache"),
        ({"batching": Batching()}, "takes one key at a time"),
        ({"clock": 5}, "clock is 5;"),
    ],
)
def test_a_wrong_option_is_told_when_it_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Lookup(Recorded(slowly), **options)


def test_what_is_no_enricher_is_told_when_it_is_made() -> None:
    with pytest.raises(ConfigurationError, match="it must be an Enricher"):
        Lookup(slowly)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="is the class Enricher"):
        Lookup(Enricher)  # type: ignore[arg-type]


@virtual
async def test_L2_L6_who_joins_a_refresh_and_leaves_disturbs_nobody() -> None:
    async def answer(key: Any) -> Any:
        await asyncio.sleep(10 if key == 0 else 0.01)
        return {"x": key}

    enricher = Recorded(answer)
    async with Lookup(enricher, cache=Cache(expire_after_write=2, refresh_after=1), capacity=1) as lookup:
        await lookup.get(1)
        await asyncio.sleep(1.5)
        slow = asyncio.ensure_future(lookup.get(0))
        await asyncio.sleep(0.1)
        assert await lookup.get(1) == {"x": 1}
        await asyncio.sleep(0.6)
        joins = asyncio.ensure_future(lookup.get(1))
        await asyncio.sleep(0.1)
        joins.cancel()
        rows: Any = list(await asyncio.gather(slow, lookup.get(1), lookup.get(2)))
        assert rows == [{"x": 0}, {"x": 1}, {"x": 2}]


class Changing:
    """A key whose hash changes while it is looked up."""

    def __init__(self) -> None:
        self.hash = 1

    def __hash__(self) -> int:
        return self.hash


@virtual
async def test_L2_a_key_whose_hash_changes_disturbs_nobody() -> None:
    key = Changing()

    async def answer(asked: Any) -> Any:
        await asyncio.sleep(1)
        key.hash += 1
        return {"x": 1}

    async with Lookup(Recorded(answer)) as lookup:
        assert await asyncio.gather(*[lookup.get(one) for one in (key, 7)]) == [{"x": 1}] * 2
        assert await lookup.get(key) == {"x": 1}


class Lives(Life):
    """Its calls clean up for a second, and so does its end."""

    async def _step(self, name: str) -> None:
        await asyncio.sleep(1)
        await super()._step(name)


@virtual
async def test_O9_closing_goes_on_though_whoever_waits_for_it_is_cancelled() -> None:
    enricher = Lives(lambda key: forever())
    lookup = Lookup(enricher)
    await lookup.open()
    asked = asyncio.ensure_future(outcome(lookup, 1))
    await asyncio.sleep(1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await lookup.close()
    await lookup.close()
    assert enricher.steps == ["open", "close"]
    assert isinstance(await asked, StateError)


@virtual
async def test_opening_waits_until_it_is_closed() -> None:
    enricher = Lives(slowly)
    lookup = Lookup(enricher)
    await lookup.open()
    closing = asyncio.ensure_future(lookup.close())
    await asyncio.sleep(0.5)
    await lookup.open()
    assert await lookup.get(1) == {"x": 1}
    await closing
    assert enricher.steps == ["open", "close", "open"]
    await lookup.close()


@virtual
async def test_closing_waits_until_it_is_open() -> None:
    enricher = Life(slowly)
    lookup = Lookup(enricher)
    opening = asyncio.ensure_future(lookup.open())
    await asyncio.sleep(0)
    await lookup.close()
    await opening
    assert enricher.steps == ["open", "close"]
    with pytest.raises(StateError, match="not open"):
        await lookup.get(1)


@virtual
async def test_O8_an_error_of_close_is_a_note_on_that_of_open() -> None:
    enricher = Life(slowly, open=OSError("refused"), close=ValueError("not open"))
    with pytest.raises(OSError, match="refused") as caught:
        await Lookup(enricher).open()
    assert "not open" in caught.value.__notes__[0]


@virtual
async def test_an_enricher_whose_schema_fails_was_never_opened_and_is_not_closed() -> None:
    class NoSchema(Life):
        def schema(self) -> pa.Schema:
            raise ValueError("no such table")

    enricher = NoSchema(slowly)
    with pytest.raises(ValueError, match="no such table"):
        await Lookup(enricher).open()
    assert enricher.steps == []


@virtual
async def test_O8_an_error_of_close_is_raised_once_and_a_second_close_does_nothing() -> None:
    enricher = Life(slowly, close=OSError("no"))
    lookup = Lookup(enricher)
    await lookup.open()
    with pytest.raises(OSError, match="no"):
        await lookup.close()
    await lookup.close()
    assert enricher.steps == ["open", "close"]


@pytest.mark.parametrize("columns", [False, True])
@virtual
async def test_O8_an_enricher_whose_key_schema_fails_is_not_left_open(columns: bool) -> None:
    class NoKeySchema(Life):
        optional_keys = ("hour",)

        def key_schema(self) -> pa.Schema:
            raise ValueError("no such key")

    enricher: Any = NoKeySchema(slowly)
    if columns:
        enricher.lookup_columns = slowly
    with pytest.raises(ValueError, match="no such key"):
        await Lookup(enricher).open()
    assert enricher.steps == []


@virtual
async def test_L9_what_is_no_answer_is_told_with_what_to_do() -> None:
    async def forgetful(key: Any) -> Any:
        return asyncio.sleep(0) if key == 1 else Row(x=1)

    async with Lookup(Recorded(forgetful)) as lookup:
        with pytest.raises(ResultError, match="`await` is missing in it"):
            await lookup.get(1)
        with pytest.raises(ResultError, match=r"a Row of PySpark: Row\(x=1\); return row.asDict\(\), a mapping"):
            await lookup.get(2)


async def test_a_lookup_that_is_closed_by_what_a_call_has_started_is_closed_for_all_who_wait() -> None:
    async def look_up(key: int) -> Any:
        started.append(asyncio.create_task(lookup.close()))
        await asyncio.Event().wait()

    started: list[asyncio.Task[None]] = []
    async with Lookup(FunctionEnricher(look_up, "x long")) as lookup:
        with pytest.raises(StateError, match="the lookup was closed"):
            await lookup.get(1)
        await asyncio.gather(*started)


@virtual
@pytest.mark.parametrize("answers", [[], [None, None], None])
async def test_B3_one_answer_of_another_length_is_a_ResultError_and_is_not_retried(answers: Any) -> None:
    class Short(Enricher):
        calls = 0

        def schema(self) -> pa.Schema:
            return pa.schema([("name", pa.string())])

        async def lookup_many(self, keys: Any) -> Any:
            self.calls += 1
            return answers

    enricher = Short()
    async with Lookup(enricher, retry=3) as lookup:
        with pytest.raises(ResultError, match=r"lookup_many gave .* for 1 key"):
            await lookup.get(1)
    assert enricher.calls == 1
