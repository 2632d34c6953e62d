"""What a trace keeps, and how much of it."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from functools import partial

import pytest

from asyncio_operator import AsyncWaitOperator
from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.trace import Event, Trace
from asyncio_operator.trace.events import FIELDS
from tests.operator.helpers import nap, process, virtual
from tests.trace.helpers import HOSTILE, START, at, everything, head_of_line, new_trace, simple


def test_every_kind_of_event_comes_back_with_its_fields():
    trace = Trace()
    trace.started(10.0)
    trace.admitted(10.5, 0, "a", key=7)
    trace.record("watermark", 10.5, 1, 5_000)
    trace.record("attempt_started", 11.0, 0, 1)
    trace.record("attempt_ended", 11.5, 0, 1, "timed_out", "too late")
    trace.record("backing_off", 11.5, 0, 12.5)
    trace.record("copy_started", 11.625, 0, 1)
    trace.record("copy_ended", 11.75, 0, 1, "error", "lost")
    trace.record("call_returned", 12.0, 0, 1)
    trace.record("completed", 13.0, 0, "timeout")
    trace.record("emitted", 13.5, 0)
    trace.record("circuit", 14.0, "open")
    trace.record("ended", 14.5)
    events = trace.events()
    assert events == [
        Event("started", 0.0),
        Event("admitted", 0.5, element=0, value="'a'", key="7"),
        Event("watermark", 0.5, element=1, timestamp=5_000),
        Event("attempt_started", 1.0, element=0, attempt=1),
        Event("attempt_ended", 1.5, element=0, attempt=1, outcome="timed_out", text="too late"),
        Event("backing_off", 1.5, element=0, until=2.5),
        Event("copy_started", 1.625, element=0, attempt=1),
        Event("copy_ended", 1.75, element=0, attempt=1, outcome="error", text="lost"),
        Event("call_returned", 2.0, element=0, attempt=1),
        Event("completed", 3.0, element=0, outcome="timeout"),
        Event("emitted", 3.5, element=0),
        Event("circuit", 4.0, state="open"),
        Event("ended", 4.5),
    ]
    assert {event.kind for event in events} == set(FIELDS)
    assert repr(events[3]) == "Event(kind='attempt_started', time=1.0, element=0, attempt=1)"


def test_a_run_without_a_start_begins_with_its_first_event():
    trace = Trace()
    trace.admitted(7.0, 0, "a")
    trace.record("emitted", 9.0, 0)
    assert [event.time for event in trace.events()] == [0.0, 2.0]


def test_a_new_run_forgets_the_one_before():
    trace = head_of_line()
    trace.started(5.0)
    trace.admitted(6.0, 0, "new")
    assert [(event.kind, event.time) for event in trace.events()] == [("started", 0.0), ("admitted", 1.0)]


@virtual
async def test_O14_a_trace_records_one_run_at_a_time():
    trace = Trace()
    first = AsyncWaitOperator(nap, trace=trace).process([1, 2])
    assert await anext(first) == 1
    with pytest.raises(StateError, match="the trace records another run, which has not ended; give each operator"):
        await process(nap, [3], trace=trace)
    assert [life.value for life in trace.story().lives] == ["1", "2"]
    await first.aclose()
    assert await process(nap, [3], trace=trace) == [3]
    assert [life.value for life in trace.story().lives] == ["3"]


# -- values


class Big:
    def __repr__(self):
        return "Big" * 1_000


class Broken:
    def __repr__(self):
        raise BaseException("no repr")


def text_of(value):
    trace = new_trace()
    trace.admitted(START, 0, value)
    return trace.events()[1].value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        (None, "None"),
        (2.5, "2.5"),
        ("a", "'a'"),
        (("a", 1), "('a', 1)"),
        (b"xy", "b'xy'"),
        ({"a": 1}, "{'a': 1}"),
    ],
)
def test_a_small_value_is_told_as_it_is(value, text):
    assert text_of(value) == text


MONSTERS = [
    *HOSTILE,
    Big(),
    Broken(),
    list(range(10**6)),
    {"a": ["x" * 10**6] * 10**3},
    1 << 800_000,
    -(1 << 800_000),
    b"x" * 10**6,
]


@pytest.mark.parametrize("value", MONSTERS, ids=range(len(MONSTERS)))
def test_a_text_is_short_and_printable_and_a_value_that_is_big_is_not_kept(value):
    trace = new_trace()
    trace.admitted(START, 0, value, key=value)
    text = trace.events()[1].value
    assert 0 < len(text) <= 40
    assert text.isprintable()
    assert len(pickle.dumps(trace)) < 1_000


def test_no_object_is_kept_alive():
    trace, value = new_trace(), Big()
    trace.admitted(START, 0, value, key=value)
    gone = weakref.ref(value)
    del value
    gc.collect()
    assert gone() is None


def test_a_value_that_changes_later_is_told_as_it_was():
    trace, value = new_trace(), [1]
    trace.admitted(START, 0, value)
    value.append(2)
    assert trace.events()[1].value == "[1]"


def test_a_text_of_an_outcome_is_cut():
    trace = new_trace()
    trace.record("attempt_ended", START, 0, 1, "error", "x" * 10_000)
    trace.record("attempt_ended", START, 0, 1, "error", "a\nb")
    assert trace.events()[1].text == "x" * 197 + "..."
    assert trace.events()[2].text == "a\\nb"


# -- bounds


def test_the_oldest_elements_go_as_wholes():
    trace = new_trace(limit=23)
    for element in range(10):
        simple(trace, element, element, element + 1)
    lives = trace.story().lives
    assert [life.element for life in lives] == [6, 7, 8, 9]
    assert all(life.attempts and life.emitted is not None for life in lives)
    assert trace.dropped == 6


@pytest.mark.parametrize(("elements", "dropped"), [(0, 0), (3, 0), (4, 0), (5, 1), (100, 96)])
def test_dropped_counts_what_is_no_longer_there(elements, dropped):
    trace = new_trace(limit=20)
    for element in range(elements):
        simple(trace, element, element, element + 1)
    assert trace.dropped == dropped
    assert repr(trace) == f"Trace(limit=20, events={len(trace.events())}, dropped={dropped})"


def test_dropped_counts_elements_of_which_only_the_end_is_left():
    trace = new_trace(limit=2)
    for element in range(3):
        trace.admitted(at(element), element, element)
    for element in range(3):
        trace.record("emitted", at(10), element)
    assert trace.dropped == 3
    assert trace.story().lives == []


@pytest.mark.parametrize("limit", [0, -1, 2.5, None, "many", True])
def test_a_wrong_limit_is_told(limit):
    with pytest.raises(ConfigurationError, match="limit is"):
        Trace(limit)


# -- reading


def test_a_trace_survives_pickling_whatever_the_values():
    trace = everything()
    trace.admitted(at(100), 7, threading.Lock())
    trace.admitted(at(100), 8, lambda: None)
    assert pickle.loads(pickle.dumps(Trace(5))).events() == []
    copy = pickle.loads(pickle.dumps(trace))
    assert copy.events() == trace.events()
    assert repr(copy) == repr(trace)
    copy.record("emitted", at(100), 7)
    assert len(copy.events()) == len(trace.events()) + 1


def test_it_may_be_read_while_another_thread_records():
    trace, stop = new_trace(limit=1_000), threading.Event()

    def record():
        element = 0
        while not stop.is_set():
            simple(trace, element, element, element + 1)
            element += 1

    recorder = threading.Thread(target=record)
    recorder.start()
    try:
        for _ in range(50):
            assert len(trace.events()) <= 1_001
            assert trace.dropped >= 0
            trace.story()
    finally:
        stop.set()
        recorder.join()


# -- files appear whole or not at all, whatever is written


@pytest.fixture(params=[Trace.timeline, Trace.html, Trace.chrome])
def show(request):
    return partial(request.param, head_of_line())


def test_what_cannot_be_written_is_told(show, tmp_path):
    with pytest.raises(ConfigurationError, match=r"folder that does not exist; make .*missing"):
        show(tmp_path / "missing" / "a.svg")
    with pytest.raises(ConfigurationError, match="is a folder; give the path of a file"):
        show(tmp_path)
    for wrong in (None, 5, b"a.svg", "a\0b.svg"):
        with pytest.raises(ConfigurationError, match=r"^path is .*; it must be the path of a file"):
            show(wrong)
    with pytest.raises(StateError, match="the trace is empty; pass it as trace="):
        show.func(Trace(), tmp_path / "a.svg")
    assert list(tmp_path.iterdir()) == []


def test_an_old_file_is_replaced_not_overwritten(show, tmp_path):
    path = tmp_path / "a.svg"
    path.write_text("old")
    with path.open() as old:
        show(path)
        assert old.read() == "old"
    assert len(path.read_bytes()) > 100
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_left_of_a_write_that_fails(show, tmp_path):
    name = "a" * 300 + ".svg"
    with pytest.raises(OSError, match="name too long"):
        show(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_followed(show, tmp_path):
    (tmp_path / "real.svg").write_text("old")
    (tmp_path / "link.svg").symlink_to("real.svg")
    show(tmp_path / "link.svg")
    assert (tmp_path / "link.svg").is_symlink()
    assert len((tmp_path / "real.svg").read_bytes()) > 100
