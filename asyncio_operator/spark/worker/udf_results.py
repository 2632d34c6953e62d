"""The output of `async_udf` in the worker: from results to Arrow arrays of bounded size.

Law: the n-th result belongs to the n-th row. A result that does not fit the type fails the task, or becomes null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from asyncio_operator.arrow.columns import array_of, columns, row_reader
from asyncio_operator.errors import ResultError, describe, describe_error
from asyncio_operator.spark.worker.output_batches import OUTPUT_BYTES
from asyncio_operator.spark.worker.udf_arguments import Batch

_NULL: Mapping[str, Any] = {}
"""Marks a struct that is null."""


class Results:
    """Makes Arrow arrays from results.

    Args:
        name: name of the user's function.
        kind: the type of the results, with all fields nullable.
        on_misfit: makes the error for a row whose result does not fit; None: such a result becomes null.
    """

    def __init__(self, name: str, kind: pa.DataType, on_misfit: Callable[[str, ResultError], Exception] | None) -> None:
        self._name = name
        self._kind = kind
        self._on_misfit = on_misfit
        self._several = pa.types.is_struct(kind)
        self._fields = pa.schema(list(kind) if self._several else [pa.field(name, kind)])
        self._read = row_reader(self._fields)

    def arrays(self, batch: Batch, start: int, results: list[Any]) -> Iterator[pa.Array]:
        """The results for the rows of a batch from `start` on, in arrays of bounded size.

        Raises:
            FunctionError: a result does not fit, and failures are not to become null.
        """
        try:
            array = self._array(results)
        except Exception:
            if not self._drop_misfits(batch, start, results):
                raise
            array = self._array(results)
        # More than 2 GB of text: an Arrow array cannot hold it, and Spark takes arrays of any length.
        if array is None:
            half = len(results) // 2
            yield from self.arrays(batch, start, results[:half])
            yield from self.arrays(batch, start + half, results[half:])
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

    def _drop_misfits(self, batch: Batch, start: int, results: list[Any]) -> bool:
        """Replace the results that do not fit by null. Returns whether there were any."""
        found = False
        for i, result in enumerate(results):
            try:
                self._read(self._row(result))
            except ResultError as error:
                if self._on_misfit is not None:
                    raise self._on_misfit(describe(batch.row(start + i)), error) from error
                results[i], found = None, True
        return found
