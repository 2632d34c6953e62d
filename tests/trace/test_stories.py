"""Lives of elements, made from events."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator.trace import Trace
from tests.operator.helpers import late, now, process, virtual
from tests.trace.helpers import at, call, everything, head_of_line, new_trace, simple


def spans_of(trace, row):
    story = trace.story()
    return [
        (span.kind, round(span.start * 1e3, 6), round(span.end * 1e3, 6)) for span in story.lives[row].spans(story.end)
    ]


def phases_of(story):
    return [(state, round(start * 1e3, 6), round(end * 1e3, 6)) for state, start, end in story.circuit]


def ended_after(outcome, *more):
    """An element whose only call has this outcome after 10 ms, and that ends at 50."""
    trace = new_trace()
    trace.admitted(at(0), 0, "a")
    call(trace, 0, 0, 10, outcome)
    for kind, moment, *fields in [*more, ("completed", 50, "timeout"), ("emitted", 50)]:
        trace.record(kind, at(moment), 0, *fields)
    return trace


def obeys():
    return ended_after("timed_out", ("call_returned", 10.1))


def ends_in_its_back_off():
    return ended_after("error", ("backing_off", 10, at(500)))


@pytest.mark.parametrize(
    ("made", "row", "spans"),
    [
        (head_of_line, 0, [("result", 0, 100)]),
        # It completes early, and is held until it is emitted.
        (head_of_line, 1, [("result", 0, 10), ("held", 10, 100)]),
        (
            everything,
            0,
            [("waiting", 0, 2), ("error", 2, 10), ("backing_off", 10, 30), ("waiting", 30, 35), ("result", 35, 50)],
        ),
        # A call that ignores its cancellation runs beside what follows.
        (everything, 1, [("timed_out", 0, 40), ("held", 40, 50), ("ignored", 40, 70)]),
        # What has not ended lasts until the last event.
        (everything, 3, [("waiting", 10, 12), ("running", 12, 100), ("copy", 40, 60)]),
        # What is cancelled with the run waits no more, and what ends it is not held back.
        (everything, 4, [("waiting", 10, 12), ("cancelled", 12, 95)]),
        (everything, 5, [("error", 60, 90)]),
        # A call that obeys its cancellation is over when it is cut.
        (obeys, 0, [("timed_out", 0, 10), ("waiting", 10, 50)]),
        (ends_in_its_back_off, 0, [("error", 0, 10), ("backing_off", 10, 50)]),
    ],
)
def test_a_life_is_a_list_of_spans(made, row, spans):
    assert spans_of(made(), row) == spans


async def deaf(seconds):
    """A call that does not hear its cancellation."""
    while (left := seconds - now()) > 0:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(left)


@pytest.mark.parametrize(("seconds", "until"), [(3, 3), (9, 5)])
@virtual
async def test_O9_a_call_that_the_end_of_the_run_waits_for_holds_its_slot_until_then(seconds, until):
    """Five is where the grace period is over."""
    trace = Trace()
    assert await process(deaf, [seconds], timeout=1.0, on_timeout=late, grace_period=4.0, trace=trace) == [
        ("late", seconds)
    ]
    assert spans_of(trace, 0) == [("timed_out", 0, 1000), ("ignored", 1000, until * 1000)]


def test_without_an_attempt_a_return_belongs_to_the_last_call_that_was_cut():
    trace = new_trace()
    trace.admitted(at(0), 0, "a")
    call(trace, 0, 0, 10, "timed_out", attempt=1)
    trace.record("attempt_started", at(20), 0, 2)
    trace.record("call_returned", at(30), 0)
    [life] = trace.story().lives
    assert [attempt.returned is not None for attempt in life.attempts] == [True, False]


def test_watermarks_and_phases_of_the_circuit_breaker_are_told():
    story = everything().story()
    [mark] = story.watermarks
    assert (mark.element, mark.timestamp) == (2, 5_000)
    assert (mark.admitted, mark.emitted) == (pytest.approx(0.005), pytest.approx(0.05))
    assert phases_of(story) == [("open", 65, 75), ("half_open", 75, 80)]
    stays_open = head_of_line()
    stays_open.record("circuit", at(40), "open")
    assert phases_of(stays_open.story()) == [("open", 40, 100)]


durations = st.integers(0, 50)


@given(st.lists(st.tuples(durations, durations, st.booleans(), durations), max_size=4), durations, durations)
def test_spans_cover_a_life_without_gap_or_overlap(attempts, last_wait, held):
    """Whatever the waits, the calls, the back-offs and the time until emission."""
    trace, time = new_trace(), 0
    trace.admitted(at(0), 0, "a")
    for number, (wait, length, backs_off, pause) in enumerate(attempts, start=1):
        call(trace, 0, time + wait, time + wait + length, "error", attempt=number)
        time += wait + length
        if backs_off:
            trace.record("backing_off", at(time), 0, at(time + pause))
            time += pause
    time += last_wait
    trace.record("completed", at(time), 0, "skipped")
    trace.record("emitted", at(time + held), 0)
    spans = spans_of(trace, 0)
    cursor = 0
    for _, start, end in spans:
        assert start == pytest.approx(cursor)
        assert end >= start
        cursor = end
    assert cursor == pytest.approx(time + held)
    assert sum(kind == "error" for kind, _, _ in spans) == len(attempts)


def test_rows_stand_in_input_order():
    trace = new_trace()
    for element in (2, 0, 1):
        simple(trace, element, element, element + 1)
    assert [life.element for life in trace.story().lives] == [0, 1, 2]
