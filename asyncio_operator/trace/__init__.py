"""Records what happened to each element of a run, and shows it as a picture, a page or Chrome trace events.

    trace = Trace()
    operator = AsyncWaitOperator(fetch, trace=trace)
    ...                                  # run it
    trace.timeline("run.png")            # or .svg, .pdf: one row per element
    trace.html("run.html")               # one page, to zoom, sort and filter
    trace.chrome("run.json")             # opens in Perfetto and in chrome://tracing

`trace` takes the events and limits their number. `stories` turns them into the life of each element. `timeline` and
`page` show lives. Law: no module here reads a clock. The caller passes times in, in seconds of any clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncio_operator.lazy import lazy

if TYPE_CHECKING:
    from asyncio_operator.trace.events import Event as Event
    from asyncio_operator.trace.trace import Trace as Trace
    from asyncio_operator.trace.trace import timelines as timelines


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "asyncio_operator.trace.events": "Event",
            "asyncio_operator.trace.trace": "Trace timelines",
        },
    )
