"""Queues of stream elements: the contract and its implementations. See `asyncio_operator.queues.base`."""

from asyncio_operator.queues.base import Entry, OrderedStreamElementQueue, StreamElementQueue
from asyncio_operator.queues.key_ordered import KeyOrderedStreamElementQueue
from asyncio_operator.queues.unordered import UnorderedStreamElementQueue

__all__ = [
    "Entry",
    "KeyOrderedStreamElementQueue",
    "OrderedStreamElementQueue",
    "StreamElementQueue",
    "UnorderedStreamElementQueue",
]
