"""A whole dimension table kept in the memory of every Python worker, and loaded again from time to time.

    TableEnricher("s3://bucket/planes.parquet", key="tailnum", columns=["seats"], reload_every=3600)
    TableEnricher(load_airports, key=["country", "code"])

A lookup awaits nothing. A table that is loaded again takes the place of the old one at once and as a whole; if that
fails the old one stays, and a warning is logged. Loading and indexing happen in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator import ConfigurationError, Enricher, EnricherError
from asyncio_operator.enricher import (
    CLOSE_TIMEOUT,
    Found,
    as_schema,
    describe,
    did_you_mean,
    duration,
    function_name,
    gives_coroutines,
    takes,
)
from enrichers.names import names_of
from enrichers.table_index import TableIndex
from enrichers.threads import run_in_thread
from enrichers.typed import row_converter

Rows: TypeAlias = pa.Table | Sequence[Mapping[str, Any]]
Source: TypeAlias = str | os.PathLike[str] | pa.Table | Callable[[], Rows] | Callable[[], Awaitable[Rows]]

logger = logging.getLogger("asyncio_operator")


@dataclass(frozen=True)
class _WholeTable:
    """All rows of another enricher, which is open for no longer than they take."""

    enricher: Enricher

    def __post_init__(self) -> None:
        if not gives_coroutines(getattr(self.enricher, "rows", None)):
            raise ConfigurationError(
                f"source is {describe(self.enricher)}, which has no `async def rows()` that gives all its rows, as "
                "PostgresEnricher has it for a table; give a function that gives them"
            )

    async def __call__(self) -> Rows:
        await self.enricher.open()
        try:
            rows: Rows = await self.enricher.rows()  # type: ignore[attr-defined]
            return rows
        finally:
            await self.enricher.close()

    def schema(self) -> pa.Schema:
        """The columns of the rows: the keys, and what is found by them."""
        return pa.schema([*(self.enricher.key_schema() or ()), *self.enricher.schema()])


@dataclass(frozen=True, init=False, repr=False)
class TableEnricher(Enricher):
    """Rows of a table in memory.

    Args:
        source: the path of a Parquet file or directory, as every worker sees it; a `pyarrow.Table`, which travels with
            the job; or a function without arguments, asynchronous or not (then it runs in a thread), that gives a
            `pyarrow.Table` or a sequence of mappings; or an enricher that has ``async def rows()``, such as a
            `PostgresEnricher` of a table.
        key: the key column, or a list of them. Rows with a null in it are left out.
        columns: the columns to add; all but the key columns by default.
        reload_every: seconds, or a timedelta, from the end of one loading to the begin of the next; never by default.
        schema: names and types of the source's columns, the key columns too, as a `pyarrow.Schema` or DDL text; others
            are left out. By default they are the source's own, which is asked for them on the driver: a function is
            called there once. Mappings are converted to it as `enrichers.typed` does, tables are cast without loss.

    Raises:
        ConfigurationError: an argument is wrong. From `schema` and `key_schema`: the source cannot be read, or it has
            no such column.
    """

    source: Source
    key: tuple[str, ...]
    columns: tuple[str, ...] | None
    reload_every: float | None
    _given: pa.Schema | None
    _described: pa.Schema | None = field(compare=False)
    _index: TableIndex | None = field(compare=False)
    _reloading: asyncio.Task[None] | None = field(compare=False)

    max_batch = 1000

    def __init__(
        self,
        source: Source,
        key: str | Sequence[str],
        columns: Sequence[str] | None = None,
        reload_every: float | timedelta | None = None,
        *,
        schema: pa.Schema | str | None = None,
    ) -> None:
        if isinstance(source, Enricher):
            source = _WholeTable(source)
        if not (isinstance(source, str | os.PathLike | pa.Table) or callable(source)):
            raise ConfigurationError(
                f"source is {describe(source)}; it must be the path of a Parquet file or directory, a pyarrow.Table, "
                "an enricher that has `rows()`, or a function that gives a table or a sequence of mappings"
            )
        if callable(source):
            takes("source", source)
        every = None if reload_every is None else duration("reload_every", reload_every)
        if every == 0 or (every is not None and isinstance(source, pa.Table)):
            raise ConfigurationError(
                f"reload_every is {describe(reload_every)}; it must be more than 0 seconds, and a pyarrow.Table stays "
                "what it is: give its path, or a function that makes it"
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
            EnricherError: it cannot be loaded.
            ConfigurationError: it has no such column.
        """
        try:
            index = await self._load()
        except ConfigurationError:
            raise
        except Exception as error:
            raise EnricherError(f"{self!r}: the table could not be loaded: {self._told(error)}") from self._shown(error)
        self._set("_index", index)
        if self._reloading is not None:
            self._reloading.cancel()
        if self.reload_every is not None:
            self._set("_reloading", asyncio.ensure_future(self._reload(self.reload_every)))

    async def close(self) -> None:
        """Forget the table. A reload in a thread ends on its own."""
        reloading = self._reloading
        self._set("_reloading", None)
        self._set("_index", None)
        if reloading is not None:
            reloading.cancel()
            await asyncio.wait([reloading], timeout=CLOSE_TIMEOUT)

    async def lookup(self, key: Any) -> Found:
        """The row of a key, a list of its rows in the order of the table, or None.

        Raises:
            EnricherError: the key cannot be one, such as a list; or it is not open.
        """
        try:
            return self._loaded().row(key)
        except TypeError as error:
            raise self._no_key(key) from error

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        """The same for many keys, faster than one by one."""
        try:
            return self._loaded().rows(keys)
        except TypeError as error:
            raise self._no_key(keys) from error

    def _no_key(self, key: Any) -> EnricherError:
        return EnricherError(f"{self!r}: {describe(key)} cannot be a key: it has no hash", retryable=False)

    def _loaded(self) -> TableIndex:
        if self._index is None:
            raise EnricherError(f"{self!r} is not open", retryable=False)
        return self._index

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
                # Also SystemExit, and a CancelledError of the source's own: neither is a reason to never load again.
                problem = self._told(error)
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
        table = self._table(self._read() if given is None else given)
        chosen = self._chosen(table.schema)
        needed = table.select([*self.key, *(name for name in chosen if name not in self.key)])
        return table.schema, TableIndex(needed, len(self.key), chosen)

    def _read(self) -> Any:
        """What the source gives, if it is not asynchronous."""
        if callable(self.source):
            return self.source()
        if not isinstance(self.source, str):
            return self.source
        dataset = self._parquet(self.source)
        known = self._described or self._given
        # What is left out is not even read.
        columns = None if self.columns is None else [*dict.fromkeys((*self.key, *self.columns))]
        if columns is not None and known is None:
            self._check(dataset.schema)
        return dataset.read(columns=columns)

    def _parquet(self, path: str) -> Any:
        """The file or directory at a path, of which nothing is read yet but the schema."""
        from pyarrow import parquet

        try:
            return parquet.ParquetDataset(path)
        except pa.ArrowInvalid as error:
            raise ConfigurationError(
                f"{self!r}: the source cannot be read as Parquet: a path leads to a Parquet file or directory; of "
                "anything else, such as CSV, make the table in a function, as in source=lambda: "
                f"pyarrow.csv.read_csv(path) ({self._told(error)})"
            ) from self._shown(error)

    def _table(self, given: Any) -> pa.Table:
        """What the source gave, as a table of the known types, or of types that Spark has."""
        if isinstance(given, Sequence) and not isinstance(given, str | bytes):
            given = _from_rows(given, self._given)
        if not isinstance(given, pa.Table):
            raise ConfigurationError(
                f"{self!r}: the source gave {describe(given)}; a pyarrow.Table or a sequence of mappings is needed"
            )
        known = self._given if self._given is not None else self._described
        if known is None:
            self._check(given.schema)
            return given.cast(_simplified(given.schema))
        self._check(given.schema, known.names)
        names = [name for name in known.names if name in given.schema.names]
        for name in names:
            self._check_zone(name, given.schema.field(name).type, known.field(name).type)
        return given.select(names).cast(pa.schema([known.field(name) for name in names]))

    def _check_zone(self, name: str, given: pa.DataType, known: pa.DataType) -> None:
        """Arrow would take a time without a zone for one in UTC, and drop a zone, without a word."""
        if kinds.is_timestamp(given) and kinds.is_timestamp(known) and (given.tz is None) != (known.tz is None):
            right = "timestamp_ntz" if given.tz is None else "timestamp"
            raise ConfigurationError(
                f"{self!r}: column {name!r} is {given} in the table and {known} in schema=, and a time zone is neither "
                f"invented nor dropped: declare it as {right}, or convert it in a function as the source"
            )

    def _whole(self) -> pa.Schema:
        """Names and types of the source's columns, as far as they are wanted."""
        if self._described is None:
            schema = self._given if self._given is not None else self._ask()
            self._check(schema)
            self._set("_described", schema)
        assert self._described is not None
        return self._described

    def _ask(self) -> pa.Schema:
        """The schema of the source."""
        try:
            if isinstance(self.source, str):
                return _simplified(self._parquet(self.source).schema)
            if isinstance(self.source, _WholeTable):
                return self.source.schema()
            given = run_in_thread(self.source, "table") if gives_coroutines(self.source) else self._read()  # type: ignore[arg-type]
            return self._table(given).schema
        except ConfigurationError:
            raise
        except Exception as error:
            problem = f"{self!r}: the source cannot be read: {self._told(error)}"
            raise ConfigurationError(problem) from self._shown(error)

    def _check(self, schema: pa.Schema, all_columns: Sequence[str] = ()) -> None:
        for name in (*self.key, *(self.columns or all_columns)):
            if name not in schema.names:
                raise ConfigurationError(
                    f"{self!r}: the table has no column {name!r}; {did_you_mean(name, schema.names)}"
                )
        if not self._chosen(schema):
            raise ConfigurationError(f"{self!r}: the table has no columns but the key's; there is nothing to add")

    def _chosen(self, schema: pa.Schema | None = None) -> list[str]:
        """The columns of a row."""
        if self.columns is not None:
            return [*self.columns]
        return [name for name in (self._whole() if schema is None else schema).names if name not in self.key]

    def _shown(self, error: BaseException) -> BaseException | None:
        """An error, unless its words may hold what the path hides."""
        return None if isinstance(self.source, str) and _shown_path(self.source) != self.source else error

    def _told(self, error: BaseException) -> str:
        return type(error).__name__ if self._shown(error) is None else f"{type(error).__name__}: {error}"

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
        elif isinstance(source, pa.Table):
            shown = f"<table of {source.num_rows} rows>"
        else:
            shown = function_name(source)
        if isinstance(source, _WholeTable):
            shown = describe(source.enricher)
        columns = "" if self.columns is None else f", columns={[*self.columns]!r}"
        return f"TableEnricher({shown}, key={[*self.key]!r}{columns})"


def _shown_path(path: str) -> str:
    """A path without what may be a secret in a URI: the credentials, and the options of the file system."""
    return re.sub(r"//[^/]*@", "//***@", path.partition("?")[0] + ("?***" if "?" in path else ""))


def _simplified(schema: pa.Schema) -> pa.Schema:
    """The same without what is a matter of storage: dictionaries, and nanoseconds, which Spark has not."""
    fields = []
    for column in schema:
        kind = column.type.value_type if kinds.is_dictionary(column.type) else column.type
        if kinds.is_timestamp(kind) and kind.unit == "ns":
            kind = pa.timestamp("us", kind.tz)
        fields.append(pa.field(column.name, kind))
    return pa.schema(fields)


def _from_rows(rows: Sequence[Any], schema: pa.Schema | None) -> pa.Table:
    for row in rows:
        if not isinstance(row, Mapping):
            raise ConfigurationError(f"the source gave a row that is {describe(row)}; a mapping is needed")
    if schema is not None:
        return pa.Table.from_pylist([*map(row_converter(schema), rows)], schema)
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})
