"""The frame of every task in a Python worker: three threads, and what ends them.

A feeder thread reads Spark's input, a coroutine on the loop thread works, and the task's main thread takes what it
gives and hands it to Spark. Only what they put into two channels crosses between them. The feeder and the coroutine end
with the task, however that ends; the loop thread stays for the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any

from asyncio_operator.bridge import LoopTask
from asyncio_operator.channels import PULSE, FromLoop, ToLoop
from asyncio_operator.loop_thread import loop_thread
from asyncio_operator.loop_watch import LoopWatch
from asyncio_operator.run import AHEAD
from asyncio_operator.spark.hangup import spark_watch

READ_AHEAD = 2
"""Batches read from Spark and not yet taken by the loop: one is being taken while the next is read."""

WATCH = 1.0
"""Seconds between two looks whether Spark is still there, and what holds the loop; with the grace period, within the
5 s of law X7."""

GRACE = 2.5
"""Seconds for calls that ignore their cancellation at the end of a task: with `WATCH`, within the 5 s of law X7."""


def outputs_of(
    inputs: Iterable[Any],
    main: Callable[[ToLoop, FromLoop], Coroutine[Any, Any, None]],
    *,
    name: str,
    patience: float,
    ahead: int = AHEAD,
) -> Generator[Any]:
    """What `main` puts into its channel, for the task's main thread; to be closed in any case.

    Once a second comes a `PULSE`, at which the caller has to give Spark something, however little: only then can it be
    seen that Spark is gone.

    Args:
        inputs: read on a thread of its own, and given to `main`.
        name: of the user's function, for what is logged of it.
        patience: seconds to wait for the end of `main` when it is cancelled.
        ahead: outputs that may wait for the main thread, where `main` waits for room.

    Raises:
        BrokenPipeError: Spark has ended the task.
        BaseException: what reading the input raised, or `main`.
    """
    thread, check_spark = loop_thread(), spark_watch()
    watch = LoopWatch(thread.ident, name)
    source, sink = ToLoop(thread.loop, READ_AHEAD), FromLoop(thread.loop, ahead, WATCH)
    threading.Thread(target=_feed, args=(inputs, source), name="asyncio-operator-feeder", daemon=True).start()
    run = LoopTask(thread.loop, lambda: main(source, sink), sink)
    try:
        run.start()
        for output in sink:
            if output is PULSE:
                watch.look()
            yield output
            if output is PULSE and check_spark is not None:
                check_spark()
    finally:
        source.close()
        run.stop(patience)


def _feed(inputs: Iterable[Any], source: ToLoop) -> None:
    try:
        for one in inputs:
            if not source.put(one):
                return
    except BaseException as error:
        source.end(error)
    else:
        source.end()
