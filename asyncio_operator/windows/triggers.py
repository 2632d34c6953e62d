"""When a window gives a result.

A trigger is asked at every element of a window, and at every timer that it registered for the window. It has no data of
its own, because one trigger serves all keys and windows: what it must remember is state, by its context.
Source: Flink's ``Trigger``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Flag
from typing import Any

from asyncio_operator.checks import positive_int
from asyncio_operator.errors import StateError, describe
from asyncio_operator.state.backend import StateBackend
from asyncio_operator.state.descriptors import ValueStateDescriptor
from asyncio_operator.state.states import ValueState
from asyncio_operator.timers.service import InternalTimerService
from asyncio_operator.windows.assigners import TimeWindow


class TriggerResult(Flag):
    """What happens to a window. ``a | b`` does what either of them says.

    FIRE gives the result and keeps the elements; PURGE removes the elements, and the window goes on.
    """

    CONTINUE = 0
    FIRE = 1
    PURGE = 2
    FIRE_AND_PURGE = 3


class TriggerContext:
    """Timers and state of the window that a trigger is asked about. Timestamps are milliseconds."""

    def __init__(self, name: str, backend: StateBackend, service: InternalTimerService) -> None:
        self._name, self._backend, self._service = name, backend, service
        self.namespace = ""
        """That of the present window, which the operator sets."""

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
    """Decides when a window gives a result. The methods are plain functions."""

    @abstractmethod
    def on_element(self, element: Any, timestamp: int | None, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """An element comes into the window. `timestamp` is None for an element of processing time."""

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """The watermark has reached a timer of the window, or the time at which the window is removed."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        """The clock has reached a timer of the window, or the time at which the window is removed."""
        return TriggerResult.CONTINUE

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        """The window is removed: deletes its timers that have not fired, and clears its state."""


class EventTimeTrigger(Trigger):
    """Fires when the watermark reaches the last millisecond of the window, and then at every late element."""

    def on_element(self, element: Any, timestamp: int | None, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        if timestamp is None:
            raise StateError(
                f"element {describe(element)} has no timestamp, and an EventTimeTrigger needs one: give it to "
                "process(), or use a ProcessingTimeTrigger"
            )
        if window.max_timestamp <= ctx.current_watermark:
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp else TriggerResult.CONTINUE

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        ctx.delete_event_time_timer(window.max_timestamp)


class ProcessingTimeTrigger(Trigger):
    """Fires when the clock has reached the last millisecond of the window, and at the next advance of processing time
    after a later element."""

    def on_element(self, element: Any, timestamp: int | None, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp else TriggerResult.CONTINUE

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp)


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
