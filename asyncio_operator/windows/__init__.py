"""Windows of event time or processing time per key, with triggers, over the timer services and keyed state."""

from asyncio_operator.windows.assigners import SlidingWindows, TimeWindow, TumblingWindows, WindowAssigner
from asyncio_operator.windows.operator import WindowOperator, WindowResult
from asyncio_operator.windows.triggers import (
    CountTrigger,
    EventTimeTrigger,
    ProcessingTimeTrigger,
    Trigger,
    TriggerContext,
    TriggerResult,
)

__all__ = [
    "CountTrigger",
    "EventTimeTrigger",
    "ProcessingTimeTrigger",
    "SlidingWindows",
    "TimeWindow",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "TumblingWindows",
    "WindowAssigner",
    "WindowOperator",
    "WindowResult",
]
