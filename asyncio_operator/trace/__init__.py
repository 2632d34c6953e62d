"""What happened to each element of a run, and when, as a picture, a page, or Chrome trace events.

    trace = Trace()
    operator = AsyncWaitOperator(fetch, trace=trace)
    ...                                  # run it
    trace.timeline("run.png")            # or .svg, .pdf: one row an element
    trace.html("run.html")               # one page, to zoom, sort and filter
    trace.chrome("run.json")             # opens in Perfetto and in chrome://tracing

`recording` takes the events and bounds them, `lives` makes of them the life of each element, and `timeline`, `page`
and `chrome` show lives. Law: nothing here reads a clock; times are passed in, in seconds of any clock.
"""

from asyncio_operator.trace.events import Event
from asyncio_operator.trace.recording import Trace
from asyncio_operator.trace.timeline import timelines

__all__ = ["Event", "Trace", "timelines"]
