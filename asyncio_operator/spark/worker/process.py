"""The Python worker of a task: its loop, its clocks, its threads, and what its tasks share.

Tasks on a loop with a time of its own, as in a simulation, get a `WorkerProcess` of their own. They then read no clock,
start no thread and make no name in any other way.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from asyncio_operator.clock import Clock, monotonic, wall
from asyncio_operator.engine.lent import Lent
from asyncio_operator.engine.share import Shares, shares
from asyncio_operator.lookup.cache_directories import Caches, caches, new_caches
from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.policies.hedge import Hedge, Hedger
from asyncio_operator.spark.worker.clients import Client, Clients

if TYPE_CHECKING:
    from asyncio_operator.journal.writer import JournalWriter
    from asyncio_operator.spark.worker.journal_readers import LaterAnswers


MOST_HEDGERS = 50
"""Kept at a time; each has 8 KB of latencies."""

MOST_READERS = 4
"""The same for readers of journals, which have at most 64 MB of keys each."""


def hedgers() -> Lent[tuple[str, Hedge], Hedger]:
    """What decides about second calls, by enricher and `Hedge`: a task begins with the latencies, and the share of
    copies, of a task before it. Tasks of a few calls would never know which call is slow."""
    return Lent(together=False, most=MOST_HEDGERS, seconds=inf)


def in_thread(work: Callable[[], None], name: str) -> None:
    """Do work on a thread of its own, which does not hold up the end of the process."""
    threading.Thread(target=work, name=name, daemon=True).start()


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """What tasks use of their process.

    Attributes:
        loop: returns the loop that runs the tasks.
        readers: of journals, by all that decides what they read.
        wall, monotonic: see `clock`.
        start: does work that blocks, beside the loop; gets a name for its thread.
        new_id: returns 32 hexadecimal digits that no other call returns.
        drive: see `JournalWriter`.
    """

    loop: Callable[[], asyncio.AbstractEventLoop]
    shares: Shares
    clients: Clients = field(default_factory=partial(Lent, end=Client.close))
    caches: Caches = field(default_factory=new_caches)
    readers: Lent[object, LaterAnswers] = field(default_factory=partial(Lent, together=False, most=MOST_READERS))
    hedgers: Lent[tuple[str, Hedge], Hedger] = field(default_factory=hedgers)
    wall: Clock = wall
    monotonic: Clock = monotonic
    start: Callable[[Callable[[], None], str], None] = in_thread
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex
    drive: Callable[[JournalWriter], None] | None = None


this_process = WorkerProcess(lambda: loop_thread().loop, shares, caches=caches)
