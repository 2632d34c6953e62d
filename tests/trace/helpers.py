"""Traces of small runs with known times, in milliseconds from a start that is not zero."""

from __future__ import annotations

from asyncio_operator.trace import Trace

START = 1_000.0


def at(milliseconds):
    return START + milliseconds / 1e3


def new_trace(limit=100_000):
    trace = Trace(limit)
    trace.started(START)
    return trace


def call(trace, element, start, end, outcome="result", attempt=1, text=None):
    trace.record("attempt_started", at(start), element, attempt)
    trace.record("attempt_ended", at(end), element, attempt, outcome, text)


def simple(trace, element, start, end, emitted=None, value=None):
    """An element that is called at once, and gives a result."""
    trace.admitted(at(start), element, f"v{element}" if value is None else value)
    call(trace, element, start, end)
    trace.record("completed", at(end), element, "result")
    trace.record("emitted", at(end if emitted is None else emitted), element)


def head_of_line():
    """Three elements, in order; the first takes long."""
    trace = new_trace()
    simple(trace, 0, 0, 100)
    simple(trace, 1, 0, 10, emitted=100)
    simple(trace, 2, 10, 30, emitted=100)
    trace.record("ended", at(100))
    return trace


def everything():
    """Every kind of event and outcome at least once; the first call of element 4 is still running at the end."""
    trace = new_trace()
    trace.admitted(at(0), 0, "a", key="k")  # retried
    call(trace, 0, 2, 10, "error", text="OSError: gone")
    trace.record("backing_off", at(10), 0, at(30))
    call(trace, 0, 35, 50, attempt=2)
    trace.record("completed", at(50), 0, "result")
    trace.record("emitted", at(50), 0)
    trace.admitted(at(0), 1, "b")  # times out, and its call ignores that
    call(trace, 1, 0, 40, "timed_out")
    trace.record("completed", at(40), 1, "timeout")
    trace.record("emitted", at(50), 1)
    trace.record("watermark", at(5), 2, 5_000)
    trace.record("emitted", at(50), 2)
    trace.admitted(at(5), 3, "c")  # skipped
    call(trace, 3, 5, 20, "error")
    trace.record("completed", at(20), 3, "skipped")
    trace.record("emitted", at(50), 3)
    trace.admitted(at(10), 4, "d")
    trace.record("attempt_started", at(12), 4, 1)
    trace.record("copy_started", at(40), 4, 1)
    trace.record("copy_ended", at(60), 4, 1, "error", "OSError: lost")
    trace.admitted(at(10), 5, "e")  # cancelled with the run
    call(trace, 5, 12, 95, "cancelled")
    trace.admitted(at(60), 6, "f")  # ends the run
    call(trace, 6, 60, 90, "error")
    trace.record("circuit", at(65), "open")
    trace.record("circuit", at(75), "half_open")
    trace.record("circuit", at(80), "closed")
    trace.record("call_returned", at(70), 1, 1)
    trace.record("completed", at(90), 6, "failed")
    trace.record("ended", at(100))
    return trace


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "{{title}}{{data}}",
    "$\\frac{1$",
    "a & b ]]> --> \\u2028 \u2028",
    "\x00\x1b[31m\r\n\ud800",
    "'\"`${1}",
    "\u202e right to left",
    "x" * 100_000,
]
