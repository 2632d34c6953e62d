"""The Python worker of a task: its loop, its clocks, its threads, and what its tasks share.

Tasks on a loop with a time of its own, as in a simulation, get a `WorkerProcess` of their own. They then read no clock,
start no thread and make no name in any other way.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from asyncio_operator.clock import Clock, monotonic, wall
from asyncio_operator.engine.shares import Shares, shares
from asyncio_operator.lazy import member
from asyncio_operator.lookup.cache_directories import Caches, caches
from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.spark.worker.shared import Clients, Hedgers, Limiters, clients, hedgers, limiters

if TYPE_CHECKING:
    from asyncio_operator.journal.writer import JournalWriter
    from asyncio_operator.spark.worker.journal_readers import Readers


def in_thread(work: Callable[[], None], name: str) -> None:
    """Do work on a thread of its own, which does not hold up the end of the process."""
    threading.Thread(target=work, name=name, daemon=True).start()


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """What tasks use of their process.

    Attributes:
        loop: returns the loop that runs the tasks.
        readers: returns those of journals, which few processes need.
        wall, monotonic: see `clock`.
        start: does work that blocks, beside the loop; gets a name for its thread.
        new_id: returns 32 hexadecimal digits that no other call returns.
        drive: see `JournalWriter`.
    """

    loop: Callable[[], asyncio.AbstractEventLoop]
    clients: Clients
    caches: Caches
    limiters: Limiters
    hedgers: Hedgers
    shares: Shares
    readers: Callable[[], Readers]
    wall: Clock = wall
    monotonic: Clock = monotonic
    start: Callable[[Callable[[], None], str], None] = in_thread
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex
    drive: Callable[[JournalWriter], None] | None = None


this_process = WorkerProcess(
    lambda: loop_thread().loop,
    clients,
    caches,
    limiters,
    hedgers,
    shares,
    partial(member, "asyncio_operator.spark.worker.journal_readers", "readers"),
)
