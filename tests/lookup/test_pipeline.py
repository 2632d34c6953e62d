"""Keys on their way through the pipeline: every key gets its outcome, in order, within all bounds and limits."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from asyncio_operator import (
    Batching,
    Budget,
    CircuitBreaker,
    CircuitOpenError,
    ElementTimeoutError,
    Enricher,
    EnricherError,
    FixedBackoff,
    FunctionError,
    Limit,
    RateLimit,
    Retry,
)
from asyncio_operator.arrow.answer_tables import AnswerTables
from asyncio_operator.arrow.key_arrays import key_array, key_parts, python_keys
from asyncio_operator.arrow.key_index import ArrowKeys
from asyncio_operator.engine.timing import TURN
from asyncio_operator.enricher import hint
from asyncio_operator.lookup.key_batch import BATCHES, FLUSH, Failure, KeyBatch, answer_of
from asyncio_operator.lookup.options import LookupOptions, batching_of
from asyncio_operator.lookup.pipeline import LookupPipeline, in_arrow
from asyncio_operator.quota.share import own_allowance
from asyncio_operator.trace import Trace
from tests.lookup.helpers import (
    Consumer,
    Recorded,
    Source,
    at_once,
    batch_of,
    batches_of,
    forever,
    look_up,
    lookups_of,
    now,
    outcomes_of,
    places_of,
)
from tests.lookup.test_budget_laws import Weighing
from tests.lookup.test_budget_laws import look_up as look_up_under
from tests.lookup.test_known import Elsewhere
from tests.operator.helpers import virtual
from tests.operator.meter import Meter, metered


@pytest.fixture(params=[True, False], ids=["ordered", "unordered"])
def ordered(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


# -- bounds


@virtual
async def test_R8_the_next_attempt_of_a_key_goes_before_new_keys_of_its_batch(ordered: bool) -> None:
    failed: set[int] = set()

    async def answer(key: Any) -> Any:
        if key == 0 and not failed:
            failed.add(key)
            raise EnricherError("once")
        await asyncio.sleep(1)
        return {"x": key}

    enricher = Recorded(answer)
    batches = batches_of(40)
    await look_up(enricher, batches, ordered=ordered, capacity=2, retry=Retry(2, FixedBackoff(2.5)))
    assert 5 <= enricher.calls.index(0, 1) <= 7
    assert outcomes_of(batches[0]) == [{"x": key} for key in range(40)]


@virtual
async def test_R1_a_key_does_not_get_the_time_that_was_left_for_the_key_before(ordered: bool) -> None:
    failed: set[int] = set()

    async def answer(key: Any) -> Any:
        if key == 0 and not failed:
            failed.add(key)
            raise EnricherError("once")
        await asyncio.sleep(1 if key == 0 else 8)
        return {"x": key}

    batches = batches_of(5)
    enricher = Recorded(answer)
    await look_up(enricher, batches, ordered=ordered, capacity=1, timeout=10, retry=Retry(2, FixedBackoff(7)))
    assert enricher.calls == [0, 1, 0, 2, 3, 4]
    assert outcomes_of(batches[0]) == [{"x": key} for key in range(5)]


@virtual
async def test_the_pipe_stays_full_from_one_batch_to_the_next(ordered: bool) -> None:
    async def answer(key: Any) -> Any:
        await asyncio.sleep(1)

    enricher = Recorded(answer)
    await look_up(enricher, batches_of(*[10] * 20), ordered=ordered, capacity=50)
    assert enricher.most == 50
    assert now() == pytest.approx(200 / 50, abs=0.1)


@pytest.mark.parametrize("buffer", [1, 3, 10, 25])
@virtual
async def test_buffer_bounds_the_keys_that_are_looked_up_and_not_emitted(ordered: bool, buffer: int) -> None:
    enricher = Recorded(at_once)
    batches = batches_of(*[10] * 12)
    source, delivered = Source(batches), []
    options = LookupOptions(ordered=ordered, buffer=buffer)
    pipeline = LookupPipeline(
        enricher, source, lambda batch, ready: delivered.append((batch, ready)), options, places_of(options)
    )
    run = asyncio.create_task(pipeline.run())
    await asyncio.sleep(60)
    assert len(enricher.calls) == buffer
    assert source.read <= max(BATCHES, -(-buffer // 10)) + 1
    run.cancel()
    await asyncio.wait([run])


@virtual
async def test_X9_calls_that_wait_for_room_go_on_when_rows_have_left(ordered: bool) -> None:
    enricher = Recorded(at_once)
    async with asyncio.timeout(60):
        await look_up(enricher, batches_of(10, 10, 10), ordered=ordered, buffer=5, pause=1.0)
    assert len(enricher.calls) == 30


# -- delivery


@virtual
async def test_X9_a_key_that_another_batch_is_called_for_does_not_wait_for_the_rest_of_that_batch() -> None:
    async def answer(key: Any) -> Any:
        await asyncio.sleep(100 if key == 7 else 1)
        return {"x": key}

    begun, batches = now(), [batch_of([7, 1]), batch_of([2, 1])]
    consumer = await look_up(Recorded(answer), batches, ordered=False)
    assert next(time - begun for time, number, _, ended in consumer.deliveries if number == 1 and ended) <= 1.2
    assert [outcome["x"] for outcome in outcomes_of(batches[1])] == [2, 1]


@virtual
async def test_X9_what_is_ready_is_delivered_although_a_key_of_its_batch_is_slow(ordered: bool) -> None:
    async def answer(key: Any) -> Any:
        if key == 7:
            await asyncio.sleep(100)
        return {"x": key}

    consumer = await look_up(Recorded(answer), batches_of(10, 10), ordered=ordered)
    early = [(number, ready) for at, number, ready, _ in consumer.deliveries if at <= FLUSH]
    assert early[0] == ((0, 7) if ordered else (1, 10))
    if not ordered:
        assert (0, 9) in early


@virtual
async def test_X2_ordered_batches_leave_in_order_and_unordered_ones_as_they_end() -> None:
    async def answer(key: Any) -> Any:
        await asyncio.sleep(20 - key)

    consumer = await look_up(Recorded(answer), batches_of(*[1] * 10))
    assert consumer.ended() == list(range(10))
    consumer = await look_up(Recorded(answer), batches_of(*[1] * 10), ordered=False)
    assert consumer.ended() == list(range(9, -1, -1))


@pytest.mark.parametrize("grace_period", [0.001, 5.0])
@virtual
async def test_R2_a_late_call_that_does_not_return_holds_up_no_batch(
    ordered: bool, grace_period: float, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(key: Any) -> Any:
        while key == 0:
            try:
                await forever()
            except asyncio.CancelledError:
                await asyncio.sleep(20)
                return None
        return {"x": key}

    batches = batches_of(2, 2, 2)
    with caplog.at_level(logging.CRITICAL, "asyncio_operator"):
        consumer = await look_up(Recorded(answer), batches, ordered=ordered, timeout=1.0, grace_period=grace_period)
        await asyncio.sleep(30)
    assert sorted(consumer.ended()) == [0, 1, 2]
    assert consumer.left == [2, 2, 2]
    last = max(at for at, *_ in consumer.deliveries)
    assert last <= 1.0 + 2 * FLUSH, "the rows waited for a call that was given up"


# -- failures


@virtual
async def test_X6_failures_are_outcomes_of_their_keys_alone(ordered: bool) -> None:
    async def answer(key: Any) -> Any:
        if key % 5 == 0:
            raise ValueError(f"no {key}")
        if key % 5 == 1:
            await forever()
        return {"x": key}

    batches = batches_of(10, 10)
    consumer = await look_up(Recorded(answer), batches, ordered=ordered, timeout=2.0)
    for key, outcome in enumerate(itertools.chain(*(outcomes_of(b) for b in batches))):
        match key % 5:
            case 0:
                assert isinstance(outcome, Failure)
                assert isinstance(outcome.error, ValueError)
                assert not outcome.timed_out
            case 1:
                assert isinstance(outcome, Failure)
                assert isinstance(outcome.error, ElementTimeoutError)
                assert outcome.timed_out
                assert outcome.latency == pytest.approx(2.0, abs=0.01)
                assert str(key) in str(outcome.error)
                assert "2.0 s" in str(outcome.error)
            case _:
                assert outcome == {"x": key}
    assert consumer.pipeline.figures.timeouts == 4


@pytest.mark.parametrize("max_batch", [1, 4])
@virtual
async def test_X5_the_first_failure_ends_the_run_and_names_enricher_key_and_cause(max_batch: int) -> None:
    async def answer(key: Any) -> Any:
        if key in (3, [3]):
            raise ValueError("bad luck")
        if isinstance(key, list) and 3 in key:
            raise ValueError("one of these")
        return [None] * len(key) if isinstance(key, list) and len(key) < 3 else await forever()

    enricher = Recorded(answer, max_batch)
    with pytest.raises(FunctionError, match=r"Recorded.* failed for key 3: ValueError: bad luck") as caught:
        await look_up(enricher, batches_of(10), fail=True)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.element == "3"
    assert enricher.running == 0


@pytest.mark.parametrize("max_batch", [1, 4])
@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("odd")])
@virtual
async def test_X5_an_error_that_is_no_exception_ends_the_run_whatever_is_asked(
    error: BaseException, fail: bool, max_batch: int
) -> None:
    async def answer(key: Any) -> Any:
        await asyncio.sleep(1)
        raise error

    with pytest.raises(FunctionError, match=type(error).__name__) as caught:
        await look_up(Recorded(answer, max_batch), batches_of(3), fail=fail)
    assert caught.value.__cause__ is error


# -- batches of keys


@virtual
async def test_R2_keys_of_a_batch_that_have_an_answer_at_the_deadline_keep_it() -> None:
    async def answer(keys: Any) -> Any:
        if len(keys) == 8:
            raise ValueError("split me")
        return await (forever() if keys[0] == 4 else at_once(keys))

    batches = batches_of(8)
    await look_up(Recorded(answer, 8), batches, timeout=1.0)
    assert outcomes_of(batches[0])[:4] == [{"x": key} for key in range(4)]
    assert all(outcome.timed_out for outcome in outcomes_of(batches[0])[4:])


# -- ends


@pytest.mark.parametrize("max_batch", [1, 3])
@pytest.mark.parametrize("steps", range(25))
@virtual
async def test_X7_cancelled_at_any_moment_it_leaves_no_call(ordered: bool, steps: int, max_batch: int) -> None:
    async def answer(key: Any) -> Any:
        await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        return await at_once(key)

    enricher = Recorded(answer, max_batch)
    run = asyncio.create_task(
        look_up(enricher, batches_of(5, 0, 5, 5), ordered=ordered, capacity=2, buffer=4, pause=0.01)
    )
    for _ in range(steps):
        await asyncio.sleep(0)
    await asyncio.sleep(steps % 5 * 0.013)
    run.cancel()
    await asyncio.wait([run])
    assert enricher.running == 0
    calls = len(enricher.calls)
    await asyncio.sleep(10)
    assert len(enricher.calls) == calls


@virtual
async def test_O8_an_error_of_the_source_ends_the_run_unwrapped() -> None:
    enricher = Recorded(lambda key: forever())
    source = Source(batches_of(3), error=EOFError("Spark is gone"))
    options = LookupOptions()
    pipeline = LookupPipeline(enricher, source, lambda *_: None, options, places_of(options))
    with pytest.raises(EOFError, match="Spark is gone"):
        await pipeline.run()
    assert (len(enricher.calls), enricher.running) == (3, 0)


# -- everything at once


class Arriving(Source):
    """An `Input` whose batches come when `come` is called; one that waits for them may find that they were read."""

    def __init__(self) -> None:
        super().__init__(())
        self._come: deque[KeyBatch] = deque()
        self._news = asyncio.Event()

    def come(self, batch: KeyBatch) -> None:
        self._come.append(batch)
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    async def ready(self) -> bool:
        while not self._come and not self._ended:
            self._news.clear()
            await self._news.wait()
        return bool(self._come)

    def has_some(self) -> bool:
        return bool(self._come)

    def __iter__(self) -> Iterator[KeyBatch]:
        while self._come:
            yield self._come.popleft()

    def exhausted(self) -> None:
        """More may come."""


@pytest.mark.parametrize("batching", [None, Batching(2, linger=0.1)])
@virtual
async def test_B1_keys_that_come_when_a_call_ends_do_not_wait_for_the_next_end(batching):
    async def answer(keys: Any) -> Any:
        started.append(now())
        if len(started) == 2:
            await asyncio.sleep(1)
            # The lane of this call reads the batch before the one that waits for input wakes.
            source.come(batches[2])
        else:
            await asyncio.sleep(10)
        return [{"x": key} for key in keys] if batching else {"x": keys}

    started: list[float] = []
    source, enricher = Arriving(), Recorded(answer, max_batch=2 if batching else 1)
    batches = batches_of(1, 1, 3)
    # Traced, so that single keys are not called for from a window of their batch.
    options, trace = LookupOptions(batching=batching), None if batching else Trace()
    consumer = Consumer(batches, ordered=True)
    consumer.pipeline = LookupPipeline(enricher, source, consumer.deliver, options, places_of(options), trace=trace)
    source.come(batches[0])
    asyncio.get_running_loop().call_later(1, source.come, batches[1])
    asyncio.get_running_loop().call_later(30, source.end)
    await consumer.pipeline.run()
    assert max(started) <= 2.3
    assert len(enricher.calls) == (4 if batching else 5)


@virtual
async def test_R5_a_run_that_ends_before_its_attempts_ran_out_says_why() -> None:
    asked: list[Any] = []

    async def refuse(key: Any) -> Any:
        raise EnricherError("forbidden")

    with pytest.raises(FunctionError, match="forbidden; not retried: the function Retry"):
        await look_up(Recorded(refuse), batches_of(1), fail=True, retry=Retry(on=asked.append))
    assert len(asked) == 1, "the message asks the user's function again"


@virtual
async def test_O12_a_late_result_is_dropped_though_its_batch_still_waits_for_other_keys() -> None:
    async def answer(key: Any) -> Any:
        try:
            await asyncio.sleep(1.0 if key == 1 else 30.0)
        except asyncio.CancelledError:
            await asyncio.sleep(10.0)
        return {"x": key}

    [batch] = batches_of(2)
    await look_up(Recorded(answer), [batch], capacity=1, timeout=5.0)
    assert [type(outcome) for outcome in outcomes_of(batch)] == [Failure, dict]


# -- limits in front of the calls for single keys


class Timed(Recorded):
    """Answers with the key after `seconds`; the first `failing` calls of a key fail. Notes when calls start."""

    def __init__(self, seconds: float = 0.0, failing: dict[Any, int] | None = None) -> None:
        super().__init__(self._answer)
        self.times: list[float] = []
        self._seconds = seconds
        self._failing = dict(failing or {})

    async def _answer(self, key: Any) -> Any:
        self.times.append(now())
        await asyncio.sleep(self._seconds)
        if self._failing.get(key, 0) > 0:
            self._failing[key] -= 1
            raise ConnectionError
        return {"x": key}


def pipeline_of(enricher: Recorded, keys: Any, meter: Any = None, **options: Any) -> Any:
    """A pipeline for one batch."""
    return lookups_of(enricher, [keys], meter=meter, **options).pipeline


@virtual
async def test_R10_no_start_is_counted_for_a_key_that_does_not_come():
    pipeline = pipeline_of(Timed(), range(7), rate_limit=RateLimit(8, per=100.0))
    gate = pipeline.attempts.gate
    await pipeline.run()
    assert gate.next_start(now()) == now()
    assert gate.take(now()) == now()
    assert gate.next_start(now()) == 100


@virtual
async def test_R8_the_next_attempt_of_a_key_goes_before_new_keys_under_a_limit():
    enricher = Timed(failing={0: 1})
    batches = [batch_of(range(4))]
    await look_up(enricher, batches, rate_limit=RateLimit(1), retry=Retry(3, FixedBackoff(0.5)))
    assert enricher.calls == [0, 0, 1, 2, 3]
    assert enricher.times == [0, 1, 2, 3, 4]


@virtual
async def test_R8_a_light_key_does_not_overtake_a_heavy_one_that_is_due_and_waits_for_the_budget():
    class Heavy(Timed):
        def weigh(self, keys: Any) -> Any:
            return {"tokens": sum(keys)}

    meter, enricher = Meter(per=1.0, tokens=10), Heavy(0.2, failing={6: 1})
    await look_up_under(enricher, meter, [[6, 2, 1]], capacity=1, retry=Retry(2, FixedBackoff(0.1)))
    assert enricher.calls == [6, 2, 6, 1]
    assert enricher.times == pytest.approx([0, 0.2, 1, 1.2])


@virtual
async def test_R10_an_open_circuit_refuses_keys_and_lets_one_try_it():
    enricher = Timed(0.1, failing={0: 1, 1: 1})
    (batch,) = batches = [batch_of(range(9))]
    breaker = CircuitBreaker(failure_ratio=0.5, minimum_calls=2, open_for=10.0)
    consumer = await look_up(enricher, batches, circuit_breaker=breaker, capacity=1, buffer=100)
    assert enricher.calls == [0, 1]
    kinds = [type(outcome.error) for outcome in outcomes_of(batch)]
    assert kinds == [ConnectionError] * 2 + [CircuitOpenError] * 7
    assert consumer.pipeline.figures.calls == 2


@virtual
async def test_J3_a_place_that_keeps_answers_learns_what_a_call_for_one_key_weighed():
    class Keeping(Elsewhere):
        def learn(self, keys: Any, answers: Any, calls: Any = None) -> None:
            weighed.update(zip(keys, calls.weights, strict=True))

    weighed: dict[Any, Any] = {}
    await look_up(Weighing(), [[3, 4]], meter=Meter(tokens=10), known=(Keeping({}),))
    assert weighed == {3: {"tokens": 3}, 4: {"tokens": 4}}


class Stormy(Timed):
    """Refuses all calls for one second in three."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    async def _answer(self, key: Any) -> Any:
        self.times.append(now())
        await asyncio.sleep(0.01)
        if 1 <= self.times[-1] % 3 < 2:
            self.refused += 1
            hint(retry_after=1.0)
            raise EnricherError("too many", retry_after=1.0, overload=True)
        return {"x": key}


class StormyAndWeighing(Stormy):
    def weigh(self, keys: Any) -> Any:
        return {"tokens": 1.0}


@pytest.mark.parametrize("kind", [Stormy, StormyAndWeighing])
@virtual
async def test_G5_G3_few_keys_are_refused_in_a_storm_whether_limits_hear_of_the_ends_of_calls_or_not(kind):
    enricher, budget = kind(), Budget(f"storm of {kind.__name__}", Limit(200, 1.1))
    allowance = own_allowance(budget, "the lookup", enricher.weigh)
    pipeline = pipeline_of(enricher, range(600), allowance, budget=budget, retry=Retry(20), capacity=100)
    assert pipeline.attempts.gate.listens is (kind is StormyAndWeighing)
    await pipeline.run()
    assert pipeline.figures.calls == 600 + enricher.refused
    assert 1 <= enricher.refused <= 0.05 * 600
    assert now() < 3.8


@virtual
async def test_G8_a_lane_whose_call_had_to_wait_for_a_budget_makes_the_next_ones_at_the_same_price():
    class Looking(Timed):
        async def _answer(self, key: Any) -> Any:
            apart.update(lane.apart for lane in pipeline.attempts.lanes._lanes)
            return await super()._answer(key)

    apart: set[bool] = set()
    enricher, budget = Looking(), Budget("held", Limit(100, 1.0))
    allowance = own_allowance(budget, "the lookup", None)
    pipeline = pipeline_of(enricher, range(300), allowance, budget=budget, capacity=5)
    await pipeline.run()
    assert pipeline.figures.budget_seconds > 1
    assert apart == {False}


# -- enrichers in memory


class InMemory(Enricher):
    """A table in memory that has all keys, and records what it is asked for."""

    in_memory = True

    def __init__(self, max_batch: int) -> None:
        self.max_batch = max_batch
        self.asked: list[list[int]] = []

    def schema(self) -> pa.Schema:
        return pa.schema([("x", pa.int64())])

    def key_schema(self) -> pa.Schema:
        return pa.schema([("key", pa.int64())])

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        self.asked.append(keys.to_pylist())
        return pa.table({"key": keys, "x": keys})


def tables_of(enricher: InMemory) -> AnswerTables:
    return AnswerTables(enricher.key_schema(), enricher.schema())


async def run(enricher: InMemory, batching: Batching | None) -> None:
    """Ask for the keys 0 to 7."""
    batch = KeyBatch(ArrowKeys(pa.array(range(8))), rows=8)
    await look_up(enricher, [batch], batching=batching, tables=tables_of(enricher), fail=True)


@pytest.mark.parametrize(
    ("max_batch", "batching", "sizes"),
    [
        (1, None, [1] * 8),
        (3, None, [3, 3, 2]),
        (100, None, [8]),
        (3, Batching(100), [3, 3, 2]),
        (100, Batching(5), [5, 3]),
        (100, Batching(1), [1] * 8),
    ],
)
@virtual
async def test_B1_an_enricher_in_memory_is_asked_for_at_most_max_size_and_max_batch_keys(
    max_batch: int, batching: Batching | None, sizes: list[int]
) -> None:
    enricher = InMemory(max_batch)
    await run(enricher, batching)
    assert [len(keys) for keys in enricher.asked] == sizes
    assert [key for keys in enricher.asked for key in keys] == [*range(8)]


class Busy(InMemory):
    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        time.sleep(TURN)  # noqa: ASYNC251  # it computes
        return await super().lookup_columns(keys)


async def test_R2_other_code_has_its_turn_between_the_parts_of_a_batch() -> None:
    """A deadline elsewhere on the loop would pass unseen otherwise."""
    enricher, beats = Busy(1), list[int]()

    async def beat() -> None:
        while True:
            await asyncio.sleep(0)
            beats.append(len(enricher.asked))

    beating = asyncio.ensure_future(beat())
    await run(enricher, None)
    beating.cancel()
    await asyncio.wait([beating])
    assert {*range(1, 9)} <= {*beats}


class OneByOne(InMemory):
    """Fails for several keys, as one of them might be to blame."""

    def key_schema(self) -> pa.Schema:
        return pa.schema([("key", pa.timestamp("us"))])

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        numbers = keys.cast(pa.int64())
        self.asked.append(numbers.to_pylist())
        if len(keys) > 1:
            raise ValueError("one of these")
        return pa.table({"key": keys, "x": numbers})


@virtual
async def test_B4_A4_keys_that_python_cannot_hold_are_asked_for_in_the_halves_of_a_failed_batch() -> None:
    far = 10**18
    enricher = OneByOne(100)
    batch = KeyBatch(ArrowKeys(pa.array([1, 2, far], pa.timestamp("us"))), rows=3)
    await look_up(enricher, [batch], tables=tables_of(enricher))
    assert enricher.asked == [[1, 2, far], [1], [2, far], [2], [far]]
    assert outcomes_of(batch) == [{"x": 1}, {"x": 2}, {"x": far}]


class Far(OneByOne):
    in_memory = False

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        return pa.table({"key": keys, "x": keys.cast(pa.int64())})


@virtual
async def test_A4_G1_keys_stay_in_arrow_under_a_rate_limit_of_the_job() -> None:
    meter, far = cast("Any", Meter(keys=2)), 10**18
    enricher = Far(2)
    options = LookupOptions(batching=batching_of(enricher, None), budget=metered(meter))
    assert in_arrow(options, enricher, traced=False)
    batch = KeyBatch(ArrowKeys(pa.array([1, 2, far], pa.timestamp("us"))), rows=3)
    await look_up(enricher, [batch], budget=options.budget, tables=tables_of(enricher), meter=meter, fail=True)
    assert [answer.answer() for answer in batch.found(None)] == [{"x": 1}, {"x": 2}, {"x": far}]
    assert [(start, weights["keys"]) for start, weights in meter.starts] == [(0, 2), (10, 1)]


class Weighed(Far):
    def weigh(self, keys: Sequence[Any]) -> Mapping[str, float]:
        return {"tokens": len(keys)}


def test_A4_G4_keys_that_are_weighed_have_objects() -> None:
    options = LookupOptions(batching=Batching(2), budget=metered(Meter()))
    assert not in_arrow(options, Weighed(2), traced=False)


class Indexed(InMemory):
    in_memory = False

    def __init__(self, max_batch: int, keys: pa.DataType) -> None:
        super().__init__(max_batch)
        self.keys = keys

    def key_schema(self) -> pa.Schema:
        return pa.schema(list(self.keys) if pa.types.is_struct(self.keys) else [("key", self.keys)])

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        await asyncio.sleep(len(self.asked) % 3)
        self.asked.append(python_keys(keys))
        numbers = key_parts(keys)[0].cast(pa.int64())
        parts = dict(zip(self.key_schema().names, key_parts(keys), strict=True))
        return pa.table(parts | {"x": numbers})


NEAR = [[1, 2], [3, 70], [71, 72]]
AS_THEY_CAME = [[70, 1], [71, 2], [72, 3]]


@pytest.mark.parametrize(
    ("kind", "options", "asked"),
    [
        (pa.int64(), {}, NEAR),
        (pa.timestamp("us", "UTC"), {"ordered": True, "buffer": 6}, NEAR),
        (pa.struct([("0", pa.int32()), ("1", pa.string())]), {"ordered": False}, NEAR),
        (pa.int32(), {"timed": True, "buffer": 6}, NEAR),
        (pa.string(), {}, AS_THEY_CAME),
        # The batch has no room at once: its first rows have to leave first.
        (pa.int64(), {"buffer": 5}, [[70, 1], [71, 2], [72], [3]]),
        # The first rows get what a budget has left.
        (pa.int64(), {"meter": Meter(keys=2)}, AS_THEY_CAME),
    ],
    ids=["numbers", "times in order", "numbers and texts", "statuses", "texts", "no room", "a budget"],
)
@virtual
async def test_A1_keys_near_each_other_are_asked_for_together(
    kind: pa.DataType, options: dict[str, Any], asked: list[list[int]]
) -> None:
    numbers, of_one = pa.array([70, 1, 71, 2, 72, 3]), not pa.types.is_struct(kind)
    keys = numbers.cast(kind) if of_one else key_array([numbers.cast(pa.int32()), pa.array(["b", "a"] * 3)])
    enricher, batch = Indexed(2, keys.type), KeyBatch(ArrowKeys(keys), rows=6)
    if "meter" in options:
        options["budget"] = metered(options["meter"])
    await look_up(enricher, [batch], tables=tables_of(enricher), fail=True, **options)
    positions = {key: numbers[place].as_py() for place, key in enumerate(python_keys(keys))}
    assert [[positions[key] for key in keys] for keys in enricher.asked] == asked
    assert [answer_of(one).answer()["x"] for one in batch.found(None)] == numbers.to_pylist()


@given(
    keys=st.lists(st.lists(st.integers(-9, 9) | st.integers(-(2**63), 2**63 - 1), unique=True), max_size=5),
    max_batch=st.integers(1, 5),
    options=st.fixed_dictionaries(
        {"ordered": st.booleans(), "buffer": st.integers(1, 30), "remember": st.sampled_from([0.0, 60.0])}
    ),
)
@virtual
async def test_A1_L2_every_key_has_its_answer_in_whatever_order_keys_are_asked_for(
    keys: list[list[int]], max_batch: int, options: dict[str, Any]
) -> None:
    enricher, batches = Indexed(max_batch, pa.int64()), [batch_of(some) for some in keys]
    await look_up(enricher, batches, tables=tables_of(enricher), fail=True, capacity=2, **options)
    for batch, some in zip(batches, keys, strict=True):
        assert [answer.answer()["x"] for answer in batch.found(None)] == some
    asked = [key for some in enricher.asked for key in some]
    assert len(asked) == len({*asked}) or not options["remember"]
