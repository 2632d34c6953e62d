"""The frame of every task in a Python worker: three threads, and what ends them.

A feeder thread reads Spark's input, a coroutine on the loop thread works, and the task's main thread takes what it
gives and hands it to Spark. Only what they put into two channels crosses between them. The feeder and the coroutine end
with the task, however that ends; the loop thread stays for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any

from asyncio_operator.bridge import LoopTask
from asyncio_operator.channels import PULSE, FromLoop, ToLoop
from asyncio_operator.loop_thread import loop_thread
from asyncio_operator.loop_watch import LoopWatch
from asyncio_operator.run import AHEAD
from asyncio_operator.shutdown import TASK_END, WATCH_INTERVAL
from asyncio_operator.spark.hangup import TakingThread, spark_watch

READ_AHEAD = 2
"""Batches read from Spark and not yet taken by the loop: one is being taken while the next is read."""


def outputs_of(
    inputs: Iterable[Any],
    main: Callable[[ToLoop, FromLoop], Coroutine[Any, Any, None]],
    *,
    name: str,
    patience: float = TASK_END,
    ahead: int = AHEAD,
    read_ahead: int = READ_AHEAD,
    watch: float = WATCH_INTERVAL,
    check_taker: Callable[[], None] | None = None,
) -> Generator[Any]:
    """What `main` puts into its channel, for the task's main thread; to be closed in any case.

    Every `watch` seconds comes a `PULSE`, at which the caller has to give Spark something, however little: only then
    can it be seen that Spark is gone.

    Args:
        inputs: read on a thread of its own, and given to `main`.
        name: of the user's function, for what is logged of it.
        patience: seconds to wait for the end of `main` when it is cancelled.
        ahead: outputs that may wait for the main thread, where `main` waits for room.
        read_ahead: inputs that may wait for `main`.
        watch: seconds between two pulses.
        check_taker: raises if nobody takes outputs any more; default: what `spark_watch` gives.

    Raises:
        BrokenPipeError: Spark has ended the task, or another task that reads this one's outputs is over.
        BaseException: what reading the input raised, or `main`.
    """
    thread = loop_thread()
    check = check_taker or spark_watch()
    held = LoopWatch(thread.ident, name)
    source, sink = ToLoop(thread.loop, read_ahead), FromLoop(thread.loop, ahead, watch)

    def still_read() -> None:
        if source.closed:
            raise BrokenPipeError("the task that reads these results is over")

    feeder = TakingThread("asyncio-operator-feeder", lambda: source.feed(inputs), still_read)
    run = LoopTask(thread.loop, lambda: main(source, sink), sink, name)
    try:
        run.start()
        feeder.start()
        for output in sink:
            if output is PULSE:
                held.look()
            yield output
            if output is PULSE and check is not None:
                check()
    finally:
        source.close()
        run.stop(patience)
