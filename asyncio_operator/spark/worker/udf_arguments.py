"""The input of `async_udf` in the worker: from Spark's arrays to the arguments of each call."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import length_hint
from typing import Any

import pyarrow as pa

from asyncio_operator.arrow.key_arrays import in_utc
from asyncio_operator.arrow.schema import shown_type
from asyncio_operator.checks import is_idempotent
from asyncio_operator.errors import ConfigurationError, describe_error, function_name
from asyncio_operator.function import AsyncFunction, weigh_of
from asyncio_operator.loop.channels import ToLoop

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
            self.weigh = partial(_of_arguments, weigh)  # type: ignore[method-assign]

    async def invoke(self, value: Sequence[Any]) -> Any:
        return await self._function(*value)

    def __repr__(self) -> str:
        return function_name(self._function)


def _of_arguments(weigh: Callable[[Sequence[Any]], Mapping[str, float]], rows: Sequence[Any]) -> Mapping[str, float]:
    return weigh([row[0] if len(row) == 1 else tuple(row) for row in rows])


def check_columns(name: str, spread: Callable[..., Any] | None, count: int) -> None:
    """Check that the function can be called with this number of columns.

    Raises:
        ConfigurationError: it cannot.
    """
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
            yield Batch([_values(name, array) for array in arrays], len(arrays) == 1 and spread is None)


def _values(name: str, array: pa.Array) -> list[Any]:
    """The values of a column. Timestamps with a zone become datetimes in UTC."""
    try:
        values: list[Any] = in_utc(array).to_pylist(**_MAPS)
    except Exception as error:
        raise ConfigurationError(
            f"{name} is given a {shown_type(array.type)} that Python cannot hold: {describe_error(error)}; filter such "
            "rows out, or cast the column"
        ) from error
    return values


@dataclass(frozen=True, slots=True)
class Batch:
    """The columns of a batch of rows.

    Rows are made one by one. If all ten thousand were made at once and kept until their calls have ended, Python's
    garbage collector would be busy with them.

    Attributes:
        bare: whether a row is the value of the only column; otherwise it is a tuple.
    """

    columns: list[list[Any]]
    bare: bool

    def __len__(self) -> int:
        return len(self.columns[0])

    def rows(self, first: Iterator[Any]) -> Iterator[Any]:
        """The rows, with the values of their first column taken from this iterator."""
        return first if self.bare else zip(first, *self.columns[1:], strict=True)

    def row(self, number: int) -> Any:
        return self.columns[0][number] if self.bare else tuple(column[number] for column in self.columns)


class Rows:
    """The rows of all batches, one by one. They are an `Input` of the operator.

    Attributes:
        batches: in order, the batches with rows whose results were not handed over yet.
    """

    instant = True

    def __init__(self, source: ToLoop) -> None:
        self.batches: deque[Batch] = deque()
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

    def read_ahead(self) -> list[Any]:
        """An empty list: no snapshots are taken here."""
        return []

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self._rows
            batch = next(iter(self._source), None)
            if batch is None:
                return
            self.batches.append(batch)
            self._first = iter(batch.columns[0])
            self._rows = batch.rows(self._first)

    def exhausted(self) -> None:
        """More rows may come later."""

    async def release(self) -> None:
        """The channel ends with the task."""
