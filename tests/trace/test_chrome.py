"""The Chrome trace events are valid: known phases, whole fields, nested or apart on each thread."""

from __future__ import annotations

import json
import math
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace.helpers import HOSTILE, at, call, everything, head_of_line, new_trace, simple


@pytest.fixture
def write(tmp_path):
    def events(trace):
        trace.chrome(tmp_path / "run.json")
        return json.loads((tmp_path / "run.json").read_text(encoding="ascii"))["traceEvents"]

    return events


def check(events):
    """What the format demands of every event, and of events together."""
    for event in events:
        assert event["ph"] in "XMibeC"
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] != "M":
            assert event["ts"] >= 0
            assert math.isfinite(event["ts"])
    check_slices([event for event in events if event["ph"] == "X"])
    check_pairs([event for event in events if event["ph"] in "be"])


def check_slices(slices):
    threads = defaultdict(list)
    for event in slices:
        assert event["dur"] >= 0
        threads[event["pid"], event["tid"]].append((event["ts"], round(event["ts"] + event["dur"], 3)))
    for spans in threads.values():
        around: list[float] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while around and around[-1] <= start:
                around.pop()
            assert not around or end <= around[-1]
            around.append(end)


def check_pairs(events):
    started: dict[tuple, list] = defaultdict(list)
    for event in events:
        stack = started[event["cat"], event["id"]]
        if event["ph"] == "b":
            assert not stack or stack[-1]["ts"] <= event["ts"]
            stack.append(event)
        else:
            begin = stack.pop()
            assert begin["name"] == event["name"]
            assert begin["ts"] <= event["ts"]
    assert not any(started.values())


def of_phase(events, phase):
    return [event for event in events if event["ph"] == phase]


def test_a_call_is_a_slice_on_the_next_thread_that_is_free_and_lasts_until_it_returned(write):
    events = write(everything())
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    of = {event["cat"]: event for event in reversed(events) if event.get("cat") in ("error", "timed_out", "ignored")}
    times = {kind: (event["ts"], event["dur"], names[event["tid"]]) for kind, event in of.items()}
    # One call ignores its cancellation.
    assert times["timed_out"] == (0.0, 70_000.0, "calls 1")
    assert times["ignored"] == (40_000.0, 30_000.0, "calls 1")
    known = {"element": 0, "value": "'a'", "attempt": 1, "outcome": "error", "key": "'k'", "text": "OSError: gone"}
    assert of["error"]["args"] == known


def test_emissions_watermarks_and_the_circuit_breaker_are_instants(write):
    events = write(everything())
    check(events)
    instants = of_phase(events, "i")
    assert {event["cat"] for event in instants} == {"emitted", "skipped", "failed", "watermark", "circuit"}
    assert {event["s"] for event in instants} <= {"g", "p", "t"}
    assert ("watermark 5000 emitted", 50_000.0) in {(event["name"], event["ts"]) for event in instants}


def test_counters_tell_calls_in_flight_and_elements_in_the_buffer(write):
    counters = of_phase(write(head_of_line()), "C")
    levels = [(event["ts"], event["args"]["in flight"]) for event in counters if event["name"] == "in flight"]
    assert levels == [(0.0, 2), (10_000.0, 2), (30_000.0, 1), (100_000.0, 0)]
    levels = [(event["ts"], event["args"]["buffered"]) for event in counters if event["name"] == "buffered"]
    assert levels == [(0.0, 2), (10_000.0, 3), (100_000.0, 0)]


def test_hostile_values_are_text(write):
    trace = new_trace()
    for number, value in enumerate(HOSTILE):
        simple(trace, number, 0, 10, value=value)
    told = [event.value for event in trace.events() if event.kind == "admitted"]
    assert [event["name"] for event in of_phase(write(trace), "X")] == told


times = st.floats(0, 100, allow_nan=False)


@given(calls=st.lists(st.tuples(times, times, times), max_size=12))
def test_slices_are_nested_or_apart_whatever_the_times(tmp_path_factory, calls):
    trace = new_trace()
    for element, (start, length, late) in enumerate(calls):
        trace.admitted(at(0), element, element)
        call(trace, element, start, start + length, "timed_out")
        trace.record("call_returned", at(start + length + late), element, 1)
    path = tmp_path_factory.mktemp("chrome") / "run.json"
    trace.chrome(path)
    events = json.loads(path.read_text())["traceEvents"]
    check(events)
    assert len(calls) <= len(of_phase(events, "X")) <= 2 * len(calls)
