"""The checker accepts real runs of the operator, in every mode and with faults, and sees what is planted into them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncio_operator import (
    AsyncWaitOperator,
    BatchAsyncFunction,
    CircuitBreaker,
    EnricherError,
    ExponentialBackoff,
    FixedBackoff,
    FunctionError,
    Hedge,
    RateLimit,
    Record,
    Retry,
    Watermark,
)
from asyncio_operator.testing import History, VirtualTimeLoop, check_history, history_of_trace
from asyncio_operator.trace import Trace
from asyncio_operator_proof.history.report import Report

SEEDS = 150


class Drawn:
    """An operator, its input and its function, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = source = random.Random(seed)
        mode = source.choice(["ordered", "unordered", "key_ordered"])
        capacity = source.choice([1, 2, 3, 8])
        self.setting: dict[str, Any] = {
            "mode": mode,
            "capacity": capacity,
            "buffer": capacity * source.choice([1, 2, 8]),
        }
        self.options = dict(self.setting)
        if mode == "key_ordered":
            self.options["key"] = lambda value: value % 3
        self._draw_limits()
        self._draw_retry()
        on_error = self.setting["on_error"] = source.choice(["fail", "skip", "return"])
        self.options["on_error"] = (lambda value, error: None) if on_error == "return" else on_error
        if source.random() < 0.3 and mode != "key_ordered":
            self.setting["hedge"] = {"after": 0.2, "extra": 0.5}
            self.options["hedge"] = Hedge(0.2, extra=0.5)
        self.batched = "hedge" not in self.options and source.random() < 0.2
        if self.batched:
            self.setting["batch"] = {"max_size": 3, "linger": 0.05}
            self.options["batching"] = 3
        self.fails = source.choice([0.0, 0.1, 0.3]) if on_error != "fail" or source.random() < 0.3 else 0.0
        self.ignores = source.choice([0.0, 0.0, 0.2])
        self.setting["returns_within"] = 1.0 if self.ignores else 0.0
        self.elements = source.choice([5, 30, 60])
        self.stops = source.random() < 0.1
        # Drawn apart, so that it changes nothing else.
        if random.Random(f"breaker {seed}").random() < 0.3:
            self.setting["circuit_breaker"] = {"failure_ratio": 0.5, "window": 5.0, "minimum_calls": 3, "open_for": 0.5}
            self.options["circuit_breaker"] = CircuitBreaker(0.5, 5.0, 3, 0.5)

    def _draw_limits(self) -> None:
        source = self.random
        for name, times in (("timeout", (0.5, 1.0, 2.0)), ("attempt_timeout", (0.3, 0.7))):
            if source.random() < 0.5:
                self.options[name] = self.setting[name] = source.choice(times)
        if "timeout" in self.options and source.random() < 0.5:
            self.options["on_timeout"] = lambda value: "late"
        if source.random() < 0.3:
            rate, per = source.choice([2, 5, 10]), source.choice([0.5, 1.0])
            self.setting["limits"] = [{"rate": rate, "per": per}]
            self.options["rate_limit"] = RateLimit(rate, per)

    def _draw_retry(self) -> None:
        source = self.random
        backoffs: dict[str, tuple[Any, dict[str, Any]]] = {
            "none": (FixedBackoff(0.0), {"delay": 0.0}),
            "fixed": (FixedBackoff(0.5), {"delay": 0.5}),
            "growing": (
                ExponentialBackoff(0.1, 2.0, 1.0, False),
                {"backoff": {"initial": 0.1, "multiplier": 2.0, "maximum": 1.0, "jitter": False}},
            ),
            "random": (ExponentialBackoff(0.1), {}),
        }
        if source.random() < 0.6:
            backoff, setting = backoffs[source.choice(sorted(backoffs))]
            attempts = source.choice([2, 3])
            self.setting |= {"max_attempts": attempts, **setting}
            self.options["retry"] = Retry(attempts, backoff)

    async def call(self, value: int) -> Any:
        source = self.random
        seconds = source.choice([0, 0.05, 0.1, 0.1, 0.1, 0.25, 0.8, 3.0])
        fails, ignores = source.random() < self.fails, source.random() < self.ignores
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            if not ignores:
                raise
            await asyncio.sleep(source.choice([0.1, 1.0]))
        if fails:
            raise ValueError(value)
        return value

    def function(self) -> Any:
        call = self.call

        class Batches(BatchAsyncFunction[int, Any]):
            async def invoke_batch(self, values: Any) -> Any:
                await call(values[0])
                return values

        return Batches() if self.batched else call

    async def input(self) -> AsyncIterator[Any]:
        for number in range(self.elements):
            if self.random.random() < 0.2:
                await asyncio.sleep(self.random.choice([0.01, 0.3]))
            yield Record(number) if number % 2 else number
            if self.random.random() < 0.1:
                yield Watermark(number)

    async def run(self, trace: Trace) -> None:
        operator = AsyncWaitOperator(self.function(), trace=trace, grace_period=5.0, **self.options)
        output = operator.process(self.input())
        outputs = 0
        try:
            async for _ in output:
                outputs += 1
                if self.stops and outputs > 3:
                    break
        except FunctionError:
            pass
        finally:
            await output.aclose()

    def history(self) -> History:
        trace = Trace()
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(self.run(trace))
        # No error of these functions has a hint, and no result asks for a retry.
        return history_of_trace(trace, consumer="ready", retry_hints=True, **self.setting)


@pytest.fixture(autouse=True)
def quiet() -> Any:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def test_Y2_real_runs_keep_the_laws() -> None:
    held: Counter[str] = Counter()
    for seed in range(SEEDS):
        drawn = Drawn(seed)
        report = check_history(drawn.history())
        assert not report, f"seed {seed}, {drawn.setting}:\n{report}"
        held.update(report.held.keys())
    # Each of these was decided in some run: the runs are not too simple.
    decided = {"O1", "O4", "O6", "O8", "O9", "O18", "R1", "R2", "R3", "R4", "R5", "R7", "R8", "R10", "B1", "H1", "H2"}
    assert decided | {"X2", "Q6", "Q7"} <= held.keys()


def retried(function: Any, **more: Any) -> Report:
    """Six elements, whose calls may be repeated."""
    trace = Trace()

    async def run() -> None:
        retry = Retry(3, FixedBackoff(0.5), if_result=lambda result: result == "wait")
        async for _ in AsyncWaitOperator(function, capacity=3, retry=retry, trace=trace).process(range(6)):
            pass

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run())
    return check_history(history_of_trace(trace, capacity=3, max_attempts=3, delay=0.5, **more))


def test_Y2_a_trace_does_not_know_which_results_ask_for_a_retry() -> None:
    seen = Counter[int]()

    async def call(value: int) -> Any:
        seen[value] += 1
        await asyncio.sleep(0.1)
        return "wait" if seen[value] == 1 and value % 2 else value

    report = retried(call)
    assert not report, report
    assert {"R5", "R7"} <= report.undecided.keys()
    seen.clear()
    assert "R5" in retried(call, retry_hints=True).broken


def test_Y2_a_trace_does_not_know_for_how_long_a_source_asked_to_wait() -> None:
    seen = Counter[int]()

    async def call(value: int) -> Any:
        seen[value] += 1
        await asyncio.sleep(0.1)
        if value == 2 and seen[value] == 1:
            raise EnricherError("429", retryable=True, retry_after=5.0)
        return value

    report = retried(call)
    assert not report, report
    assert {"R7", "R8"} <= report.undecided.keys()
    seen.clear()
    assert retried(call, retry_hints=True).broken


@pytest.mark.parametrize(("taken", "outcome"), [(10, "finished"), (5, "closed")])
def test_Y2_a_slow_consumer_takes_rows_of_a_run_whose_calls_have_ended(taken: int, outcome: str) -> None:
    async def run(trace: Trace) -> None:
        async def call(value: int) -> int:
            await asyncio.sleep(0.1)
            return value

        outputs = AsyncWaitOperator(call, trace=trace).process(range(10))
        for _ in range(taken):
            await anext(outputs)
            await asyncio.sleep(1)
        await outputs.aclose()

    trace = Trace()
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run(trace))
    history = history_of_trace(trace, mode="ordered", capacity=100)
    report = check_history(history)
    assert not report, report
    assert history.events[-1] == {"event": "task_ended", "at": taken - 0.9, "task": "trace", "outcome": outcome}


def test_Y2_the_trace_of_a_run_that_was_cut_short_is_refused() -> None:
    async def run(trace: Trace) -> None:
        async def call(value: int) -> int:
            return value

        async for _ in AsyncWaitOperator(call, trace=trace).process(range(100)):
            pass

    trace = Trace(limit=50)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run(trace))
    with pytest.raises(ValueError, match="events were dropped when the history was recorded"):
        check_history(history_of_trace(trace))


def test_Y2_what_is_planted_into_a_real_run_is_seen() -> None:
    wanted = {"mode": "ordered", "on_error": "return"}
    drawn = next(one for one in map(Drawn, range(SEEDS)) if wanted.items() <= one.setting.items() and not one.batched)
    events = drawn.history().events
    assert events[-1]["outcome"] == "finished"
    capacity = next(event for event in events if event["event"] == "setting")
    assert "O1" in check_history([{**event, "capacity": 0} if event is capacity else event for event in events]).broken
    last = max(number for number, event in enumerate(events) if event["event"] == "row_out")
    lost = [event for number, event in enumerate(events) if number != last]
    assert "O4" in check_history(lost).broken
    twice = [*events[: last + 1], events[last], *events[last + 1 :]]
    assert "O4" in check_history(twice).broken
