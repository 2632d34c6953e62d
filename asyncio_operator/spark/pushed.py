"""A task whose input is pushed: what is made for `mapInArrow`, driven call by call, as Spark calls a table function.

`mapInArrow` hands a task an iterator, and the task reads as far ahead as it likes. A table function gets one batch a
call, and gives back what it has so far. So that the task keeps its calls running from one batch to the next, it runs in
a thread of its own; `push` hands it a batch as soon as it asks for one, and gives what has come out meanwhile.

Law: nobody waits for what cannot come, and little is held. One batch waits to be read and few to be given; the task
waits when nobody takes them, and `push` when the task does not read. Closing ends the run, whatever it waits for.

This module does not know what the task does, nor what a table is.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

from asyncio_operator.shutdown import TASK_END, WATCH_INTERVAL
from asyncio_operator.spark.hangup import TakingThread, spark_watch

In = TypeVar("In")
Out = TypeVar("Out")

AHEAD = 2
"""Outputs that wait to be given: one is on its way to Spark while the next is made."""

LONGEST_END = WATCH_INTERVAL + TASK_END
"""Seconds that `close` waits: until the task sees it, and then for what that waits for."""


class ClosedError(Exception):
    """Nobody is there any more to whom outputs could be given."""


class PushedTask(Generic[In, Out]):
    """A run of a task that gets its input by `push`. One thread calls all methods.

    Args:
        task: gives outputs for inputs, both as iterators; it ends when its input does.
    """

    def __init__(self, task: Callable[[Iterator[In]], Iterator[Out]]) -> None:
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
        self._thread = TakingThread("asyncio-operator-pushed", self._run, self._look)
        self._thread.start()

    # -- the caller's side

    def push(self, element: In) -> Iterator[Out]:
        """Hand an element over as soon as the task asks for one; the outputs that there are meanwhile, and then.

        Raises what the task raises.
        """
        yield from self._outputs_until(lambda: self._asked)
        with self._changed:
            self._asked = False
            self._input.append(element)
            self._changed.notify_all()
        yield from self._outputs_until(lambda: not self._outputs)

    def finish(self) -> Iterator[Out]:
        """There is no more input; the outputs that are left. Raises what the task raises."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        yield from self._outputs_until(lambda: False)

    def close(self) -> None:
        """End the run, if it has not ended, and wait for its end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(LONGEST_END)

    def _outputs_until(self, reached: Callable[[], bool]) -> Iterator[Out]:
        """The outputs until something is so, or the run has ended."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: reached() or self._outputs or self._ended)
                if self._ended and not self._outputs:
                    break
                if reached() and not self._ended:
                    return
                output = self._outputs.popleft()
                self._changed.notify_all()
            yield output
        if self._error is not None:
            raise self._error

    # -- the task's side

    def _run(self) -> None:
        """The thread."""
        outputs: Iterator[Out] | None = None
        try:
            outputs = self._task(self._read())
            for output in outputs:
                self._give(output)
        except BaseException as error:
            if isinstance(outputs, Generator):
                # What its end may raise is told to nobody: the first error is the run's.
                with contextlib.suppress(BaseException):
                    outputs.close()
            self._end(error)
        else:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
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

    def _look(self) -> None:
        """Raise if Spark is gone, or if it is closed here, however long the task's calls still take."""
        self._check_open()
        if self._check_spark is not None:
            self._check_spark()

    def _check_open(self) -> None:
        """Raise `ClosedError` if it is not."""
        if self._closed:
            raise ClosedError
