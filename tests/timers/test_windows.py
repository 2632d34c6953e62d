"""Windows and triggers: T11 to T13, on the heap and on RocksDB, against a model of a few lines."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.state import (
    HeapStateBackend,
    KeyGroupRange,
    RocksDBStateBackend,
    StateBackend,
    checkpoint,
    key_group,
    restore_checkpoint,
)
from asyncio_operator.testing.time import ManualClock
from asyncio_operator.timers import BackendQueues, ProcessingTimeDriver, TimerServiceManager
from asyncio_operator.windows import (
    CountTrigger,
    EventTimeTrigger,
    ProcessingTimeTrigger,
    SlidingWindows,
    TimeWindow,
    Trigger,
    TriggerResult,
    TumblingWindows,
    WindowOperator,
    WindowResult,
)
from tests.operator.helpers import virtual


class Values:
    """Collects the values of a window, as a sorted list."""

    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        return [*accumulator, value]

    def get_result(self, accumulator):
        return sorted(accumulator)

    def merge(self, a, b):
        return a + b


class EarlyByCount(Trigger):
    """On time and late as an EventTimeTrigger, and early at every n-th element."""

    def __init__(self, n):
        self._parts = EventTimeTrigger(), CountTrigger(n)

    def on_element(self, element, timestamp, window, ctx):
        on_time, early = (part.on_element(element, timestamp, window, ctx) for part in self._parts)
        return on_time | early

    def on_event_time(self, time, window, ctx):
        return self._parts[0].on_event_time(time, window, ctx)

    def clear(self, window, ctx):
        for part in self._parts:
            part.clear(window, ctx)


@pytest.fixture
def make_parts(make_queues, tmp_path, request):
    """Makes a backend and a manager of one kind, for a range of key groups."""
    made, numbers = [], itertools.count()

    def make(clock=None, groups=KeyGroupRange(0, 127)):  # noqa: B008 - frozen
        kind = request.node.callspec.params["make_queues"]
        if kind.startswith("state"):
            backend: StateBackend = RocksDBStateBackend(
                tmp_path / f"state-{next(numbers)}", clock=clock, key_groups=groups
            )
            queues = BackendQueues(backend)
        else:
            backend, queues = HeapStateBackend(clock=clock, key_groups=groups), make_queues(groups)
        made.append(backend)
        return {"backend": backend, "timers": TimerServiceManager(queues)}

    yield make
    for backend in made:
        backend.close()


def left_over(parts):
    """Entries in the state, and timers."""
    timers = [[*each.event_time_timers(), *each.processing_time_timers()] for each in parts["timers"].services]
    return parts["backend"].num_entries(), sum(map(len, timers))


def plain(results):
    return [(each.key, *each.window, each.value) for each in results]


steps = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(-30, 60)) | st.tuples(st.none(), st.integers(-30, 70)), max_size=40
)
milliseconds = st.sampled_from([1, 3, 5, 10, 20])
TENS = {"size": 10, "slide": 10, "offset": 0}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps, size=milliseconds, slide=milliseconds, offset=st.integers(-7, 7), lateness=st.integers(0, 15))
@example(steps=[("a", 0), (None, 9), ("a", 1), (None, 13), ("a", 2), (None, 14), ("a", 3)], **TENS, lateness=5)
def test_T11_T12_windows_of_event_time_against_a_dictionary(make_parts, steps, size, slide, offset, lateness):
    parts = make_parts()
    assigner: Any = SlidingWindows(size / 1000, slide / 1000, offset / 1000)
    if size == slide:
        assigner = TumblingWindows(timedelta(milliseconds=size), offset / 1000)
    operator = WindowOperator(assigner, EventTimeTrigger(), Values(), **parts, allowed_lateness=lateness / 1000)
    windows: dict[tuple[str, int, int], list[int]] = {}
    watermark, dropped = -(2**63), 0
    for number, (key, at) in enumerate(steps):
        if key is None:
            found = plain(operator.advance_watermark(at))
            # In the order of their ends; equal ends in any order.
            assert [each[2] for each in found] == sorted(each[2] for each in found)
            due = [window for window in windows if watermark < window[2] - 1 <= at]
            assert sorted(found) == sorted((*window, windows[window]) for window in due)
            watermark = max(watermark, at)
            windows = {window: values for window, values in windows.items() if window[2] - 1 + lateness > watermark}
        else:
            starts = [start for start in range(at - size + 1, at + 1) if (start - offset) % slide == 0]
            late = [start for start in starts if start + size - 1 + lateness <= watermark]
            wanted = []
            for start in sorted(set(starts) - set(late)):
                values = windows.setdefault((key, start, start + size), [])
                values.append(number)
                if start + size - 1 <= watermark:
                    wanted.append((key, start, start + size, values[:]))
            dropped += bool(late) and late == starts
            assert plain(operator.process(key, number, at)) == wanted
    assert operator.dropped == dropped
    assert left_over(parts)[0] == len(windows)
    list(operator.advance_watermark(2**63 - 1))
    assert left_over(parts) == (0, 0)
    assert plain(operator.process("a", 1, 2**63 - 1)) == []


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 39)), max_size=30), n=st.integers(1, 4))
def test_T13_a_count_fires_the_whole_window_at_every_nth_element(make_parts, keys, n):
    parts = make_parts()
    operator = WindowOperator(TumblingWindows(0.02), CountTrigger(n), Values(), **parts)
    other = WindowOperator(TumblingWindows(0.02), CountTrigger(n), Values(), **parts, name="other")
    windows: dict[tuple[str, int], list[int]] = {}
    for number, (key, at) in enumerate(keys):
        values = windows.setdefault((key, at // 20), [])
        values.append(number)
        wanted = [] if len(values) % n else [(key, at // 20 * 20, at // 20 * 20 + 20, values)]
        assert plain(operator.process(key, number, at)) == wanted
        # Another operator over the same parts has windows and counts of its own.
        assert bool(plain(other.process("a", number, 0))) == ((number + 1) % n == 0)
    assert plain(operator.advance_watermark(100)) == []
    assert left_over(parts) == (0, 0)


def test_T13_without_timestamps_the_clock_ends_windows_and_nothing_is_late(make_parts):
    clock = ManualClock(0.0)
    parts = make_parts(clock)
    operator = WindowOperator(TumblingWindows(10), ProcessingTimeTrigger(), Values(), **parts, allowed_lateness=60)
    list(operator.advance_watermark(2**62))
    assert plain(operator.process("a", 1)) == []
    clock.set(9.998)
    assert plain(operator.advance_processing_time()) == []
    clock.set(9.999)
    assert plain(operator.advance_processing_time()) == [("a", 0, 10_000, [1])]
    # The last millisecond of the window is not over: this element is not alone in the result.
    assert plain(operator.process("a", 2)) == []
    assert plain(operator.advance_processing_time()) == [("a", 0, 10_000, [1, 2])]
    clock.set(10.0)
    assert plain(operator.process("a", 3)) == plain(operator.advance_processing_time()) == []
    assert left_over(parts)[0] == 1, "the allowed lateness is none of the clock's"
    clock.set(3_600.0)
    assert plain(operator.advance_processing_time()) == [("a", 10_000, 20_000, [3])]
    assert (left_over(parts), operator.dropped) == ((0, 0), 0)


def test_T13_a_window_of_event_time_goes_with_the_watermark_whatever_the_clock_says(make_parts):
    """A timer of the clock at the number that is the end of a window of event time does not remove the window."""

    class AtTheEnd(Trigger):
        def on_element(self, element, timestamp, window, ctx):
            ctx.register_processing_time_timer(window.end)
            ctx.register_event_time_timer(window.end - 2)
            return TriggerResult.CONTINUE

        def on_processing_time(self, time, window, ctx):
            assert (time, ctx.current_processing_time()) == (10_000, 10_000)
            return TriggerResult.FIRE

        def on_event_time(self, time, window, ctx):
            return TriggerResult.FIRE_AND_PURGE

        def clear(self, window, ctx):
            ctx.delete_processing_time_timer(window.end)

    clock = ManualClock(0.0)
    parts = make_parts(clock)
    operator = WindowOperator(TumblingWindows(10), AtTheEnd(), Values(), **parts)
    assert plain(operator.process("a", 1, 0)) == []
    assert plain(operator.process("a", 2)) == []
    clock.set(10.0)
    # That of the clock's time is a window of its own, and is over.
    assert sorted(plain(operator.advance_processing_time())) == [("a", 0, 10_000, [1]), ("a", 0, 10_000, [2])]
    assert plain(operator.process("b", 3, 0)) == []
    assert sorted(plain(operator.advance_watermark(9_998))) == [("a", 0, 10_000, [1]), ("b", 0, 10_000, [3])]
    # Purged is not removed: the window takes elements, and a timer that finds no element gives nothing.
    assert plain(operator.process("a", 4, 0)) == []
    assert plain(operator.advance_watermark(9_998)) == [("a", 0, 10_000, [4])]
    assert plain(operator.advance_processing_time()) == []
    assert plain(operator.advance_watermark(9_999)) == []
    assert left_over(parts) == (0, 0)


def test_T13_a_window_that_is_purged_goes_on_with_the_next_elements(make_parts):
    class Says(Trigger):
        def on_element(self, element, timestamp, window, ctx):
            ctx.register_event_time_timer(5)
            return TriggerResult(element[1])

        def on_event_time(self, time, window, ctx):
            return TriggerResult.PURGE if time == 5 else TriggerResult.CONTINUE

    parts = make_parts()
    operator = WindowOperator(TumblingWindows(10), Says(), Values(), **parts)

    def numbers(number, result):
        fired = operator.process("a", (number, result.value), 1)
        return [[number for number, _ in each.value] for each in fired]

    assert numbers(1, TriggerResult.CONTINUE) == []
    assert numbers(2, TriggerResult.FIRE) == [[1, 2]]
    assert numbers(3, TriggerResult.FIRE_AND_PURGE) == [[1, 2, 3]]
    assert numbers(4, TriggerResult.FIRE) == [[4]]
    assert numbers(5, TriggerResult.PURGE) == []
    assert numbers(6, TriggerResult.FIRE) == [[6]]
    assert plain(operator.advance_watermark(5)) == []
    assert numbers(7, TriggerResult.FIRE) == [[7]]
    assert plain(operator.advance_watermark(9_999)) == []
    assert left_over(parts) == (0, 0)


def test_T12_windows_go_on_after_a_checkpoint_at_another_parallelism(make_parts, tmp_path):
    parts = make_parts()
    operator = WindowOperator(TumblingWindows(10), EarlyByCount(3), Values(), **parts, allowed_lateness=5)
    for key in range(8):
        list(operator.process(key, key, 1))
    list(operator.advance_watermark(9_999))
    for key in range(8):
        list(operator.process(key, 10 + key, 11_000))
    checkpoint(tmp_path / "saved", *parts.values())
    for groups in (KeyGroupRange(0, 63), KeyGroupRange(64, 127)):
        parts = make_parts(groups=groups)
        restore_checkpoint(tmp_path / "saved", *parts.values())
        operator = WindowOperator(TumblingWindows(10), EarlyByCount(3), Values(), **parts, allowed_lateness=5)
        keys = [key for key in range(8) if key_group(key, 128) in groups]
        for key in keys:
            assert plain(operator.process(key, 20 + key, 11_000)) == []
            assert len(plain(operator.process(key, 30 + key, 11_000))) == 1
        found = sorted(plain(operator.advance_watermark(19_999)))
        assert found == [(key, 10_000, 20_000, [10 + key, 20 + key, 30 + key]) for key in keys]
        list(operator.advance_watermark(30_000))
        assert left_over(parts) == (0, 0)


@pytest.mark.parametrize("emits", [False, True])
def test_T11_more_windows_than_a_pass_takes_fire_as_results_are_taken_or_at_once_for_emit(make_parts, emits):
    parts = make_parts()
    found: list[WindowResult] = []
    emit = found.append if emits else None
    operator = WindowOperator(TumblingWindows(1), EventTimeTrigger(), Values(), **parts, emit=emit)
    for second in range(2_500):
        operator.process("a", second, second * 1_000)
    results = operator.advance_watermark(2**63 - 1)
    assert left_over(parts)[0] == (0 if emits else 1_500)
    assert [each.value for each in found or results] == [[second] for second in range(2_500)]
    assert left_over(parts) == (0, 0)
    assert list(results) == []


def test_T11_what_emit_does_with_the_same_state_is_apart(make_parts):
    parts, found = make_parts(), []
    second = WindowOperator(TumblingWindows(100), EventTimeTrigger(), Values(), **parts, name="second")

    def emit(result):
        found.append((result.key, *result.window, result.value))
        second.process("all", 0, result.window.max_timestamp)

    first = WindowOperator(SlidingWindows(10, 5), EarlyByCount(1), Values(), **parts, name="first", emit=emit)
    first.process("a", 1, 7_000)
    first.process("b", 2, 7_000)
    early = [("a", 0, 10_000, [1]), ("a", 5_000, 15_000, [1]), ("b", 0, 10_000, [2]), ("b", 5_000, 15_000, [2])]
    assert sorted(found) == early
    first.advance_watermark(20_000)
    assert sorted(found) == sorted(2 * early)
    list(second.advance_watermark(2**63 - 1))
    assert left_over(parts) == (0, 0)


@virtual
async def test_T13_a_driver_fires_windows_and_emit_gets_the_results(make_parts):
    parts = make_parts(asyncio.get_running_loop().time)
    found: list[WindowResult] = []
    operator = WindowOperator(TumblingWindows(10), ProcessingTimeTrigger(), Values(), **parts, emit=found.append)
    async with ProcessingTimeDriver(parts["timers"]):
        for number in range(3):
            assert list(operator.process("a", number)) == []
            await asyncio.sleep(10.1)
    assert [each.value for each in found] == [[0], [1], [2]]
    assert left_over(parts) == (0, 0)


class Picky(Values):
    """Refuses negative values, has no result of a zero, and makes accumulators of text that cannot be stored."""

    def add(self, value, accumulator):
        return object() if isinstance(value, str) else super().add(int(value**0.5), accumulator)

    def get_result(self, accumulator):
        return [1 // value for value in super().get_result(accumulator)]


def test_T13_a_count_leaves_out_an_element_that_was_not_added(make_parts):
    operator = WindowOperator(TumblingWindows(10), CountTrigger(3), Picky(), **make_parts())
    assert plain(operator.process("a", 1, 1)) == []
    for refused in (-1, "text"):
        with pytest.raises(StateError, match=r"add\(\) raised: TypeError|cannot be stored"):
            operator.process("a", refused, 1)
        assert plain(operator.process("a", 1, 1)) == ([] if refused == -1 else [("a", 0, 10_000, [1, 1, 1])])


def test_T13_a_window_stays_as_it_was_if_the_trigger_fails(make_parts):
    class FiresAtOne(Trigger):
        def on_element(self, element, timestamp, window, ctx):
            return TriggerResult(1 // element) if element < 3 else None

    operator = WindowOperator(TumblingWindows(10), FiresAtOne(), Values(), **make_parts())
    assert plain(operator.process("a", 2, 1)) == []
    with pytest.raises(StateError, match="must return a TriggerResult"):
        operator.process("a", 3, 1)
    with pytest.raises(ZeroDivisionError):
        operator.process("a", 0, 1)
    assert plain(operator.process("a", 1, 1)) == [("a", 0, 10_000, [1, 2])]
    operator = WindowOperator(TumblingWindows(10), EarlyByCount(2), Values(), **make_parts())
    with pytest.raises(StateError, match="no timestamp"):
        operator.process("a", 1)
    assert plain(operator.process("a", 2, 1)) == []
    assert plain(operator.process("a", 3, 1)) == [("a", 0, 10_000, [2, 3])]


@pytest.mark.parametrize("lateness", [0, 5])
def test_T12_a_window_whose_result_fails_is_removed_all_the_same(make_parts, lateness):
    parts = make_parts()
    operator = WindowOperator(TumblingWindows(10), EventTimeTrigger(), Picky(), **parts, allowed_lateness=lateness)
    for key, value in (("a", 1), ("b", 0), ("c", 1)):
        operator.process(key, value, 1)
    found = []
    for _ in range(2):
        with contextlib.suppress(StateError):
            found += plain(operator.advance_watermark(9_999))
    assert sorted(found) == [("a", 0, 10_000, [1]), ("c", 0, 10_000, [1])]
    list(operator.advance_watermark(30_000))
    assert left_over(parts) == (0, 0)


def test_T11_results_wait_for_the_next_call_if_emit_fails(make_parts):
    found: list[WindowResult] = []

    def emit(result):
        found.append(result)
        1 // (len(found) - 1)

    operator = WindowOperator(SlidingWindows(10, 5), EarlyByCount(1), Values(), **make_parts(), emit=emit)
    with pytest.raises(ZeroDivisionError):
        operator.process("a", 1, 7_000)
    assert list(operator.advance_watermark(0)) == []
    assert [each.window.start for each in found] == [0, 5_000]


class Odd(Trigger):
    def on_element(self, element, timestamp, window, ctx):
        return element


def test_windows_refuse_what_is_wrong(make_parts):
    parts = make_parts()
    with pytest.raises(StateError, match="no timestamp, and an EventTimeTrigger"):
        WindowOperator(TumblingWindows(1), EventTimeTrigger(), Values(), **parts).process("a", 1)
    with pytest.raises(StateError, match="has a service 'windows' already: give each WindowOperator a name="):
        WindowOperator(TumblingWindows(1), EventTimeTrigger(), Values(), **parts)
    odd = WindowOperator(TumblingWindows(1), Odd(), Values(), **parts, name="odd")
    with pytest.raises(StateError, match=r"Odd object.* gave None: a trigger must return a TriggerResult"):
        odd.process("a", None, 1)
    wrong: tuple[tuple[Any, Any], ...] = (None, 1), ("a", 1.5), ("a", True)
    for key, timestamp in wrong:
        with pytest.raises(StateError, match=r"None cannot be a key|timestamp"):
            odd.process(key, TriggerResult.FIRE, timestamp)
    timers = make_parts(groups=KeyGroupRange(0, 3))["timers"]
    with pytest.raises(ConfigurationError, match="cannot share a checkpoint"):
        WindowOperator(TumblingWindows(1), Odd(), Values(), backend=HeapStateBackend(), timers=timers)
    others: dict[str, Any] = {"assigner": TumblingWindows(1), "trigger": Odd(), "aggregate": Values(), **make_parts()}
    for argument, value in (
        ("assigner", TumblingWindows),
        ("assigner", None),
        ("trigger", EventTimeTrigger),
        ("trigger", "count"),
        ("aggregate", sum),
        ("backend", None),
        ("timers", None),
        ("allowed_lateness", -1),
        ("emit", 5),
        ("emit", asyncio.sleep),
    ):
        with pytest.raises(ConfigurationError, match=argument):
            WindowOperator(**{**others, argument: value})
    bad: tuple[tuple[Any, ...], ...] = (
        (0, 1),
        (1, 0),
        (-1, 1),
        ("1", 1),
        (1, 1, "x"),
        (1, 1, float("nan")),
        (1, 1, True),
    )
    for arguments in bad:
        with pytest.raises(ConfigurationError, match=r"size|slide|offset"):
            SlidingWindows(*arguments)
    with pytest.raises(ConfigurationError, match="n is 0"):
        CountTrigger(0)
    assert TumblingWindows(10, offset=timedelta(seconds=-3)).assign(2_000) == [TimeWindow(-3_000, 7_000)]
