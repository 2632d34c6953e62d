"""What runs in the Python worker for `async_udf`: batches of arguments in, arrays of results out.

The feeder thread makes rows of Python values from Spark's batches. The operator runs on the loop thread over the rows
of all batches, so calls stay in flight from one batch to the next. The task's main thread builds Arrow arrays from the
results. Only batches, or the ready part of a batch, cross threads; `task_frame` is the frame.

Law: the n-th result belongs to the n-th row. Spark takes results in arrays of any length, and counts them at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from asyncio_operator.engine.failures import call_error
from asyncio_operator.errors import FunctionError, ResultError
from asyncio_operator.hints import remedy
from asyncio_operator.lookup.delivery import FLUSH
from asyncio_operator.loop.channels import PULSE, FromLoop, ToLoop
from asyncio_operator.loop.portable_errors import portable_errors
from asyncio_operator.operator.wait_operator import AsyncWaitOperator
from asyncio_operator.spark.worker.task_frame import READ_AHEAD, Handoff, outputs_of, until_spark_reads
from asyncio_operator.spark.worker.udf_arguments import Batch, Rows, arguments
from asyncio_operator.spark.worker.udf_results import Results
from asyncio_operator.telemetry.propagation import Propagated

REMEDY = '; on_error="null" lets the job go on without'
"""The end of the message of a failed call."""


@dataclass(frozen=True, slots=True)
class UdfTask:
    """A function of an iterator of Arrow arrays, or of tuples of arrays. It is sent to the workers.

    Attributes:
        name: name of the user's function, for messages.
        spread: a coroutine function that gets the columns as its arguments, so a row is a tuple, also of one value; or
            None.
        kind: the type of the results, with all fields nullable.
        fail: whether a result that does not fit ends the task; otherwise it becomes null.
        propagated: the driver's trace context, and the function that sets up OpenTelemetry.
        idempotent: whether calls may be made ahead of the rows that Spark takes (law X15).
    """

    name: str
    operator: AsyncWaitOperator
    spread: Callable[..., Any] | None
    kind: pa.DataType
    fail: bool
    propagated: Propagated | None = None
    idempotent: bool = True

    def __call__(self, batches: Iterator[Any]) -> Iterator[pa.Array]:
        """The results for the rows of `batches`.

        Raises:
            FunctionError: a call failed, and failures are not to become null.
        """
        return portable_errors(self._arrays(batches))

    def _arrays(self, batches: Iterator[Any]) -> Iterator[pa.Array]:
        results = Results(self.name, self.kind, self._misfit if self.fail else None)
        rows = arguments(self.name, self.spread, batches)
        outputs = outputs_of(rows, self._live, name=self.name, ahead=READ_AHEAD, propagated=self.propagated)
        taken = None if self.idempotent else until_spark_reads()
        with contextlib.closing(outputs):
            for output in outputs:
                if output is PULSE:
                    # Empty, but written: only after a write is the end of Spark's connection seen.
                    yield pa.array([], self.kind)
                elif taken is None:
                    yield from results.arrays(*output)
                else:
                    handoff, result = output
                    yield from results.arrays(*result)
                    taken()
                    handoff.taken()

    async def _live(self, source: ToLoop, sink: FromLoop) -> None:
        await _Life(self, source, sink).run()

    def _misfit(self, row: str, error: ResultError) -> FunctionError:
        return self.failed(row, 1, error)

    def failed(self, row: str, attempts: int, error: BaseException) -> FunctionError:
        """The error with which the task ends because a call failed. Raise it from `error`."""
        return call_error(f"{self.name} failed", "arguments", row, error, attempts, remedy(error) or REMEDY)


class _Life:
    """The part of a task that runs on the loop. It hands results over when their batch is complete, or after a time."""

    def __init__(self, task: UdfTask, source: ToLoop, sink: FromLoop) -> None:
        self._task = task
        self._rows = Rows(source)
        self._sink = sink
        self._start = 0
        self._results: list[Any] = []
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        try:
            outputs = self._outputs if self._task.idempotent else self._outputs_one_by_one
            await outputs()
        except FunctionError as error:
            cause = error.__cause__
            if cause is None:
                # The error belongs to no row, but ends the run.
                raise
            raise self._task.failed(error.element, error.attempts, cause) from cause
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def _outputs(self) -> None:
        batches = self._rows.batches
        async with contextlib.aclosing(self._task.operator.process(self._rows)) as outputs:
            async for result in outputs:
                self._results.append(result)
                # A whole batch waits for room in the channel, so a slow consumer slows the calls.
                if self._start + len(self._results) == len(batches[0]):
                    await self._sink.put(self._output())
                elif self._timer is None:
                    self._arm()

    async def _outputs_one_by_one(self) -> None:
        """Each result when Spark has read the one before (law X15)."""
        handoff = Handoff(self._sink)
        async with contextlib.aclosing(self._task.operator.outputs_on_demand(self._rows)) as outputs:
            async for result in outputs:
                self._results.append(result)
                await handoff.give(self._output())

    def _flush(self) -> None:
        """Hand over the ready results, unless the task's thread is still busy with earlier ones."""
        self._timer = None
        if self._results:
            if self._sink.waiting():
                self._arm()
            else:
                self._sink.put_nowait(self._output())

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(FLUSH, self._flush)

    def _output(self) -> tuple[Batch, int, list[Any]]:
        """A batch, the number of a row in it, and the results from that row on."""
        batch, start, results = self._rows.batches[0], self._start, self._results
        self._start, self._results = start + len(results), []
        if self._start == len(batch):
            self._rows.batches.popleft()
            self._start = 0
        return batch, start, results
