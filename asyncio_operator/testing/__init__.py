"""Clocks, loops, fakes and contract checks for tests of what is built on this package. It needs no pytest."""

from asyncio_operator.testing.clock import ManualClock
from asyncio_operator.testing.loop import VirtualTimeLoop
from asyncio_operator.testing.queues import check_element_queue
from asyncio_operator.testing.state import check_state_backend

__all__ = ["ManualClock", "VirtualTimeLoop", "check_element_queue", "check_state_backend"]
