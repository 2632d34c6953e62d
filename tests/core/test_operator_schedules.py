"""The whole operator against a ten-line model, on random schedules in virtual time.

A schedule says what every call does (how long it takes, whether it fails, how it takes its cancellation), what the
options are, how fast the input comes and the consumer takes, and when he has had enough. `expected` is the model: what
each input gives, from its own behaviour alone. O1 and O4 are checked at every step of the input and of the consumer.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from asyncio_operator import AsyncFunction, AsyncWaitOperator, ElementTimeoutError, FunctionError, Record, Watermark
from asyncio_operator.testing import VirtualTimeLoop

GRACE = 1000.0


@dataclass(frozen=True)
class Call:
    """What the function does with one value. Times are whole seconds; 0 returns at once, half of one is one turn."""

    seconds: float = 0
    ending: str = "result"  # "result" | "error" | "cancelled": a CancelledError of its own making
    when_cancelled: str = "ends"  # "ends" | "cleans up" | "swallows" | "fails"
    inside: str = "lane"  # "lane" | "task" | "group": where the waiting is done
    outputs: int = 1


@dataclass(frozen=True)
class Schedule:
    mode: str
    capacity: int
    buffer: int
    timeout: float | None
    on_error: str
    on_timeout: bool
    flatten: bool
    calls: tuple[Call | None, ...]  # None is a watermark
    records: tuple[bool, ...]
    gaps: tuple[float, ...] | None  # between inputs; None is an ordinary iterable
    input_error: bool
    pauses: tuple[float, ...]  # of the consumer, in turn
    close_after: int | None


TIMES = st.sampled_from([0, 0, 0.5, 1, 1, 2, 3, 4, 5, 9, 30])
CALLS = st.builds(
    Call,
    seconds=TIMES,
    ending=st.sampled_from(["result"] * 12 + ["error", "cancelled"]),
    when_cancelled=st.sampled_from(["ends", "ends", "cleans up", "swallows", "fails"]),
    inside=st.sampled_from(["lane", "lane", "task", "group"]),
    outputs=st.integers(0, 3),
)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    count = draw(st.integers(0, 24))
    many: dict[str, Any] = {"min_size": count, "max_size": count}
    return Schedule(
        mode=draw(st.sampled_from(["ordered", "unordered"])),
        capacity=draw(st.integers(1, 5)),
        buffer=draw(st.integers(1, 9)),
        timeout=draw(st.sampled_from([None, 1, 3, 3, 4])),
        on_error=draw(st.sampled_from(["fail", "skip", "skip", "replace"])),
        on_timeout=draw(st.booleans()),
        flatten=draw(st.booleans()),
        calls=tuple(draw(st.lists(st.one_of(CALLS, CALLS, CALLS, st.none()), **many))),
        records=tuple(draw(st.lists(st.booleans(), **many))),
        gaps=draw(st.none() | st.lists(st.sampled_from([0, 0, 0.5, 1, 5]), **many).map(tuple)),
        input_error=draw(st.sampled_from([False] * 5 + [True])),
        pauses=tuple(draw(st.lists(st.sampled_from([0, 0, 0.5, 1, 6]), min_size=1, max_size=5))),
        close_after=draw(st.none() | st.none() | st.integers(0, 12)),
    )


class InputError(Exception):
    pass


def fate(schedule: Schedule, number: int) -> str:
    """How a call ends if nothing ends the run before."""
    call = schedule.calls[number]
    assert call is not None
    late = schedule.timeout is not None and int(call.seconds) > schedule.timeout
    if late:
        return "late result" if schedule.on_timeout else "late"
    return call.ending


def expected(schedule: Schedule, number: int) -> list[Any] | None:
    """The model: the outputs that an input gives, or None if it ends the run."""
    call = schedule.calls[number]
    if call is None:
        return [Watermark(number)]
    outputs: list[Any] = []
    match fate(schedule, number), schedule.on_error:
        case "result", _:
            outputs = [(number, i) for i in range(call.outputs)] if schedule.flatten else [(number, 0)]
        case "late result", _:
            outputs = [(number, "late")]
        case _, "fail":
            return None
        case _, "skip":
            pass
        case _:
            outputs = [(number, "replaced")]
    return [Record(output, number) for output in outputs] if schedule.records[number] else outputs


@dataclass
class Explorer(AsyncFunction[int, Any]):
    """Runs a schedule, and holds it against the laws while it runs."""

    schedule: Schedule
    running: int = 0
    called: Counter[int] = field(default_factory=Counter)
    ended: dict[int, float] = field(default_factory=dict)
    watermarks: int = 0
    read: int = 0
    opened: int = 0
    closed: int = 0
    got: list[Any] = field(default_factory=list)

    # -- the function

    async def open(self) -> None:
        self.opened += 1

    async def close(self) -> None:
        assert self.running == 0, "O9: closed while calls run"
        self.closed += 1

    async def invoke(self, value: int) -> Any:
        call = self.schedule.calls[value]
        assert call is not None
        assert self.opened == 1
        assert self.closed == 0
        self.called[value] += 1
        self.running += 1
        assert self.running <= self.schedule.capacity, "O1: more calls than the capacity"
        started = self.now()
        deadline = started + (self.schedule.timeout or GRACE)
        self.ended[value] = min(started + int(call.seconds), deadline)
        try:
            await self.wait(call)
        except asyncio.CancelledError:
            match call.when_cancelled:
                case "ends":
                    raise
                case "cleans up":
                    await asyncio.sleep(2)
                    raise
                case "fails":
                    raise ConnectionError from None
            await asyncio.sleep(2)
        finally:
            self.running -= 1
        match call.ending:
            case "error":
                raise ValueError(value)
            case "cancelled":
                raise asyncio.CancelledError
        return [(value, i) for i in range(call.outputs)] if self.schedule.flatten else (value, 0)

    async def wait(self, call: Call) -> None:
        if call.seconds == 0:
            return
        sleep = asyncio.sleep(int(call.seconds))
        match call.inside:
            case "lane":
                await sleep
            case "task":
                await asyncio.create_task(sleep)
            case _:
                async with asyncio.TaskGroup() as group:
                    group.create_task(sleep)

    def timeout(self, value: int) -> Any:
        assert self.now() == self.ended[value], "R2: not at the deadline"
        if not self.schedule.on_timeout:
            raise ElementTimeoutError
        return [(value, "late")] if self.schedule.flatten else (value, "late")

    def on_error(self, value: int, error: BaseException) -> Any:
        assert self.schedule.calls[value] is not None
        return [(value, "replaced")] if self.schedule.flatten else (value, "replaced")

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    # -- the input

    def element(self, number: int) -> Any:
        """Called when the input is asked for its next element."""
        assert self.running < self.schedule.capacity, "O1: read ahead of a free slot"
        received = sum(isinstance(output, Watermark) for output in self.got)
        inside = self.operator.metrics.buffered + self.watermarks - received
        assert inside < self.schedule.buffer, "O1: read with the buffer full"
        self.read += 1
        call = self.schedule.calls[number]
        if call is None:
            self.watermarks += 1
            return Watermark(number)
        return Record(number, number) if self.schedule.records[number] else number

    def sync_input(self) -> Iterator[Any]:
        for number in range(len(self.schedule.calls)):
            yield self.element(number)
        if self.schedule.input_error:
            raise InputError

    async def async_input(self) -> AsyncIterator[Any]:
        assert self.schedule.gaps is not None
        for number, gap in enumerate(self.schedule.gaps):
            if gap:
                await asyncio.sleep(int(gap))
            yield self.element(number)
        if self.schedule.input_error:
            raise InputError

    # -- the run

    async def run(self) -> None:
        schedule = self.schedule
        self.operator = AsyncWaitOperator(
            self,
            mode=schedule.mode,
            capacity=schedule.capacity,
            buffer=schedule.buffer,
            timeout=schedule.timeout,
            on_error=self.on_error if schedule.on_error == "replace" else schedule.on_error,
            flatten=schedule.flatten,
            grace_period=GRACE,
        )
        outputs = self.operator.process(self.sync_input() if schedule.gaps is None else self.async_input())
        failure: Exception | None = None
        try:
            await self.consume(outputs)
        except (FunctionError, InputError) as error:
            failure = error
        self.check_outputs()
        self.check_end(failure)

    async def consume(self, outputs: Any) -> None:
        schedule = self.schedule
        while schedule.close_after is None or len(self.got) < schedule.close_after:
            try:
                self.got.append(await anext(outputs))
            except StopAsyncIteration:
                return
            self.check_metrics()
            pause = schedule.pauses[len(self.got) % len(schedule.pauses)]
            if pause:
                await asyncio.sleep(int(pause))
                self.check_metrics()
        await outputs.aclose()

    # -- the laws

    def check_metrics(self) -> None:
        metrics = self.operator.metrics
        assert metrics.in_flight <= self.schedule.capacity
        assert metrics.buffered <= self.schedule.buffer
        assert metrics.admitted == metrics.emitted + metrics.buffered
        assert metrics.admitted == self.read - self.watermarks

    def check_outputs(self) -> None:
        """O4: nothing lost, nothing doubled, and everything in its order, as far as it was emitted."""
        schedule = self.schedule
        wanted = [expected(schedule, number) or [] for number in range(self.read)]
        if schedule.mode == "ordered":
            assert self.got == [output for outputs in wanted for output in outputs][: len(self.got)]
            return
        # By segments, each of which is complete unless it is the last one that was begun.
        numbers = [number_of(output) for output in self.got]
        position = 0
        while position < len(numbers):
            begin = position
            segment = sum(schedule.calls[n] is None for n in numbers[:begin])
            members = self.segment(segment)
            while position < len(numbers) and schedule.calls[numbers[position]] is not None:
                assert numbers[position] in members, "Q6: crossed a watermark"
                position += 1
            leaving = numbers[begin:position]
            times = [self.ended[number] for number in leaving]
            assert times == sorted(times), "Q6: not in the order of completion"
            given = dict.fromkeys(leaving)
            assert [o for n in given for o in wanted[n]][: len(leaving)] == self.got[begin:position]
            if position < len(numbers):
                assert set(given) == {n for n in members if wanted[n]}, "Q6: a watermark overtook a record"
                assert self.got[position] == Watermark(max(members, default=-1) + 1 if members else numbers[position])
                position += 1

    def segment(self, index: int) -> list[int]:
        """The numbers of the records between two watermarks."""
        members: list[list[int]] = [[]]
        for number, call in enumerate(self.schedule.calls):
            if call is None:
                members.append([])
            else:
                members[-1].append(number)
        return members[index]

    def check_end(self, failure: Exception | None) -> None:
        schedule, metrics = self.schedule, self.operator.metrics
        assert asyncio.all_tasks() == {asyncio.current_task()}, "O8: tasks are left behind"
        assert self.running == metrics.in_flight == 0
        assert set(self.called.values()) <= {1}, "an element was called twice"
        closed_early = schedule.close_after is not None and len(self.got) >= schedule.close_after
        if schedule.close_after == 0:
            assert (self.opened, self.closed) == (0, 0)
            return
        assert (self.opened, self.closed) == (1, 1), "O8, O9"
        fatal = [number for number in self.called if expected(schedule, number) is None]
        match failure:
            case FunctionError():
                first = min(self.ended[number] for number in fatal)
                assert self.ended[int(failure.element)] == first, "O6: not the first failure in time"
                assert int(failure.element) in fatal
            case InputError():
                assert schedule.input_error
                assert self.read == len(schedule.calls)
            case None if not closed_early:
                assert fatal == [], "O6: a failure was swallowed"
                assert not schedule.input_error
                assert self.read == len(schedule.calls)
                wanted = [expected(schedule, number) or [] for number in range(self.read)]
                assert len(self.got) == sum(map(len, wanted)), "O4: lost"
                fates = [fate(schedule, n) for n, call in enumerate(schedule.calls) if call is not None]
                assert metrics.admitted == metrics.emitted == len(fates)
                assert metrics.timeouts == sum(f.startswith("late") for f in fates)
                assert metrics.failures == sum(f not in ("result", "late result") for f in fates)
                assert metrics.skipped == (metrics.failures if schedule.on_error == "skip" else 0)


def number_of(output: Any) -> int:
    if isinstance(output, Watermark):
        return output.timestamp
    number: int = (output.value if isinstance(output, Record) else output)[0]
    return number


@pytest.mark.timeout(1800)
@settings(max_examples=10 * settings().max_examples, suppress_health_check=list(HealthCheck))
@given(schedules())
def test_any_schedule(schedule):
    async def main():
        async with asyncio.timeout(10 * GRACE):
            await Explorer(schedule).run()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
