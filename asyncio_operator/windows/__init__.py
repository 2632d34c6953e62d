"""Windows of event time or processing time per key, with triggers, over the timer services and keyed state.

All times are milliseconds since the epoch. The contents of a window are an accumulator in keyed state, whose namespace
is also that of the window's timers: "start/end", or "start/end/clock" for elements without timestamps. The law: when
the watermark (the clock, without timestamps) reaches the last millisecond of a window plus the allowed lateness, the
window is removed with all that it has in the state, and later elements are dropped. Source: Flink's ``WindowOperator``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Flag
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol, runtime_checkable

from asyncio_operator.checks import Duration, duration, lasting, must_be, plain_function, positive_int, seconds
from asyncio_operator.elements import MAX_TIMESTAMP
from asyncio_operator.errors import StateError, describe
from asyncio_operator.state import Serializer, StateBackend, ValueState
from asyncio_operator.state.descriptors import AggregateFunction, AggregatingStateDescriptor, ValueStateDescriptor
from asyncio_operator.state.keys import Key
from asyncio_operator.timers import InternalTimerService, Timer, TimerServiceManager
from asyncio_operator.timers.queues import check_timestamp
from asyncio_operator.timers.service import check_shared

PASS = 1_000
"""Timers that fire before their results are taken: a watermark may complete more windows than fit into memory."""


class TimeWindow(NamedTuple):
    """The times from `start` to `end`, milliseconds; the end does not belong to the window."""

    start: int
    end: int

    @property
    def max_timestamp(self) -> int:
        """The last millisecond of the window, as far as 64 bits hold it."""
        return min(self.end - 1, MAX_TIMESTAMP)


@runtime_checkable
class WindowAssigner(Protocol):
    """Gives the windows of an element by its timestamp, milliseconds."""

    def assign(self, timestamp: int, /) -> Iterable[TimeWindow]: ...


@dataclass(frozen=True, slots=True)
class SlidingWindows:
    """Windows of one size that start every `slide`: an element is in each window that its timestamp lies in.

    All are seconds or a timedelta, rounded to milliseconds; size and slide are at least one (or ConfigurationError).
    Elements between two windows are in none. Windows start `offset` later than at the epoch, or earlier if it is
    negative: days of New York in winter have an offset of five hours.
    """

    size: Duration
    slide: Duration
    offset: Duration = 0
    _milliseconds: list[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lengths = lasting("size", self.size), lasting("slide", self.slide)
        signed = isinstance(self.offset, int | float | timedelta) and not isinstance(self.offset, bool)
        duration("offset", abs(self.offset) if signed else self.offset)
        object.__setattr__(self, "_milliseconds", [round(each * 1000) for each in (*lengths, seconds(self.offset))])

    def assign(self, timestamp: int, /) -> Sequence[TimeWindow]:
        """The windows that the timestamp is in, the earliest first."""
        size, slide, offset = self._milliseconds
        last = timestamp - (timestamp - offset) % slide
        first = last - (size - 1 - (timestamp - last)) // slide * slide
        return [TimeWindow(start, start + size) for start in range(first, last + 1, slide)]


class TumblingWindows(SlidingWindows):
    """Windows of one size that follow each other, so every element is in one; otherwise as `SlidingWindows`."""

    def __init__(self, size: Duration, offset: Duration = 0) -> None:
        super().__init__(size, size, offset)


class TriggerResult(Flag):
    """FIRE gives the result and keeps the elements; PURGE removes them, and the window goes on. ``a | b`` is both."""

    CONTINUE = 0
    FIRE = 1
    PURGE = 2
    FIRE_AND_PURGE = 3


@dataclass(slots=True)
class TriggerContext:
    """Timers and state of the window that a trigger is asked about. Timestamps are milliseconds."""

    _name: str
    _backend: StateBackend
    _service: InternalTimerService
    namespace: str = ""  # Of the present window.

    @property
    def current_watermark(self) -> int:
        """The last watermark; -2**63 before the first."""
        return self._service.current_watermark

    def current_processing_time(self) -> int:
        """The clock's time."""
        return self._service.current_processing_time()

    def register_event_time_timer(self, timestamp: int) -> None:
        """Has `Trigger.on_event_time` called when the watermark reaches the timestamp."""
        self._service.register_event_time_timer(timestamp, self.namespace)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Deletes such a timer, if it exists."""
        self._service.delete_event_time_timer(timestamp, self.namespace)

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Has `Trigger.on_processing_time` called when the clock has reached the timestamp."""
        self._service.register_processing_time_timer(timestamp, self.namespace)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Deletes such a timer, if it exists."""
        self._service.delete_processing_time_timer(timestamp, self.namespace)

    def value_state(self, name: str) -> ValueState[Any]:
        """A value of the window. `Trigger.clear` has to clear it."""
        return self._backend.value_state(ValueStateDescriptor(f"{self._name}.{name}"))


class Trigger(ABC):
    """Decides when a window gives a result, by plain functions. One trigger serves all keys and windows, so what it has
    to remember is state, by its context. It also hears of the timer that removes the window."""

    @abstractmethod
    def on_element(self, element: Any, timestamp: int | None, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """An element comes into the window. `timestamp` is None for an element of processing time."""

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """The watermark has reached a timer of the window."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """The clock has reached a timer of the window."""
        return TriggerResult.CONTINUE

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        """The window is removed: clears its state, and deletes its timers. By default those of its last millisecond."""
        ctx.delete_event_time_timer(window.max_timestamp)
        ctx.delete_processing_time_timer(window.max_timestamp)


class EventTimeTrigger(Trigger):
    """Fires when the watermark reaches the last millisecond of the window, and then at every late element."""

    def on_element(self, element: Any, timestamp: int | None, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        if timestamp is None:
            raise StateError(
                f"element {describe(element)} has no timestamp, and an EventTimeTrigger needs one: pass it to process()"
            )
        if window.max_timestamp <= ctx.current_watermark:
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp else TriggerResult.CONTINUE


class ProcessingTimeTrigger(Trigger):
    """Fires when the clock has reached the last millisecond of the window; after later elements at the next advance."""

    def on_element(self, element: Any, timestamp: int | None, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp else TriggerResult.CONTINUE


@dataclass(frozen=True, slots=True)
class CountTrigger(Trigger):
    """Fires the whole window at every `n`-th of its elements, and at no other time."""

    n: int

    def __post_init__(self) -> None:
        positive_int("n", self.n)

    def on_element(self, element: Any, timestamp: int | None, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        state = ctx.value_state(f"count {self.n}")
        count = ((state.value() or 0) + 1) % self.n
        state.update(count or None)
        return TriggerResult.CONTINUE if count else TriggerResult.FIRE

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        ctx.value_state(f"count {self.n}").clear()


class WindowResult(NamedTuple):
    """What a window of a key gave."""

    key: Key
    window: TimeWindow
    value: Any


class WindowOperator:
    """Aggregates the elements of each key by window. Every method does its work when it is called and returns an
    iterator of results. Only when more than a thousand timers are due, the rest fire as results are taken.

    Args:
        assigner: `TumblingWindows`, `SlidingWindows`, or another `WindowAssigner`.
        trigger: says when a window gives its result.
        aggregate: as of an aggregating state. A result of None is left out. Errors of both are raised.
        backend: holds the windows; its clock is that of processing time. The operator sets its key and namespace.
        timers: of the same key groups. A `ProcessingTimeDriver`, or an operator, may advance it too.
        allowed_lateness: seconds or a timedelta for which a window takes elements after the watermark has passed it.
        serializer: of the accumulators; None is the built-in one.
        name: of the states and the timer service; StateError if the manager has a service of that name.
        emit: is called with each result; iterators are empty. Without it, what others fire comes with the next call.
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
        kinds = {"assigner": WindowAssigner, "trigger": Trigger, "backend": StateBackend, "timers": TimerServiceManager}
        for given, (argument, kind) in zip((assigner, trigger, backend, timers), kinds.items(), strict=True):
            if not isinstance(given, kind) or isinstance(given, type):
                raise must_be(argument, given, f"a {kind.__name__}, no class")
        plain_function("emit", print if emit is None else emit, "a function of the result, or None", "the result")
        check_shared(timers, timers.queues, backend.key_groups, backend.max_parallelism)
        self._lateness = round(duration("allowed_lateness", allowed_lateness) * 1000)
        self._assigner, self._trigger, self._backend, self._timers = assigner, trigger, backend, timers
        descriptor, others = AggregatingStateDescriptor(f"{name}.contents", aggregate, serializer), timers.services
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
        self._limit = PASS if emit is None else None

    def process(self, key: Key, value: Any, timestamp: int | None = None) -> Iterator[WindowResult]:
        """Adds an element to its windows, and gives the results that the trigger fires for it.

        Without `timestamp`, event time in milliseconds, the element is in windows of the clock's time now, which end
        with the clock and share no elements with others. StateError if the key or the timestamp is wrong.
        """
        service, context, by_clock = self._service, self._context, timestamp is None
        register = context.register_processing_time_timer if by_clock else context.register_event_time_timer
        at = service.current_processing_time() if timestamp is None else timestamp
        check_timestamp(at)
        self._backend.set_current_key(key)
        service.current_key = key
        windows = [*self._assigner.assign(at)]
        living = [each for each in windows if by_clock or self._over(each, by_clock) > service.current_watermark]
        self.dropped += bool(windows) and not living
        for window in living:
            context.namespace = f"{window.start}/{window.end}{'/clock' if by_clock else ''}"
            self._backend.set_current_namespace(context.namespace)
            register(self._over(window, by_clock))
            # The trigger is asked in between: if it or the aggregate raises, the window stays as it was.
            add = self._contents.prepare(value)
            self._follow(self._trigger.on_element(value, timestamp, window, context), window, add)
        return iter(self._take())

    def advance_watermark(self, timestamp: int) -> Iterator[WindowResult]:
        """Tells all services of the timers that no earlier element follows, and gives the results that are due."""
        return self._advance(partial(self._timers.advance_watermark, timestamp, self._limit))

    def advance_processing_time(self) -> Iterator[WindowResult]:
        """Lets all services of the timers fire what the clock has reached, and gives the results."""
        return self._advance(partial(self._timers.advance_processing_time, self._limit))

    def _advance(self, advance: Callable[[], bool]) -> Iterator[WindowResult]:
        more = advance()
        return chain(self._take(), self._rest(more, advance))

    def _rest(self, more: bool, advance: Callable[[], bool]) -> Iterator[WindowResult]:
        while more:
            more = advance()
            yield from self._take()

    def _take(self) -> list[WindowResult]:
        """What has fired, unless `emit` gets it: that is done last, because it may use the state, with another key."""
        while self._fired and self._emit is not None:
            self._emit(self._fired.pop(0))
        fired, self._fired = self._fired, []
        return fired

    def _over(self, window: TimeWindow, by_clock: bool) -> int:
        """The time at which a window is removed."""
        # By the clock one millisecond later: elements may come until its last one has passed.
        return min(window.end if by_clock else window.max_timestamp + self._lateness, MAX_TIMESTAMP)

    def _on_timer(self, ask: Callable[..., TriggerResult], by_clock: bool, timer: Timer) -> None:
        namespace = str(timer.namespace)
        window = TimeWindow(*map(int, namespace.split("/")[:2]))
        self._backend.set_current_key(timer.key)
        self._context.namespace = namespace
        self._backend.set_current_namespace(namespace)
        try:
            self._follow(ask(timer.timestamp, window, self._context), window)
        finally:
            if by_clock == namespace.endswith("/clock") and timer.timestamp == self._over(window, by_clock):
                self._contents.clear()
                self._trigger.clear(window, self._context)
        if self._emit is not None:
            self._take()

    def _follow(self, result: TriggerResult, window: TimeWindow, add: Callable[[], None] = lambda: None) -> None:
        if type(result) is not TriggerResult:
            raise StateError(f"{self._trigger!r} gave {describe(result)}: a trigger must return a TriggerResult")
        add()
        if TriggerResult.FIRE in result and (value := self._contents.get()) is not None:
            self._fired.append(WindowResult(self._service.current_key, window, value))
        if TriggerResult.PURGE in result:
            self._contents.clear()

    def __repr__(self) -> str:
        return f"<WindowOperator of {self._trigger!r}, over {self._timers!r}>"
