"""A result in columns: the server joins the values of each column to one byte string, the client makes an Arrow array.

So a batch is one record of a few byte strings, and no value becomes a Python object. The record comes over the same
pool as rows do: the same statements, deadlines, TLS and secrets. The statement:

    SELECT count(*), <two results for each column>
    FROM (SELECT int8send(t."id") AS v0, textsend(t."name") AS v1 ... FROM ... OFFSET 0) AS r

`Column.packed` makes the bytes of one value, as the server's binary protocol has them: big-endian numbers, text in
UTF-8. ``OFFSET 0`` keeps the planner from merging the two queries, which would compute each value twice. Aggregates of
one SELECT see the rows in one order, so a row has the same position in every column, and the order is the subquery's.

| column | first result | second result |
| --- | --- | --- |
| of fixed width | the values; `MARKS` where a value is null | how many values are not null |
| text, bytea, numeric as text, array | the values that are not null | for each row its length, 4 bytes; -1 for null |

Widths: bool 1; int2 (sent as int4), int4, float4, date 4; int8, float8, timestamp, timestamptz 8. Dates are days and
timestamps are microseconds, both since 2000-01-01; the lowest and the highest numbers are -infinity and infinity. A
result without rows has nulls where the byte strings would be.

If a real value has the bits of a mark, the second result shows that: the statement for rows then answers the batch. So
it does where no column can hold an array, because it can show that array.

A result takes 1 GB at most, which is PostgreSQL's limit for a row; a larger one is answered as rows, too.

The bytes of one array, all numbers big-endian:

| bytes | what |
| --- | --- |
| 4, 4, 4 | dimensions; 1 if an element is null; the OID of the element type |
| 4, 4 for each dimension | its length, its lower bound |
| 4 and the bytes, for each element | its length, or -1 for null; its value as the server's binary protocol has it |

An empty array has no dimension. Where an element begins depends on the one before it. So the elements are found in
rounds, the n-th of every array at once, except where all have one width and none is null. No element becomes a Python
object.

Source: PostgreSQL documentation, "Frontend/Backend Protocol"; the functions ``*send`` and ``string_agg``;
src/backend/utils/adt/arrayfuncs.c, `array_send`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import unpack_from
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from asyncio_operator.enricher import decimals_fit, fit_decimals, shown_type
from enrichers.postgres.arrow_keys import shown_key
from enrichers.postgres.types import Column
from enrichers.typed import MisfitError

MARKS = {1: 2, 4: -0x7FFFF4E1, 8: -0x7FFFFFFFFFFFF4E1}
"""The number instead of a null, by its width in bytes. No bool, date or timestamp has these bits, and few numbers."""

MOST_COLUMNS = 800
"""A SELECT has 1,664 results at most."""

PART = 10_000
"""The rows of a record of a whole table. Rows of up to 100 KB do not exceed PostgreSQL's limit then."""

DAYS = 10_957
MICROSECONDS = DAYS * 86_400_000_000
"""From 1970-01-01, Arrow's epoch, to 2000-01-01, PostgreSQL's."""

LATEST = {4: 2_145_031_948, 8: 2**63 - 1 - MICROSECONDS}
EARLIEST = {4: -2_451_545, 8: -211_813_488_000_000_000}
"""The range of days and microseconds since 2000 that both PostgreSQL and Arrow can hold."""


class AmbiguousError(Exception):
    """Only the statement for rows can tell what a value is: it has the bits that mark a null, or is an unfit array."""


def packing(columns: Sequence[tuple[str, Column]], *, parts: bool = False) -> tuple[str, str]:
    """The SQL before and after ``FROM ...``. Both are "" if only rows can answer, because there are too many columns.

    Args:
        columns: come with the SQL of their values.
        parts: the result is a record for each `PART` rows, and not a single one.
    """
    if len(columns) > MOST_COLUMNS:
        return "", ""
    outer = [_aggregates(f"v{number}", column.arrow) for number, (_, column) in enumerate(columns)]
    inner = [f"{column.packed.format(sql)} AS v{number}" for number, (sql, column) in enumerate(columns)]
    tail = " OFFSET 0) AS r"
    if parts:
        inner.append(f"(row_number() OVER () - 1) / {PART} AS part")
        # Where a value is counted once, the server sorts rows by part, on disk if need be. It does not hash them, which
        # would take memory for the whole table.
        outer.append("count(DISTINCT part)")
        tail += " GROUP BY part"
    return f"SELECT count(*), {', '.join(outer)} FROM (SELECT {', '.join(inner)} ", tail


def unpack(record: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """The table of a packed result.

    Raises:
        MisfitError: a value is infinite, or has more digits than its decimal.
        AmbiguousError: the result can only be read as rows.
    """
    arrays = [_unpacked(record, number, field) for number, field in enumerate(schema)]
    return pa.Table.from_arrays(arrays, schema=schema)


def key_at(row: int, record: Sequence[Any], schema: pa.Schema, names: Sequence[str]) -> Any:
    """The key of a row of a packed result, for a message; None if it does not fit its column."""
    places = list(map(schema.get_field_index, names))
    try:
        return shown_key([_unpacked(record, place, schema.field(place))[row] for place in places])
    except MisfitError:
        return None


def from_rows(rows: Sequence[Sequence[Any]], row_type: pa.StructType, places: Sequence[int]) -> pa.Table:
    """The table of a result in rows. `places` has the place in a row of each field of `row_type`.

    Raises:
        pyarrow.ArrowInvalid: a key does not fit its column.
        ArithmeticError: a number does not fit its column.
    """
    # What asyncpg returns is exact for the column's type, except for numerics whose column has changed meanwhile. As
    # structs few rows take half of the time of one array for each column.
    chosen = [tuple([row[place] for place in places]) for row in rows]
    for number, field in enumerate(row_type):
        is_list = kinds.is_list(field.type)
        data_type = field.type.value_type if is_list else field.type
        if kinds.is_decimal(data_type):
            values = [row[number] for row in chosen]
            if is_list:
                values = [item for value in values if value is not None for item in value]
            if not decimals_fit(values, data_type):
                raise ArithmeticError(f"a number does not fit {shown_type(data_type)}")
    return pa.Table.from_struct_array(pa.array(chosen, row_type))


def first_misfit(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> MisfitError | None:
    """The error of the first value of a result in rows that does not fit its column."""
    for number, field in enumerate(schema):
        for place, row in enumerate(rows):
            try:
                from_rows([row], pa.struct([field]), [number])
            except (pa.ArrowException, ArithmeticError):
                return MisfitError(field.name, str(row[number])[:200], field.type, "", place)
    return None


def _unpacked(record: Sequence[Any], number: int, field: pa.Field) -> pa.Array:
    data_type = field.type
    rows, first, second = record[0], record[1 + 2 * number], record[2 + 2 * number]
    width = _width(data_type)
    try:
        if width:
            return _fixed(first or b"", second, rows, width, data_type)
        if kinds.is_list(data_type):
            return _arrays(first or b"", second or b"", rows, data_type)
        ends, valid, nulls = _spans(second or b"", rows)
        is_decimal = kinds.is_decimal(data_type)
        array = _array(pa.string() if is_decimal else data_type, rows, valid, nulls, ends, pa.py_buffer(first or b""))
        return _decimals(array, data_type) if is_decimal else array
    except MisfitError as error:
        error.path, error.type = field.name, data_type
        raise


def _aggregates(value: str, data_type: pa.DataType) -> str:
    width = _width(data_type)
    if width:
        mark = (MARKS[width] % (1 << 8 * width)).to_bytes(width).hex()
        return f"string_agg(coalesce({value}, '\\x{mark}'::bytea), ''::bytea), count({value})"
    return f"string_agg({value}, ''::bytea), string_agg(int4send(coalesce(octet_length({value}), -1)), ''::bytea)"


@lru_cache(maxsize=1000)
def _width(data_type: pa.DataType) -> int:
    """The bytes of a value, or 0 if they vary."""
    return next((width for is_kind, width in _WIDTHS if is_kind(data_type)), 0)


_WIDTHS: tuple[tuple[Callable[[pa.DataType], bool], int], ...] = (
    (kinds.is_boolean, 1),
    (kinds.is_int64, 8),
    (kinds.is_integer, 4),
    (kinds.is_float64, 8),
    (kinds.is_float32, 4),
    (kinds.is_date32, 4),
    (kinds.is_timestamp, 8),
)


def _fixed(packed: bytes, present: int, rows: int, width: int, data_type: pa.DataType) -> pa.Array:
    numbers: Any = np.frombuffer(packed, f">i{width}").astype(f"i{width}")
    valid = None
    if present < rows:
        valid = numbers != MARKS[width]
        if np.count_nonzero(valid) != present:
            raise AmbiguousError
    return _numbers(numbers, valid, rows - present, data_type)


def _numbers(numbers: Any, valid: Any, nulls: int, data_type: pa.DataType) -> pa.Array:
    """The array of numbers as the server sends them, which may be overwritten. Any number for null."""
    rows, width = len(numbers), numbers.dtype.itemsize
    if kinds.is_boolean(data_type):
        numbers = _bits(numbers == 1)
    elif kinds.is_temporal(data_type):
        held = numbers if valid is None else np.where(valid, numbers, 0)
        if rows and (held.min() < EARLIEST[width] or held.max() > LATEST[width]):
            row = int(np.flatnonzero((held < EARLIEST[width]) | (held > LATEST[width]))[0])
            raise MisfitError("", _shown(int(held[row]), width), pa.null(), "", row)
        numbers += DAYS if width == 4 else MICROSECONDS
    elif kinds.is_int16(data_type):
        numbers = numbers.astype(np.int16, copy=False)
    return _array(data_type, rows, valid, nulls, numbers)


def _shown(number: int, width: int) -> str:
    """A day or a moment that does not fit."""
    limit = 1 << (8 * width - 1)
    if number in (-limit, limit - 1):
        return "infinity" if number > 0 else "-infinity"
    return str(np.datetime64((number + MICROSECONDS) // 1000, "ms"))  # of days, only infinity does not fit


def _spans(packed_lengths: bytes, rows: int) -> tuple[Any, Any, int]:
    """Where the value of each row begins, and the last one ends; which values are valid; how many are null."""
    lengths = np.frombuffer(packed_lengths, ">i4").astype(np.int32)
    valid = None
    nulls = int(np.count_nonzero(lengths < 0))
    if nulls:
        valid = lengths >= 0
        lengths[~valid] = 0
    ends = np.zeros(rows + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return ends, valid, nulls


def _arrays(packed: bytes, packed_lengths: bytes, rows: int, data_type: pa.ListType) -> pa.Array:
    ends, valid, nulls = _spans(packed_lengths, rows)
    kind = data_type.value_type
    # The server sends an int2 in two bytes here.
    width = 2 if kinds.is_int16(kind) else _width(kind)
    try:
        arrays = PackedArrays(packed, ends[:-1].astype(np.int64), valid, width)
        if width:
            items = _numbers(*arrays.numbers(width), kind)
        elif kinds.is_decimal(kind):
            items = _decimals(arrays.texts(pa.string()), kind)
        else:
            items = arrays.texts(kind)
    except (DimensionsError, MisfitError):
        raise AmbiguousError from None
    validity = None if valid is None else pa.py_buffer(_bits(valid))
    buffers = [validity, pa.py_buffer(arrays.offsets)]
    return pa.Array.from_buffers(data_type, rows, buffers, nulls, children=[items])


def _decimals(texts: pa.Array, data_type: pa.DataType) -> pa.Array:
    made = fit_decimals(texts, data_type)
    if made.null_count > texts.null_count:
        row = pc.and_(made.is_null(), texts.is_valid()).index(True).as_py()
        raise MisfitError("", texts[row].as_py()[:200], data_type, "", row)
    return made


def _array(data_type: pa.DataType, rows: int, valid: Any, nulls: int, *buffers: Any) -> pa.Array:
    validity = None if valid is None else pa.py_buffer(_bits(valid))
    return pa.Array.from_buffers(data_type, rows, [validity, *map(pa.py_buffer, buffers)], nulls)


def _bits(flags: Any) -> Any:
    return np.packbits(flags, bitorder="little")


# -- arrays


Ints = np.ndarray[Any, np.dtype[np.int64]]

HEADER = 20
"""The bytes before the elements of an array of one dimension."""

FEW = 16
"""A round for fewer arrays takes more time than to read their elements one by one."""


class DimensionsError(Exception):
    """An array has several dimensions."""


class PackedArrays:
    """The arrays of a column.

    Args:
        packed: their bytes, one after the other.
        starts: where each begins. A null array has the bytes of none, so it has the start of the next one.
        valid: whether each is an array; None if none is null.
        width: the bytes of an element, or 0 if they vary.

    Attributes:
        offsets: for each array the number of its first element, and at the end the number of all elements.
        at: where the value of each element begins.
        sizes: the bytes of each element; -1 for null.

    Raises:
        DimensionsError: one has several dimensions.
    """

    def __init__(self, packed: bytes, starts: Ints, valid: Any, width: int) -> None:
        self._packed = packed
        held = starts if valid is None else starts[valid]
        dimensions = self.values(held, ">i4")
        if (dimensions > 1).any():
            raise DimensionsError
        filled = held[dimensions == 1]
        lengths = np.zeros(len(starts), np.int64)
        places = np.arange(len(starts)) if valid is None else np.flatnonzero(valid)
        lengths[places[dimensions == 1]] = counts = self.values(filled + 12, ">i4")
        self.offsets = np.zeros(len(starts) + 1, np.int32)
        np.cumsum(lengths, out=self.offsets[1:])
        firsts = np.cumsum(counts) - counts
        if width and not self.values(filled + 4, ">i4").any():
            step = 4 + width
            self.at = np.repeat(filled + HEADER + 4 - firsts * step, counts) + np.arange(self.offsets[-1]) * step
            self.sizes = np.full(len(self.at), width, np.int64)
            return
        self.at = np.empty(self.offsets[-1], np.int64)
        self.sizes = np.empty(self.offsets[-1], np.int64)
        # The elements of arrays whose first one is at `at` and has the number `slots`. None is without one.
        at, slots, left, done = filled + HEADER, firsts, counts, 0
        while len(at) >= FEW:
            sizes = self.values(at, ">i4")
            numbers = slots + done
            self.at[numbers], self.sizes[numbers] = at + 4, sizes
            at = at + np.maximum(sizes, 0) + 4
            done += 1
            more = left > done
            if not more.all():
                at, slots, left = at[more], slots[more], left[more]
        for place, slot, count in zip(at.tolist(), slots.tolist(), left.tolist(), strict=True):
            for number in range(slot + done, slot + count):
                [size] = unpack_from(">i", self._packed, place)
                self.at[number], self.sizes[number] = place + 4, size
                place += 4 + max(size, 0)

    def values(self, places: Ints, kind: str) -> Ints:
        """The numbers at these places, each within the bytes."""
        width = int(kind[-1])
        if len(self._packed) < width:
            return np.empty(0, kind[1:])
        # A number may begin at every byte.
        everywhere: Any = np.ndarray((len(self._packed) - width + 1,), kind, self._packed, 0, (1,))
        taken: Ints = everywhere[places].astype(kind[1:])
        return taken

    def numbers(self, width: int) -> tuple[Ints, Any, int]:
        """The elements as numbers of that many bytes, any number for null; which are valid, None for all; the nulls."""
        valid = self.sizes >= 0
        nulls = len(valid) - int(np.count_nonzero(valid))
        if not nulls:
            return self.values(self.at, f">i{width}"), None, 0
        # Nothing may follow the last null.
        return self.values(np.where(valid, self.at, 0), f">i{width}"), valid, nulls

    def texts(self, kind: pa.DataType) -> pa.Array:
        """The elements as text or bytes."""
        # With what lies between two elements they are the values of one array, of which every second one is taken.
        ends = np.empty(2 * len(self.at) + 1, np.int32)
        ends[:-1:2] = self.at
        ends[1::2] = self.at + np.maximum(self.sizes, 0)
        ends[-1] = ends[-2] if len(self.at) else 0
        everything = pa.Array.from_buffers(kind, len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(self._packed)])
        numbers = np.arange(len(self.at)) * 2
        return everything.take(pa.array(numbers, mask=self.sizes < 0))
