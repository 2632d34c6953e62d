"""A whole dimension table in the memory of every Python worker, loaded again from time to time.

    TableEnricher("s3://bucket/planes.parquet", key="tailnum", columns=["seats"], reload_every=3600)
    TableEnricher(load_airports, key=["country", "code"])

A lookup awaits nothing. A reloaded table replaces the old one as a whole. If loading fails, the old table stays and a
warning is logged. A thread loads and indexes the table.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator import ConfigurationError, Enricher, EnricherError, ResultError
from asyncio_operator.enricher import (
    CLOSE_TIMEOUT,
    KeyIndex,
    as_schema,
    cast_table,
    describe,
    did_you_mean,
    duration,
    function_name,
    gives_coroutines,
    keep_verdict,
    shown_type,
    takes,
    verdict,
)
from enrichers.names import names_of, opened
from enrichers.table_files import NotParquetError, TableFiles, simplified
from enrichers.threads import run_in_thread
from enrichers.typed import row_converter

if TYPE_CHECKING:
    from asyncio_operator.enricher import StructType


Rows: TypeAlias = pa.Table | Sequence[Mapping[str, Any]]
Path: TypeAlias = str | os.PathLike[str]
Source: TypeAlias = Path | Sequence[Path] | pa.Table | Callable[[], Rows | Awaitable[Rows]]

Misfits: TypeAlias = list[tuple[pa.Table, str]]  # The key of each row with a value that does not fit, and why.

MOST_MISFITS = 1000  # If there are more, the types that were declared are wrong.

logger = logging.getLogger("asyncio_operator.table")


@dataclass(frozen=True)
class _WholeTable:
    """All rows of another enricher, which is open only while they are read."""

    enricher: Enricher

    def __post_init__(self) -> None:
        if not gives_coroutines(getattr(self.enricher, "rows", None)):
            raise ConfigurationError(
                f"source is {describe(self.enricher)}, which has no `async def rows()` that returns all rows, as "
                "PostgresEnricher has for a table; pass a function that returns them"
            )

    async def __call__(self) -> Rows:
        await self.enricher.open()
        try:
            rows: Rows = await self.enricher.rows()  # type: ignore[attr-defined]
            return rows
        finally:
            await self.enricher.close()

    def schema(self) -> pa.Schema:
        """The columns of the rows: the key columns, then the other columns of a found row."""
        fields = [*(self.enricher.key_schema() or ()), *self.enricher.schema()]
        return pa.schema(list({field.name: field for field in fields}.values()))


@dataclass(frozen=True, init=False, repr=False)
class TableEnricher(Enricher):
    """Rows of a table in memory.

    Args:
        source: one of: the path of a Parquet file or directory, which every worker can read, or a list of files; a
            `pyarrow.Table`, which is sent with the job; a function without arguments that returns a `pyarrow.Table` or
            a sequence of mappings (an ordinary function runs in a thread); an enricher that has ``async def rows()``,
            such as a `PostgresEnricher` of a table.
        key: the key column, or a list of key columns. Rows with a null in a key column are left out.
        columns: the columns to add; by default all except the key columns.
        reload_every: seconds, or a timedelta, from the end of one loading to the start of the next; never by default.
        schema: names and types of the source's columns, key columns included, as a `pyarrow.Schema`, DDL text or a
            `StructType`. Other columns are left out. Default: the driver asks the source, and calls a function once for
            that. Mappings are converted as by `enrichers.typed`; tables are cast without loss.

    Raises:
        ConfigurationError: an argument is wrong. `schema` and `key_schema` raise it if the source cannot be read, or
            does not have a column.
    """

    source: Source
    key: tuple[str, ...]
    columns: tuple[str, ...] | None
    reload_every: float | None
    _given: pa.Schema | None
    _described: pa.Schema | None = field(compare=False)
    _index: TableIndex | None = field(compare=False)
    _reloading: asyncio.Task[None] | None = field(compare=False)

    in_memory = True
    max_batch = 10_000

    def __init__(
        self,
        source: Source,
        key: str | Sequence[str],
        columns: Sequence[str] | None = None,
        reload_every: float | timedelta | None = None,
        *,
        schema: pa.Schema | str | StructType | None = None,
    ) -> None:
        if isinstance(source, Enricher):
            source = _WholeTable(source)
        is_path = _is_path(source)
        if isinstance(source, Sequence) and not is_path and source and all(map(_is_path, source)):
            source = tuple(map(os.fspath, source))
        elif not (is_path or isinstance(source, pa.Table) or callable(source)):
            raise ConfigurationError(
                f"source is {describe(source)}; it must be the path of a Parquet file or directory, a list of files, "
                "a pyarrow.Table, an enricher that has `rows()`, or a function that returns a table or a sequence of "
                "mappings"
            )
        if callable(source):
            takes("source", source)
        every = None if reload_every is None else duration("reload_every", reload_every)
        if every == 0 or (every is not None and isinstance(source, pa.Table)):
            raise ConfigurationError(
                f"reload_every is {describe(reload_every)}; it must be more than 0 seconds, and a pyarrow.Table never "
                "changes: pass its path, or a function that makes it"
            )
        values = {
            "source": os.fspath(source) if isinstance(source, os.PathLike) else source,
            "key": names_of("key", key),
            "columns": None if columns is None else names_of("columns", columns),
            "reload_every": every,
            "_given": None if schema is None else as_schema(schema),
            **dict.fromkeys(("_described", "_index", "_reloading")),
        }
        for name, value in values.items():
            self._set(name, value)

    def schema(self) -> pa.Schema:
        """The columns of a found row. The first call may read the source."""
        return pa.schema([self._whole().field(name) for name in self._chosen()])

    def key_schema(self) -> pa.Schema:
        """The key columns, in the order of a key's parts. The first call may read the source."""
        return pa.schema([self._whole().field(name) for name in self.key])

    async def open(self) -> None:
        """Load the table.

        Raises:
            EnricherError: the table cannot be loaded.
            ConfigurationError: the table does not have a column that was named.
        """
        try:
            index = await self._load()
        except ConfigurationError:
            raise
        except Exception as error:
            problem = f"{self!r}: the table could not be loaded: {self._words_of(error)}"
            raise EnricherError(problem, **verdict(error)) from self._shown(error)
        self._set("_index", index)
        if self._reloading is not None:
            self._reloading.cancel()
        if self.reload_every is not None:
            self._set("_reloading", asyncio.ensure_future(self._reload(self.reload_every)))

    async def close(self) -> None:
        """Drop the table. A reload that runs in a thread ends by itself, and its result is dropped."""
        reloading = self._reloading
        self._set("_reloading", None)
        self._set("_index", None)
        if reloading is not None:
            reloading.cancel()
            await asyncio.wait([reloading], timeout=CLOSE_TIMEOUT)

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        """The rows of distinct keys: the key columns, and the columns of `schema`. A key without a row is left out.

        Rows are in the order of the keys, and several rows of a key in the order of the table.

        Args:
            keys: of the types of `key_schema`; a struct array for several key columns.
        """
        return opened(self._index, self).table(keys)

    async def lookup_rows(self, keys: pa.Array) -> tuple[pa.Table, Any, Any]:
        """The rows of keys, uncopied: the table, and which of its rows are those of which keys."""
        return opened(self._index, self).rows(keys)

    async def _reload(self, every: float) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        loaded = loop.time()
        while True:
            await asyncio.sleep(every)
            index, problem = None, ""
            try:
                index = await self._load()
            except GeneratorExit:
                raise
            except BaseException as error:
                # Everything is caught: after a SystemExit or a CancelledError of the source's own, reloads go on too.
                problem = self._words_of(error)
            if self._reloading is not task or (task is not None and task.cancelling()):
                return  # A source may have swallowed the cancellation.
            if index is not None:
                self._set("_index", index)
                loaded = loop.time()
                continue
            logger.warning(
                "%r: loading the table again failed (%s); the one of %.0f s ago stays",
                self,
                problem,
                loop.time() - loaded,
            )

    async def _load(self) -> TableIndex:
        """The table, indexed."""
        given = await self.source() if gives_coroutines(self.source) else None  # type: ignore[operator,misc]
        schema, index = await asyncio.to_thread(self._make_index, given)
        if self._described is None:
            self._set("_described", schema)
        return index

    def _make_index(self, given: Rows | None) -> tuple[pa.Schema, TableIndex]:
        misfits: Misfits = []
        table = self._table(self._read(misfits) if given is None else given, misfits)
        chosen = self._chosen(table.schema)
        return table.schema, TableIndex(self, table, chosen, misfits)

    def _read(self, misfits: Misfits) -> Any:
        """The data of a source that is not asynchronous."""
        if callable(self.source):
            return self.source()
        if isinstance(self.source, pa.Table):
            return self.source
        columns = self.columns if self._given is None or self.columns is not None else self._given.names
        with self._reading() as files:
            return files.read(self.key, columns, self._given, lambda part, whole: self._table(part, misfits, whole))

    @contextmanager
    def _reading(self) -> Iterator[TableFiles]:
        """Finds the files of the source, and names it in errors."""
        assert isinstance(self.source, str | tuple)
        try:
            yield TableFiles(self.source)
        except ConfigurationError as error:
            text = str(error)
            raise ConfigurationError(text if text.startswith(repr(self)) else f"{self!r}: {text}") from None
        except NotParquetError as error:
            raise ConfigurationError(
                f"{self!r}: the source cannot be read as Parquet; a path must lead to a Parquet file or directory: for "
                "any other format, such as CSV, make the table in a function, as in source=lambda: "
                f"pyarrow.csv.read_csv(path) ({self._words_of(error)})"
            ) from self._shown(error)

    def _table(self, given: Any, misfits: Misfits, whole: pa.Schema | None = None) -> pa.Table:
        """The source's data as a table, with the known types, those of `whole`, or types that Spark has."""
        if isinstance(given, Sequence) and not isinstance(given, str | bytes):
            for row in given:
                if not isinstance(row, Mapping):
                    raise ConfigurationError(f"the source gave a row that is {describe(row)}; it must be a mapping")
            given = _inferred(given) if self._given is None else self._fitting(given, self._given, misfits)
        if not isinstance(given, pa.Table):
            raise ConfigurationError(
                f"{self!r}: the source gave {describe(given)}; it must give a pyarrow.Table or a sequence of mappings"
            )
        known = self._given if self._given is not None else whole if self._described is None else self._described
        self._check(given.schema, () if known is None else known.names)
        known = simplified(given.schema) if known is None else known
        wanted = pa.schema([column for column in known if column.name in (*self.key, *self._chosen(known))])
        for column in wanted:
            one, other = given.schema.field(column.name).type, column.type
            if kinds.is_timestamp(one) and kinds.is_timestamp(other) and (one.tz is None) != (other.tz is None):
                right = shown_type(one)
                raise ConfigurationError(
                    f"{self!r}: column {column.name!r} is {right} in the table and {shown_type(other)} in schema=, and "
                    f"no zone is invented or dropped: declare it as {right}, or convert it in a function as the source"
                )
        return self._fitting(given, wanted, misfits)

    def _fitting(self, rows: Any, schema: pa.Schema, misfits: Misfits) -> pa.Table:
        """A table of the rows that fit a schema. Of each other row `misfits` gets the key, and why (law X12)."""
        try:
            return _typed(rows, schema)
        except ValueError as error:
            _typed(rows[:0], schema)  # Raises if no value would fit.
            if len(rows) > 1:
                parts = rows[: len(rows) // 2], rows[len(rows) // 2 :]
                return pa.concat_tables([self._fitting(part, schema, misfits) for part in parts])
            # Raises if the key does not fit: every key would be a miss.
            misfits.append((_typed(rows, pa.schema([schema.field(name) for name in self.key])), str(error)))
            if len(misfits) > MOST_MISFITS:
                raise
            return schema.empty_table()

    def _whole(self) -> pa.Schema:
        """Names and types of the source's columns: the given ones, or the source's own."""
        if self._described is None:
            schema = self._given if self._given is not None else self._ask()
            if self._given is not None and isinstance(self.source, str | tuple):
                # A path may be one that only workers can read; what can be seen from here is checked here.
                with suppress(OSError), self._reading():
                    pass
            self._check(schema)
            self._set("_described", schema)
        assert self._described is not None
        return self._described

    def _ask(self) -> pa.Schema:
        """The schema of the source."""
        try:
            if isinstance(self.source, str | tuple):
                with self._reading() as files:
                    return simplified(files.schema(self.key, self.columns))
            if isinstance(self.source, _WholeTable):
                return self.source.schema()
            given = run_in_thread(self.source, "table") if gives_coroutines(self.source) else self._read([])  # type: ignore[arg-type]
            return self._table(given, []).schema
        except ConfigurationError:
            raise
        except Exception as error:
            problem = ConfigurationError(f"{self!r}: the source cannot be read: {self._words_of(error)}")
            raise keep_verdict(problem, error) from self._shown(error)

    def _check(self, schema: pa.Schema, all_columns: Sequence[str] = ()) -> None:
        for name in (*self.key, *(self.columns or all_columns)):
            if name not in schema.names:
                raise ConfigurationError(
                    f"{self!r}: the table has no column {name!r}; {did_you_mean(name, schema.names)}"
                )
        chosen = self._chosen(schema)
        if not chosen:
            raise ConfigurationError(f"{self!r}: the table has no columns but the key's; there is nothing to add")
        for name in (*self.key, *chosen):
            if schema.names.count(name) > 1:
                raise ConfigurationError(
                    f"{self!r}: the table has several columns {name!r}; rename all but one, or choose others: columns="
                )

    def _chosen(self, schema: pa.Schema | None = None) -> list[str]:
        """The columns of a row."""
        if self.columns is not None:
            return [*self.columns]
        return [name for name in (self._whole() if schema is None else schema).names if name not in self.key]

    def _shown(self, error: BaseException) -> BaseException | None:
        """The error, or None if its text may contain a secret of the path."""
        paths = self.source if isinstance(self.source, tuple) else [self.source]
        return None if any(isinstance(path, str) and _shown_path(path) != path for path in paths) else error

    def _words_of(self, error: BaseException) -> str:
        return type(error).__name__ if self._shown(error) is None else str(EnricherError.of(error))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_index": None, "_reloading": None}

    def __hash__(self) -> int:
        return hash((self.key, self.columns, self.reload_every))

    def __repr__(self) -> str:
        source: object = self.source
        if isinstance(source, str):
            shown = describe(_shown_path(source))
        elif isinstance(source, tuple):
            shown = describe([*map(_shown_path, source)])
        elif isinstance(source, pa.Table):
            shown = f"<table of {source.num_rows} rows>"
        else:
            shown = describe(source.enricher) if isinstance(source, _WholeTable) else function_name(source)
        columns = "" if self.columns is None else f", columns={[*self.columns]!r}"
        return f"TableEnricher({shown}, key={[*self.key]!r}{columns})"


def _is_path(source: object) -> bool:
    return isinstance(source, str | os.PathLike) and source != ""


def _shown_path(path: str) -> str:
    """A path without possible secrets: the credentials of a URI, and the options of the file system."""
    return re.sub(r"//[^/]*@", "//***@", path.partition("?")[0] + ("?***" if "?" in path else ""))


def _typed(rows: pa.Table | Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    if isinstance(rows, pa.Table):
        return cast_table(rows.select(schema.names), schema)
    return pa.Table.from_pylist([*map(row_converter(schema), rows)], schema)


def _inferred(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The rows, in the types that Arrow finds for them."""
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    for name, values in columns.items():
        values = [one for one in values if isinstance(one, date | str | bytes) and one == one]  # NaT is a null.
        found = {(isinstance(one, str | datetime), getattr(one, "tzinfo", "") is None): one for one in values}
        if len(found) > 1:
            # Arrow would drop the time of day of a moment, invent or drop a zone, and make bytes of a text.
            raise ConfigurationError(f"column {name!r} has values of several types: {describe([*found.values()])}")
        if any(getattr(one, "nanosecond", 0) for one in values):  # Arrow would cut them. All are moments here.
            columns[name] = pa.array(columns[name], pa.timestamp("ns", getattr(values[0], "tzinfo", None) and "UTC"))
    return pa.table(columns)


class TableIndex:
    """Rows by key: columns in Arrow, of which rows are copied when they are looked up, and a `KeyIndex`, which takes 14
    to 20 bytes for a row. Rows with a null in a column of the key are left out.
    """

    def __init__(self, enricher: TableEnricher, table: pa.Table, columns: Sequence[str], misfits: Misfits) -> None:
        self._name = repr(enricher)
        self._key_names = enricher.key
        self._index = _indexed(table, enricher.key)
        self._table = pa.table({name: _one_chunk(table[name]) for name in columns})
        self._whys = [why for _, why in misfits]
        self._unfit = misfits and _indexed(pa.concat_tables([row for row, _ in misfits]), enricher.key)

    def rows(self, keys: pa.Array) -> tuple[pa.Table, Any, Any]:
        """The table, the numbers of the rows of keys in it, and for each of them the position of its key.

        Raises:
            ResultError: a row of a key has a value that does not fit its column.
        """
        for number, position in zip(*self._unfit.find(keys), strict=True) if self._unfit else ():
            subject, why = f"{self._name}, key {describe(keys[position].as_py())}", self._whys[number]
            raise ResultError(f"{subject}: {why}; correct it, or declare another type in schema=")
        return self._table, *self._index.find(keys)

    def table(self, keys: pa.Array) -> pa.Table:
        """The rows of distinct keys: the key columns as they were asked for, and the columns of a row."""
        _, numbers, positions = self.rows(keys)
        keys = keys.take(pa.array(positions))
        parts = keys.flatten() if len(self._key_names) > 1 else [keys]
        columns = {name: self._table[name].take(pa.array(numbers)) for name in self._table.column_names}
        return pa.table(dict(zip(self._key_names, parts, strict=True)) | columns)


def _indexed(table: pa.Table, key: Sequence[str]) -> KeyIndex:
    parts = [_one_array(table[name]) for name in key]
    return KeyIndex(parts[0] if len(key) == 1 else pa.StructArray.from_arrays(parts, names=key))


def _one_chunk(column: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The column in one chunk, which is faster to read. It keeps its chunks if its text is too large for one."""
    try:
        return column.combine_chunks()
    except pa.ArrowInvalid:
        return column


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    """The column in one array, with offsets of 64 bits if its text is too large for another."""
    combined = _one_chunk(column)
    if isinstance(combined, pa.ChunkedArray):
        large = pa.large_string() if kinds.is_string(column.type) else pa.large_binary()
        combined = column.cast(large).combine_chunks()
    return combined
