"""T9: an operator fires its timers with the watermarks that pass its output."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import islice
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from asyncio_operator import AsyncWaitOperator, Record, StateError, Watermark
from asyncio_operator.state import KeyGroupRange
from asyncio_operator.testing import VirtualTimeLoop
from asyncio_operator.timers import HeapQueues, InternalTimerService, ProcessingTimeDriver, Timer, TimerServiceManager
from asyncio_operator.trace import Trace
from tests.operator.helpers import Doors, block, collect, collect_timed, collect_until, nap, run_on, same, virtual

GROUPS = KeyGroupRange(0, 3)

MODES: dict[str, dict[str, Any]] = {
    "ordered": {},
    "unordered": {"mode": "unordered"},
    "key_ordered": {"mode": "key_ordered", "key": lambda value: value[0]},
}


class Reminders:
    """A function that registers the timers which its values name, and a service whose timers are collected.

    A value is a key and the times of its timers. A timer at a time that ends with 7 registers one a millisecond later.
    """

    def __init__(self) -> None:
        self.service = InternalTimerService(on_event_time=self.fired, queues=HeapQueues(GROUPS, 4))

    def fired(self, timer: Timer) -> None:
        if timer.timestamp % 10 == 7:
            self.service.register_event_time_timer(timer.timestamp + 1)
        self.service.collect(Record(timer.key, timer.timestamp))

    async def __call__(self, value: tuple[str, list[int]]) -> str:
        key, times = value
        await asyncio.sleep(len(times))
        self.service.current_key = key
        for time in times:
            self.service.register_event_time_timer(time)
        return key.upper()

    def operator(self, **options: Any) -> AsyncWaitOperator:
        return AsyncWaitOperator(self, timers=self.service, **options)

    def snapshot(self) -> dict[int, bytes]:
        return {group: self.service.snapshot(group) for group in GROUPS}

    def restore(self, groups: dict[int, bytes]) -> None:
        for group, data in groups.items():
            self.service.restore(group, data)


@pytest.mark.parametrize("mode", MODES)
@virtual
async def test_T9_timers_fire_after_the_records_before_their_watermark_and_before_it(mode):
    elements = [Record(("a", [5, 20]), 1), Record(("b", [3, 10]), 2), Watermark(10), Record(("c", []), 30)]
    outputs = await collect(Reminders().operator(**MODES[mode]).process([*elements, Watermark(20)]))
    assert Counter(outputs[:2]) == Counter([Record("A", 1), Record("B", 2)])
    assert outputs[2:6] == [Record("b", 3), Record("a", 5), Record("b", 10), Watermark(10)]
    assert outputs[6:] == [Record("C", 30), Record("a", 20), Watermark(20)]


@virtual
async def test_T9_the_end_of_the_input_fires_nothing():
    reminders = Reminders()
    assert await collect(reminders.operator().process([Record(("a", [5]), 1)])) == [Record("A", 1)]
    assert list(reminders.service.event_time_timers()) == [Timer(5, "a")]


@virtual
async def test_T9_a_manager_may_take_the_place_of_a_service():
    manager = TimerServiceManager()
    services = [
        manager.service("one", on_event_time=lambda timer: manager.collect(Record("of the manager", timer.timestamp))),
        manager.service("two", on_event_time=lambda timer: services[1].collect(Record("its own", timer.timestamp))),
    ]

    async def register(value: Any) -> Any:
        if value == 3:
            late = manager.service("a", on_event_time=lambda timer: late.collect(Record("late", timer.timestamp)))
            services.append(late)
        for service in services:
            service.current_key = value
            service.register_event_time_timer(value)
        return value

    outputs = await collect(AsyncWaitOperator(register, timers=manager).process([2, Watermark(2), 3, Watermark(3)]))
    assert outputs[:4] == [2, Record("of the manager", 2), Record("its own", 2), Watermark(2)]
    assert outputs[4:] == [3, Record("late", 3), Record("of the manager", 3), Record("its own", 3), Watermark(3)]


@pytest.mark.parametrize("last", [True, False])
@virtual
async def test_T9_an_error_of_a_callback_ends_the_run_and_the_watermark_is_not_emitted(last):
    service = InternalTimerService(on_event_time=lambda timer: 1 / 0)
    service.current_key = "a"
    service.register_event_time_timer(5)
    function = Doors(call=nap)
    operator = AsyncWaitOperator(function, timers=service)
    got: list[Any] = []
    with pytest.raises(ZeroDivisionError) as raised:
        await collect_until(operator.process([0, Watermark(5), *([] if last else [3, 4])]), got)
    assert got == [0]
    assert "watermark 5" in raised.value.__notes__[0]
    assert function.events[-1] == "close"
    assert [element for element, _ in operator.snapshot().elements] == [Watermark(5), *([] if last else [3, 4])]
    # The timers are free for another run.
    assert await collect(AsyncWaitOperator(same, timers=service).process([Watermark(5)])) == [Watermark(5)]


@virtual
async def test_T9_only_records_are_collected_and_only_during_a_run():
    service = InternalTimerService(on_event_time=lambda timer: service.collect(Watermark(5)))  # type: ignore[arg-type]
    service.current_key = "a"
    service.register_event_time_timer(5)
    with pytest.raises(TypeError, match=r"a Record.*not Watermark\(5\)"):
        await collect(AsyncWaitOperator(same, timers=service).process([Watermark(5)]))
    for timers in (service, TimerServiceManager()):
        with pytest.raises(StateError, match="during a run"):
            timers.collect(Record(1))


@virtual
async def test_T9_a_run_that_is_refused_leaves_the_timers_free():
    trace = Trace()
    other = AsyncWaitOperator(same, trace=trace).process([1])
    await anext(other)
    operator = Reminders().operator(trace=trace)
    with pytest.raises(StateError, match="the trace records another run"):
        await collect(operator.process([Watermark(1)]))
    await other.aclose()
    assert await collect(operator.process([Watermark(1)])) == [Watermark(1)]


@virtual
async def test_T9_timers_belong_to_one_run_at_a_time():
    service = InternalTimerService()
    first = AsyncWaitOperator(same, timers=service).process([1, 2])
    await anext(first)
    second = AsyncWaitOperator(same, timers=service)
    with pytest.raises(StateError, match="another run"):
        await anext(second.process([1]))
    await first.aclose()
    assert await collect(second.process([1])) == [1]


def test_T9_timers_of_a_run_whose_loop_was_closed_serve_the_next_run():
    service = InternalTimerService()
    operator = AsyncWaitOperator(same, timers=service)

    async def leave_open() -> Any:
        outputs = operator.process([1, 2])
        await anext(outputs)
        return outputs

    loop = asyncio.new_event_loop()
    outputs = loop.run_until_complete(leave_open())
    loop.close()
    assert run_on(asyncio.new_event_loop, collect(operator.process([3]))) == [3]
    del outputs


@virtual
async def test_T9_a_pass_over_many_timers_lets_the_loop_turn():
    def fired(timer: Timer) -> None:
        block(0.0001)
        service.collect(Record("fired", timer.timestamp))

    service = InternalTimerService(on_event_time=fired)
    service.current_key = "a"
    for time in range(1_000):
        service.register_event_time_timer(time)
    gaps, before = [], asyncio.get_running_loop().time()

    async def beat() -> None:
        nonlocal before
        while True:
            await asyncio.sleep(0)
            now = asyncio.get_running_loop().time()
            gaps.append(now - before)
            before = now

    beating = asyncio.ensure_future(beat())
    outputs = await collect(AsyncWaitOperator(same, timers=service).process([Watermark(1_000)]))
    beating.cancel()
    assert max(gaps) <= 0.010
    assert outputs == [*[Record("fired", time) for time in range(1_000)], Watermark(1_000)]


@virtual
async def test_T9_T7_a_driven_timer_collects_between_two_outputs_also_after_the_last():
    loop = asyncio.get_running_loop()
    service = InternalTimerService(
        on_processing_time=lambda timer: service.collect(Record("reminder", timer.timestamp)), clock=loop.time
    )
    service.current_key = "a"
    for time in (1_000, 2_500):
        service.register_processing_time_timer(time)
    async with ProcessingTimeDriver(service):
        got = await collect_timed(AsyncWaitOperator(nap, timers=service).process([2, Watermark(1), 3]))
    first, second = (Record("reminder", 1_000), 1.0), (Record("reminder", 2_500), 2.5)
    assert got == [first, (2, 2), (Watermark(1), 2), second, (3, 3)]


# -- in a snapshot


@st.composite
def streams(draw: st.DrawFn) -> list[Any]:
    """Records and ascending watermarks. A record registers no timer that an earlier watermark has passed."""
    elements: list[Any] = []
    watermark = 0
    for key in draw(st.lists(st.sampled_from("abc"), max_size=8)):
        times = draw(st.lists(st.integers(watermark + 1, watermark + 30), max_size=3))
        elements.append(Record((key, times), watermark + 1))
        if draw(st.booleans()):
            watermark += draw(st.integers(0, 20))
            elements.append(Watermark(watermark))
    return elements


def model(elements: list[Any]) -> list[Any]:
    """Outputs of an ordered run."""
    timers: set[tuple[int, int, str]] = set()
    outputs: list[Any] = []
    number = 0
    for element in elements:
        if isinstance(element, Record):
            key, times = element.value
            for time in times:
                if not any(t == time and k == key for t, _, k in timers):
                    timers.add((time, number, key))
                    number += 1
            outputs.append(Record(key.upper(), element.timestamp))
            continue
        while timers and min(timers)[0] <= element.timestamp:
            time, _, key = first = min(timers)
            timers.remove(first)
            if time % 10 == 7 and not any(t == time + 1 and k == key for t, _, k in timers):
                timers.add((time + 1, number, key))
                number += 1
            outputs.append(Record(key, time))
        outputs.append(element)
    return outputs


def in_segments(outputs: list[Any]) -> list[Any]:
    """Outputs up to the order in which records of one time leave."""
    segments: list[Any] = [[]]
    for output in outputs:
        segments[-1].append(output)
        if isinstance(output, Watermark):
            segments.append([])
    return [sorted(segment, key=repr) for segment in segments]


@given(elements=streams(), mode=st.sampled_from([*MODES]), taken=st.lists(st.integers(0, 5), max_size=4))
def test_T9_a_snapshot_between_any_two_outputs_loses_and_doubles_nothing(elements, mode, taken):
    """Each run takes some outputs, and the next one restores its snapshot and that of its timers."""

    async def runs() -> list[Any]:
        got: list[Any] = []
        snapshot = None
        timers: dict[int, bytes] = {}
        source = iter(elements)
        for count in [*taken, None]:
            reminders = Reminders()
            reminders.restore(timers)
            operator = reminders.operator(**MODES[mode], buffer=3)
            outputs = operator.process(source, restore=snapshot)
            async for output in outputs:
                got.append(output)
                if count is not None and (count := count - 1) <= 0:
                    break
            snapshot, timers = operator.snapshot(), reminders.snapshot()
            await outputs.aclose()
        return got

    got = run_on(VirtualTimeLoop, runs())
    assert in_segments(got) == in_segments(model(elements))


def test_T9_O16_a_snapshot_of_the_synchronous_face_holds_what_is_on_its_way():
    service = InternalTimerService(on_event_time=lambda timer: service.collect(Record(timer.timestamp, 1)))
    service.current_key = "a"
    for time in range(5):
        service.register_event_time_timer(time)
    operator = AsyncWaitOperator(same, timers=service)
    results = operator([Record("first", 1), Watermark(9)])
    assert list(islice(results, 3)) == [Record("first", 1), Record(0, 1), Record(1, 1)]
    snapshot = operator.snapshot()
    assert [element for element, _ in snapshot.elements] == [Watermark(9)]
    assert snapshot.collected == (Record(2, 1), Record(3, 1), Record(4, 1))
    assert operator.metrics.emitted == 1
    results.close()  # type: ignore[attr-defined]
