"""A task that gets its input by calls of `push`, instead of an iterator that it reads.

The task runs in a thread of its own, so its lookups continue from one call to the next: `push` gives it a batch when it
asks for one, and returns the outputs made meanwhile.

Laws: no side waits for what cannot come, and little is held in memory: at most one batch waits to be read, and few
outputs wait to be taken. The task waits while its outputs are not taken, and `push` waits while the task does not read.
Closing ends the run, whatever it waits for.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

from asyncio_operator.policies.shutdown import TASK_END, WATCH_INTERVAL
from asyncio_operator.spark.worker.task_frame import TakingThread, spark_watch, until_spark_reads

In = TypeVar("In")
Out = TypeVar("Out")

AHEAD = 2
"""The maximum number of outputs that wait: one is on its way to Spark while the next is made."""

LONGEST_END = WATCH_INTERVAL + TASK_END
"""Seconds that `close` waits: until the task notices the end, and then for the end of what the task waits for."""


class ClosedError(Exception):
    """The run was closed, so outputs are no longer taken."""


class PushedTask(Generic[In, Out]):
    """A run of a task that gets its input by `push`. All methods must be called by one thread.

    Args:
        task: returns outputs for inputs, both as iterators. It ends when its input ends.
        until_read: whether the task waits, where it asks for that, until Spark has read its outputs (law X15).
    """

    def __init__(self, task: Callable[[Iterator[In]], Iterator[Out]], until_read: bool = False) -> None:
        self._task = task
        self._changed = threading.Condition()
        self._input: deque[In] = deque()
        self._asked = False
        self._over = False
        self._outputs: deque[Out] = deque()
        self._closed = False
        self._ended = False
        self._error: BaseException | None = None
        self._check_spark = spark_watch()
        self._until_read = until_spark_reads() if until_read else None
        self._given = self._passed_on = 0
        waiting = self._wait_until_read if until_read else None
        self._thread = TakingThread("asyncio-operator-pushed", self._run, self._look, waiting)
        self._thread.start()

    # -- the caller's side

    def push(self, element: In) -> Iterator[Out]:
        """Give the task an element as soon as it asks for one. Yields outputs that are ready before and after that.

        It raises what the task raises.
        """
        yield from self._outputs_until(lambda: self._asked)
        with self._changed:
            self._asked = False
            self._input.append(element)
            self._changed.notify_all()
        yield from self._outputs_until(lambda: not self._outputs)

    def finish(self) -> Iterator[Out]:
        """End the input. Yields the remaining outputs. It raises what the task raises."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        yield from self._outputs_until(lambda: False)

    def close(self) -> None:
        """End the run, if it has not ended, and wait for its end, at most `LONGEST_END` seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(LONGEST_END)

    def _outputs_until(self, reached: Callable[[], bool]) -> Iterator[Out]:
        """Yields outputs until the condition `reached` holds, or until the run has ended."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: reached() or self._outputs or self._ended)
                if self._ended and not self._outputs:
                    break
                if reached() and not self._ended:
                    return
                output = self._outputs.popleft()
                self._changed.notify_all()
            # Without the lock: Spark may take its time, and the task goes on meanwhile.
            yield output
            if self._until_read is not None:
                self._until_read()
                with self._changed:
                    self._passed_on += 1
                    self._changed.notify_all()
        if self._error is not None:
            raise self._error

    # -- the task's side

    def _run(self) -> None:
        """What the thread runs."""
        outputs: Iterator[Out] | None = None
        try:
            outputs = self._task(self._read())
            for output in outputs:
                self._give(output)
        except BaseException as error:
            # The generator is closed here, on its own thread. A second error is dropped: the first is the run's.
            if isinstance(outputs, Generator):
                with contextlib.suppress(BaseException):
                    outputs.close()
            self._end(error)
        else:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            # Law O6: no row leaves after the failure.
            if error is not None:
                self._outputs.clear()
            self._error = error
            self._ended = True
            self._changed.notify_all()

    def _give(self, output: Out) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._outputs) < AHEAD or self._closed)
            self._check_open()
            self._outputs.append(output)
            self._given += 1
            self._changed.notify_all()

    def _read(self) -> Iterator[In]:
        """The task's input."""
        while True:
            with self._changed:
                self._asked = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._input or self._over or self._closed)
                self._check_open()
                if not self._input:
                    return
                element = self._input.popleft()
            yield element

    def _wait_until_read(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._passed_on == self._given or self._closed)
            self._check_open()

    def _look(self) -> None:
        """Raise if Spark has closed the socket, or this run was closed, however long the task's calls still take."""
        self._check_open()
        if self._check_spark is not None:
            self._check_spark()

    def _check_open(self) -> None:
        """Raise `ClosedError` if the run was closed."""
        if self._closed:
            raise ClosedError
