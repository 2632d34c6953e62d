"""Reports to a trace what happens to the flights of a run. Without a trace it does nothing.

The run and its parts call a recorder at every step of an element's life. They need not know whether there is a trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from asyncio_operator.errors import StateError
from asyncio_operator.trace.events import text_of_error

if TYPE_CHECKING:
    from asyncio_operator.engine.flights import Flight
    from asyncio_operator.trace.trace import Trace


class Recorder:
    """Reports to a trace. Attempts are numbered from 1. Records and watermarks share one count, in input order."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._numbers = count()
        self._watermarks: dict[object, int] = {}
        self._running: dict[Flight, None] = {}
        self._copies: dict[Flight, None] = {}
        self._cut: dict[Flight, None] = {}
        self._circuit: str | None = "closed"

    def admitted(self, flight: Flight) -> None:
        flight.number = next(self._numbers)
        self._trace.admitted(flight.admitted, flight.number, flight.value, getattr(flight.entry, "key", None))

    def watermark(self, entry: object, timestamp: int, now: float) -> None:
        """A watermark of this event time was admitted."""
        self._watermarks[entry] = number = next(self._numbers)
        self._trace.record("watermark", now, number, timestamp)

    def attempt_started(self, flight: Flight, now: float) -> None:
        self._running[flight] = None
        # A lane reads the clock before it takes the element, and traces of tasks are joined by time.
        self._trace.record("attempt_started", max(now, flight.admitted), flight.number, flight.attempts + 1)

    def attempt_ended(self, flight: Flight, outcome: Any, now: float, error: BaseException | None = None) -> None:
        """The call has ended for the element. The element's attempts do not include it yet."""
        if flight.copies and flight not in self._running:
            return  # The end of the first call was reported before that of its copy.
        self._running.pop(flight, None)
        if outcome == "timed_out" and flight.late:
            self._cut[flight] = None
        self._trace.record("attempt_ended", now, flight.number, flight.attempts + 1, outcome, text_of_error(error))

    def copy_started(self, flight: Flight, now: float) -> None:
        """The call for the element is made a second time, while the first one runs."""
        self._copies[flight] = None
        self._trace.record("copy_started", now, flight.number, flight.attempts + 1)

    def copy_ended(
        self, flights: Sequence[Flight], outcome: Any, now: float, error: BaseException | None = None
    ) -> None:
        """The second call has ended for these elements, or is cancelled. Their attempt has not ended yet."""
        for flight in flights:
            del self._copies[flight]
            self._trace.record("copy_ended", now, flight.number, flight.attempts + 1, outcome, text_of_error(error))

    def backing_off(self, flight: Flight, now: float, until: float) -> None:
        self._trace.record("backing_off", now, flight.number, until)

    def completed(self, flight: Flight, outcome: Any, now: float) -> None:
        self._trace.record("completed", now, flight.number, outcome)

    def call_returned(self, flight: Flight, now: float) -> None:
        """A call that ran past its limit is over."""
        self._cut.pop(flight, None)
        self._trace.record("call_returned", now, flight.number)

    def emitted(self, entry: object | None, flight: Flight | None, now: float) -> None:
        """The outputs of a record, or the watermark of the entry, were passed on."""
        if flight is not None:
            self._trace.record("emitted", now, flight.number)
        elif entry is not None:
            self._trace.record("emitted", now, self._watermarks.pop(entry))

    def circuit(self, state: str | None, now: float) -> None:
        """The circuit breaker is in this state, which may be the same as before."""
        if state is not None and state != self._circuit:
            self._circuit = state
            self._trace.record("circuit", now, state)

    def ended(self, now: float) -> None:
        """The run is over."""
        _recording.pop(id(self._trace), None)
        for flight in list(self._running):
            self.attempt_ended(flight, "cancelled", now)
        self.copy_ended(list(self._copies), "cancelled", now)
        for flight in list(self._cut):
            # One of the last calls, which the run waited for or left behind.
            self.call_returned(flight, now)
        self._trace.record("ended", now)


REPORTS = [name for name in vars(Recorder) if not name.startswith("_")]

SILENT: Recorder = type("Silent", (), dict.fromkeys(REPORTS, lambda *_: None))()
"""The recorder of a run without a trace: each report does nothing."""

_recording: WeakValueDictionary[int, Recorder] = WeakValueDictionary()
"""The recorders of runs that have not ended, by the identity of their trace. Weak: a discarded run is not kept."""


def recorder_of(trace: Trace | None, now: float) -> Recorder:
    """A recorder for a run that starts now.

    Raises:
        StateError: the trace records another run, which has not ended.
    """
    if trace is None:
        return SILENT
    recorder = Recorder(trace)
    if _recording.setdefault(id(trace), recorder) is not recorder:
        raise StateError("the trace records another run, which has not ended; give each operator a Trace of its own")
    trace.started(now)
    return recorder
