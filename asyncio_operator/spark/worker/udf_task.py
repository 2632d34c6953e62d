"""What runs in the Python worker for `async_udf`: batches of arguments in, arrays of results out.

The feeder thread makes values of Python from Spark's batches. The operator runs on the loop thread over the rows of all
batches, so calls stay in flight from one batch to the next. The task's main thread builds Arrow arrays from the
results, of a whole batch or of what has come after a time; `task_frame` is the frame.

Law: the n-th result belongs to the n-th row. One that does not fit fails the task, or becomes null. Spark takes results
in arrays of any length, and counts them at the end.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import length_hint
from typing import Any

import pyarrow as pa

from asyncio_operator.arrow.columns import array_of, columns, load_pandas, row_reader
from asyncio_operator.arrow.key_arrays import in_utc
from asyncio_operator.arrow.type_names import shown_type
from asyncio_operator.checks import is_idempotent
from asyncio_operator.engine.contracts import Input
from asyncio_operator.engine.failures import call_error, is_ordinary
from asyncio_operator.errors import (
    ConfigurationError,
    FunctionError,
    ResultError,
    describe,
    describe_error,
    function_name,
)
from asyncio_operator.function import AsyncFunction, weigh_of
from asyncio_operator.hints import failed_import, remedy
from asyncio_operator.lookup.key_batch import FLUSH
from asyncio_operator.loop.channels import AHEAD, PULSE, FromLoop, ToLoop
from asyncio_operator.loop.portable_errors import portable_errors
from asyncio_operator.operator.wait_operator import AsyncWaitOperator
from asyncio_operator.spark.worker.output_batches import OUTPUT_BYTES
from asyncio_operator.spark.worker.task_frame import READ_AHEAD, one_by_one, outputs_of
from asyncio_operator.telemetry.propagation import Propagated

REMEDY = '; on_error="null" lets the job go on without'  # The end of the message of a failed call.


@dataclass(frozen=True, slots=True)
class UdfTask:
    """A function of an iterator of Arrow arrays, or of tuples of arrays. It is sent to the workers."""

    name: str  # Name of the user's function, for messages.
    operator: AsyncWaitOperator
    # A coroutine function that gets the columns as its arguments, so a row is a tuple, also of one value; or None.
    spread: Callable[..., Any] | None
    kind: pa.DataType  # The type of the results, with all fields nullable.
    fail: bool  # Whether a result that does not fit ends the task; otherwise it becomes null.
    propagated: Propagated | None = None  # The driver's trace context, and the function that sets up OpenTelemetry.
    idempotent: bool = True  # Whether calls may be made ahead of the rows that Spark takes (law X15).

    def __call__(self, batches: Iterator[Any]) -> Iterator[pa.Array]:
        """The results for the rows of `batches`."""
        return portable_errors(self._arrays(batches))

    def _arrays(self, batches: Iterator[Any]) -> Iterator[pa.Array]:
        load_pandas()
        results = Results(self.name, self.kind, (lambda row, error: self.failed(row, 1, error)) if self.fail else None)
        outputs = outputs_of(
            arguments(self.name, self.spread, batches),
            partial(self._run, results),
            name=self.name,
            ahead=READ_AHEAD,
            watch=FLUSH,
            propagated=self.propagated,
            singly=not self.idempotent,
        )
        with contextlib.closing(outputs):
            for output in outputs:
                if output is PULSE and not results.came:
                    # Empty, but written: only after a write is the end of Spark's connection seen.
                    yield pa.array([], self.kind)
                yield from results.leaving(partly=output is PULSE or not self.idempotent)
        yield from results.leaving()

    async def _run(self, results: Results, source: ToLoop, sink: FromLoop) -> None:
        """Call the operator with the rows of all batches, on the loop."""
        rows, came = Rows(source, results.batches), results.came
        try:
            if not self.idempotent:
                await one_by_one(self.operator.outputs_on_demand(rows), sink, came.append)
                return
            async with contextlib.aclosing(self.operator.process(rows)) as outputs:
                async for result in outputs:
                    came.append(result)
                    # The task's thread takes them at each pulse, and need not be woken for each. Here room in the
                    # channel is waited for, so a slow consumer slows the calls.
                    if len(came) >= AHEAD:
                        await sink.put(None)
        except FunctionError as error:
            if (cause := error.__cause__) is None:
                # The error belongs to no row, but ends the run.
                raise
            raise self.failed(error.element, error.attempts, cause) from cause

    def failed(self, row: str, attempts: int, error: BaseException) -> FunctionError:
        """The error with which the task ends because a call failed. Raise it from `error`."""
        what = remedy(error) or (REMEDY if is_ordinary(error) and failed_import(error) is None else "")
        return call_error(f"{self.name} failed", "arguments", row, error, attempts, what)


_NULL: Mapping[str, Any] = {}  # Marks a struct that is null.


class Results:
    """Makes Arrow arrays from results."""

    def __init__(self, name: str, kind: pa.DataType, on_misfit: Callable[[str, ResultError], Exception] | None) -> None:
        self._name = name  # Name of the user's function.
        self._kind = kind  # The type of the results, with all fields nullable.
        # Makes the error for a row whose result does not fit; None: such a result becomes null.
        self._on_misfit = on_misfit
        self._several = pa.types.is_struct(kind)
        self._fields = pa.schema(list(kind) if self._several else [pa.field(name, kind)])
        self._read = row_reader(self._fields)
        # Those of which rows were read and not all results have left. The loop adds.
        self.batches: deque[Batch] = deque()
        self.came: deque[Any] = deque()  # The results that this has not taken yet. The loop adds.
        # Of the first batch: the results that have left, and those that are ready to leave.
        self._left = 0
        self._ready: list[Any] = []

    def leaving(self, partly: bool = False) -> Iterator[pa.Array]:
        """The results of each batch that is complete; with `partly` also those of the next one that are there."""
        came, ready = self.came, self._ready
        while came:
            ready.append(came.popleft())
        while ready:
            batch, left = self.batches[0], self._left
            some, more = ready[: len(batch) - left], ready[len(batch) - left :]
            if left + len(some) < len(batch):
                if not partly:
                    return
                self._left = left + len(some)
            else:
                self.batches.popleft()
                self._left = 0
            ready[:] = more
            yield from self._arrays(batch, left, some)

    def _arrays(self, batch: Batch, start: int, results: list[Any]) -> Iterator[pa.Array]:
        """The results for the rows of a batch from `start` on, in arrays of bounded size."""
        try:
            array = self._array(results)
        except Exception:
            found = False
            for i, result in enumerate(results):
                try:
                    self._read(self._row(result))
                except ResultError as error:
                    if self._on_misfit is not None:
                        raise self._on_misfit(describe(batch.row(start + i)), error) from error
                    results[i], found = None, True
            if not found:
                raise
            array = self._array(results)
        # More than 2 GB of text: an Arrow array cannot hold it, and Spark takes arrays of any length.
        if array is None:
            half = len(results) // 2
            yield from self._arrays(batch, start, results[:half])
            yield from self._arrays(batch, start + half, results[half:])
            return
        step = max(1, len(array) * OUTPUT_BYTES // max(array.nbytes, OUTPUT_BYTES))
        for i in range(0, len(array), step):
            yield array[i : i + step]

    def _array(self, results: list[Any]) -> pa.Array | None:
        """One array; None if a single array cannot hold them."""
        rows = list(map(self._row, results)) if self._several else []
        made = columns(rows, self._fields) if rows else [array_of(results, self._kind)]
        if len(results) > 1 and any(isinstance(one, pa.ChunkedArray) for one in made):
            return None
        if not rows:
            return made[0]
        return pa.StructArray.from_arrays(
            made, fields=list(self._fields), mask=pa.array([row is _NULL for row in rows])
        )

    def _row(self, result: Any) -> Mapping[str, Any]:
        if not self._several:
            return {self._name: result}
        if result is None:
            return _NULL
        if not isinstance(result, Mapping):
            raise ResultError(
                f"the result is of type {type(result).__name__}: {describe(result)}; it must be a mapping of "
                f"{', '.join(self._fields.names)} to values, or None"
            )
        # Copied: reading a missing key of a defaultdict would invent a value.
        try:
            return result if type(result) is dict else dict(result)
        except Exception as error:
            raise ResultError(f"the result cannot be read: {describe_error(error)}") from error


# Before pyarrow 19, a map is a list of pairs.
_MAPS: dict[str, Any] = (
    {"maps_as_pydicts": "strict"} if "maps_as_pydicts" in inspect.signature(pa.Array.to_pylist).parameters else {}
)


class OfColumns(AsyncFunction[Sequence[Any], Any]):
    """A coroutine function that gets the values of a row as its arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.idempotent = is_idempotent(function)
        if (weigh := weigh_of(function)) is not None:
            self.weigh = partial(_weighed, weigh)  # type: ignore[method-assign]

    async def invoke(self, value: Sequence[Any]) -> Any:
        return await self._function(*value)

    def __repr__(self) -> str:
        return function_name(self._function)


def _weighed(weigh: Callable[[Sequence[Any]], Mapping[str, float]], rows: Sequence[Any]) -> Mapping[str, float]:
    return weigh([row[0] if len(row) == 1 else tuple(row) for row in rows])


def check_columns(name: str, spread: Callable[..., Any] | None, count: int) -> None:
    """Raise a ConfigurationError if the function cannot be called with this number of columns."""
    try:
        if not count:
            raise TypeError("pass at least one")
        if spread is not None:
            inspect.signature(spread).bind(*range(count))
    except TypeError as error:
        columns = "1 column" if count == 1 else f"{count} columns"
        raise ConfigurationError(f"{name} is called with {columns}: {error}") from None


def arguments(name: str, spread: Callable[..., Any] | None, batches: Iterator[Any]) -> Iterator[Batch]:
    """Batches of rows, as arguments of the function with this name. `spread` is that of `check_columns`."""
    for batch in batches:
        arrays = batch if isinstance(batch, tuple) else (batch,)
        check_columns(name, spread, len(arrays))
        if len(arrays[0]):
            values = []
            for array in arrays:
                try:
                    # Timestamps with a zone become datetimes in UTC.
                    values.append(in_utc(array).to_pylist(**_MAPS))
                except Exception as error:
                    raise ConfigurationError(
                        f"{name} is given a {shown_type(array.type)} that Python cannot hold: {describe_error(error)}; "
                        "filter such rows out, or cast the column"
                    ) from error
            yield Batch(values, len(arrays) == 1 and spread is None)


@dataclass(frozen=True, slots=True)
class Batch:
    """The columns of a batch of rows.

    Rows are made one by one. If all ten thousand were made at once and kept until their calls have ended, Python's
    garbage collector would be busy with them.
    """

    columns: list[list[Any]]
    bare: bool  # Whether a row is the value of the only column; otherwise it is a tuple.

    def __len__(self) -> int:
        return len(self.columns[0])

    def row(self, number: int) -> Any:
        return self.columns[0][number] if self.bare else tuple(column[number] for column in self.columns)


class Rows(Input):
    """The rows of all batches, one by one. They are an `Input` of the operator. `begun` gets each batch before its
    first row is read."""

    def __init__(self, source: ToLoop, begun: deque[Batch]) -> None:
        self._begun = begun
        self._source = source
        self._first: Iterator[Any] = iter(())
        self._rows = self._first

    async def ready(self) -> bool:
        while not self.has_some():
            # While this waits, another reader of the rows may begin the last batch.
            if not await self._source.ready() and not length_hint(self._first):
                return False
        return True

    def has_some(self) -> bool:
        return length_hint(self._first) > 0 or self._source.has_some()

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self._rows
            batch = next(iter(self._source), None)
            if batch is None:
                return
            self._begun.append(batch)
            self._first = iter(batch.columns[0])
            self._rows = self._first if batch.bare else zip(self._first, *batch.columns[1:], strict=True)
