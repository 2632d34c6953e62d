"""The frame of every task in a Python worker: three threads, and what ends them.

A feeder thread reads Spark's input. A coroutine on the loop thread does the work. The task's main thread takes its
outputs and gives them to Spark. Threads share nothing but two channels. The feeder and the coroutine end when the task
ends, in whatever way. The loop thread stays for the next task.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any

from asyncio_operator.loop.channels import PULSE, FromLoop, ToLoop
from asyncio_operator.loop.runner import LoopTask
from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.loop.watch import LoopWatch
from asyncio_operator.operator.run import AHEAD
from asyncio_operator.policies.shutdown import TASK_END, WATCH_INTERVAL
from asyncio_operator.spark.hangup import TakingThread, spark_watch

READ_AHEAD = 2
"""The number of batches read from Spark ahead of the loop: one is processed while the next is read."""


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
    """Yields what `main` puts into its channel, for the task's main thread. The caller must close it in any case.

    Every `watch` seconds it yields a `PULSE`. The caller must then write something to Spark, however little: only after
    a write can the end of Spark's connection be seen.

    Args:
        inputs: read on a thread of its own, and passed to `main`.
        name: name of the user's function, for the log.
        patience: seconds to wait for the end of a cancelled `main`.
        ahead: the maximum number of outputs that wait for the main thread; then `main` waits.
        read_ahead: the maximum number of inputs that wait for `main`.
        watch: seconds between two pulses.
        check_taker: raises if outputs are no longer read; by default the result of `spark_watch`.

    Raises:
        BrokenPipeError: Spark has ended the task, or another task that reads this one's outputs has ended.
        BaseException: the error of reading the input, or of `main`.
    """
    thread = loop_thread()
    check = check_taker or spark_watch()
    held = LoopWatch(thread.ident, name)
    source, sink = ToLoop(thread.loop, read_ahead), FromLoop(thread.loop, ahead, watch)

    def still_read() -> None:
        if source.closed:
            raise BrokenPipeError("the task that reads these results has ended")

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
