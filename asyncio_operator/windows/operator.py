"""The window operator: elements of a key go into windows, and a trigger says when a window gives its result.

The contents of a window are an accumulator in keyed state. Their namespace, and that of the window's timers, is the
text "start/end", or "start/end/clock" for elements without timestamps. The law: an element is dropped for a window that
is over, that is, whose last millisecond plus the allowed lateness is not after the watermark. When the watermark comes
there, the window is removed with everything it has in the state. For elements without timestamps the clock takes the
place of the watermark. Source: Flink's ``WindowOperator``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from asyncio_operator.checks import Duration, duration
from asyncio_operator.elements import MAX_TIMESTAMP
from asyncio_operator.errors import ConfigurationError, StateError, describe
from asyncio_operator.state.backend import StateBackend
from asyncio_operator.state.descriptors import AggregateFunction, AggregatingStateDescriptor
from asyncio_operator.state.keys import Key
from asyncio_operator.state.serializers import Serializer
from asyncio_operator.timers.manager import TimerServiceManager
from asyncio_operator.timers.queues import Timer, check_timestamp
from asyncio_operator.timers.service import check_shared
from asyncio_operator.windows.assigners import TimeWindow, WindowAssigner
from asyncio_operator.windows.triggers import Trigger, TriggerContext, TriggerResult

PASS = 1_000
"""Timers that fire before their results are taken: a watermark may complete more windows than fit into memory."""


CLOCK = "/clock"


class WindowResult(NamedTuple):
    """What a window of a key gave."""

    key: Key
    window: TimeWindow
    value: Any


class WindowOperator:
    """Aggregates the elements of each key by window.

    Every method does its work when it is called and returns an iterator of results. Only when more than a thousand
    timers are due, the rest fire as results are taken.

    Args:
        assigner: `TumblingWindows`, `SlidingWindows`, or another `WindowAssigner`.
        trigger: says when a window gives its result. An error of it, or of the aggregate, is raised.
        aggregate: `create_accumulator`, `add`, `get_result` and `merge`, as of an aggregating state. A result of None
            is left out.
        backend: holds the windows; its clock is that of processing time. The operator sets its key and namespace.
        timers: holds the timers. A `ProcessingTimeDriver`, or an operator, may advance it too.
        allowed_lateness: seconds or a timedelta for which a window takes elements after the watermark has passed it.
        serializer: of the accumulators; None is the built-in one.
        name: of the states and the timer service, for several operators with one backend.
        emit: is called with each result, and the iterators are empty. Without it, results that fire while others
            advance the timers come with the next call.

    Raises:
        ConfigurationError: one of them is wrong, or backend and timers have other key groups.
        StateError: the manager has a service of that name.
    """

    dropped = 0
    """Elements that were too late for all of their windows."""

    def __init__(
        self,
        assigner: WindowAssigner,
        trigger: Trigger,
        aggregate: AggregateFunction,
        *,
        backend: StateBackend,
        timers: TimerServiceManager,
        allowed_lateness: Duration = 0,
        serializer: Serializer | None = None,
        name: str = "windows",
        emit: Callable[[WindowResult], object] | None = None,
    ) -> None:
        for argument, given, kind in (
            ("assigner", assigner, WindowAssigner),
            ("trigger", trigger, Trigger),
            ("backend", backend, StateBackend),
            ("timers", timers, TimerServiceManager),
        ):
            if not isinstance(given, kind) or isinstance(given, type):
                raise ConfigurationError(f"{argument} is {describe(given)}; it must be a {kind.__name__}, no class")
        check_shared(timers, timers.queues, backend.key_groups, backend.max_parallelism)
        self._lateness = round(duration("allowed_lateness", allowed_lateness) * 1000)
        self._assigner, self._trigger, self._backend, self._timers = assigner, trigger, backend, timers
        descriptor = AggregatingStateDescriptor(f"{name}.contents", aggregate, serializer)
        others = timers.services
        self._service = timers.service(
            name,
            on_event_time=partial(self._on_timer, trigger.on_event_time, False),
            on_processing_time=partial(self._on_timer, trigger.on_processing_time, True),
            clock=lambda: backend.now() / 1000,
        )
        if self._service in others:
            raise StateError(f"{timers!r} has a service {name!r} already: give each WindowOperator a name= of its own")
        self._contents = backend.aggregating_state(descriptor)
        self._context = TriggerContext(name, backend, self._service)
        self._fired: list[WindowResult] = []
        self._emit = emit

    def process(self, key: Key, value: Any, timestamp: int | None = None) -> Iterator[WindowResult]:
        """Adds an element to its windows, and gives the results that the trigger fires for it.

        Args:
            key: of the element.
            value: what the aggregate adds.
            timestamp: event time, milliseconds. Without it the element is in the windows of the clock's time now, and
                these end with the clock. Windows of the two kinds of time have no elements in common.

        Raises:
            StateError: the key or the timestamp is wrong.
        """
        service, context, by_clock = self._service, self._context, timestamp is None
        at = service.current_processing_time() if timestamp is None else timestamp
        check_timestamp(at)
        self._backend.set_current_key(key)
        service.current_key = key
        late = kept = False
        for window in self._assigner.assign(at):
            over = self._over(window, by_clock)
            if not by_clock and over <= service.current_watermark:
                late = True
                continue
            kept = True
            self._enter(f"{window.start}/{window.end}{CLOCK if by_clock else ''}")
            (context.register_processing_time_timer if by_clock else context.register_event_time_timer)(over)
            # Asked before the element is added: if the trigger raises, the window stays as it was.
            result = self._trigger.on_element(value, timestamp, window, context)
            self._contents.add(value)
            self._follow(result, window)
        self.dropped += late and not kept
        self._give()
        return iter(self._take())

    def advance_watermark(self, timestamp: int) -> Iterator[WindowResult]:
        """Tells all services of the timers that no earlier element follows, and gives the results that are due.

        Raises:
            StateError: the timestamp is not an int of 64 bits.
        """
        return self._advance(partial(self._timers.advance_watermark, timestamp, PASS))

    def advance_processing_time(self) -> Iterator[WindowResult]:
        """Lets all services of the timers fire what the clock has reached, and gives the results."""
        return self._advance(partial(self._timers.advance_processing_time, PASS))

    def _advance(self, advance: Callable[[], bool]) -> Iterator[WindowResult]:
        more = advance()
        while more and self._emit is not None:
            more = advance()
        return self._rest(self._take(), more, advance)

    def _rest(self, fired: list[WindowResult], more: bool, advance: Callable[[], bool]) -> Iterator[WindowResult]:
        yield from fired
        while more:
            more = advance()
            yield from self._take()

    def _give(self) -> None:
        """Pass on what has fired. Last, because `emit` may use the state, and change its key and namespace."""
        if self._emit is not None:
            for result in self._take():
                self._emit(result)

    def _take(self) -> list[WindowResult]:
        fired, self._fired = self._fired, []
        return fired

    def _over(self, window: TimeWindow, by_clock: bool) -> int:
        """The time at which a window is removed."""
        # By the clock one millisecond later: elements may come until its last one has passed.
        return min(window.end if by_clock else window.max_timestamp + self._lateness, MAX_TIMESTAMP)

    def _enter(self, namespace: str) -> None:
        self._context.namespace = namespace
        self._backend.set_current_namespace(namespace)

    def _on_timer(self, ask: Callable[..., TriggerResult], by_clock: bool, timer: Timer) -> None:
        namespace = str(timer.namespace)
        window = TimeWindow(*map(int, namespace.split("/")[:2]))
        self._backend.set_current_key(timer.key)
        self._enter(namespace)
        self._follow(ask(timer.timestamp, window, self._context), window)
        if by_clock == namespace.endswith(CLOCK) and timer.timestamp == self._over(window, by_clock):
            self._contents.clear()
            self._trigger.clear(window, self._context)
        self._give()

    def _follow(self, result: TriggerResult, window: TimeWindow) -> None:
        if type(result) is not TriggerResult:
            raise StateError(f"{self._trigger!r} gave {describe(result)}: a trigger must return a TriggerResult")
        if TriggerResult.FIRE in result and (value := self._contents.get()) is not None:
            self._fired.append(WindowResult(self._service.current_key, window, value))
        if TriggerResult.PURGE in result:
            self._contents.clear()

    def __repr__(self) -> str:
        return f"<WindowOperator of {self._trigger!r}, over {self._timers!r}>"
