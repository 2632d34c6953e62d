"""Timer services: event-time and processing-time timers per key and namespace, in memory or on RocksDB."""

from asyncio_operator.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncio_operator.timers.batch import BatchTimerService
from asyncio_operator.timers.driver import ProcessingTimeDriver
from asyncio_operator.timers.queues import (
    ALL,
    BackendQueues,
    HeapQueues,
    RocksDBQueues,
    Timer,
    TimerQueues,
    TimerSerializer,
)
from asyncio_operator.timers.service import InternalTimerService, TimerServiceManager

__all__ = [
    "ALL",
    "MAX_TIMESTAMP",
    "MIN_TIMESTAMP",
    "BackendQueues",
    "BatchTimerService",
    "HeapQueues",
    "InternalTimerService",
    "ProcessingTimeDriver",
    "RocksDBQueues",
    "Timer",
    "TimerQueues",
    "TimerSerializer",
    "TimerServiceManager",
]
