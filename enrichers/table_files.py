"""The Parquet files of a table in memory: which files a path means, and their rows as one Arrow table (law X12).

A directory is read as Spark reads it: hidden and half-written files are left out, and directories that are named
``name=value`` add a column. A directory whose table is more than its files is refused, and so is a part of one: Delta,
Hudi, Iceberg and Paimon, and the output of a streaming query, keep a log that says which files count. A list of files
is taken as given. Files are found by their key columns: one without a key column, or with a column of another type than
the others, is an error that names both. This module knows neither loops nor enrichers.

The types and values of columns in the names of directories, ``day=2024-01-31``, are those that Spark infers: it takes
values for int, bigint or date if all of them are, and for text if one is nothing else. What it would take for another
type (1.5, 1e5, a time) is refused with words: `schema=` says what it is.
"""

from __future__ import annotations

import datetime
import os
import posixpath
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds
from pyarrow import fs, parquet

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import cast_table, did_you_mean, shown_type

LOGS = {
    "_delta_log": "a Delta table",
    "_spark_metadata": "the output of a streaming query",
    ".hoodie": "a Hudi table",
}
"""Directories beside the files of a table, and whose log they hold."""

NAMED_LOGS = {
    "metadata": ("an Iceberg table", re.compile(r".+\.metadata\.json(\.\w+)?|version-hint\.text")),
    "schema": ("a Paimon table", re.compile(r"schema-\d+")),
    "_journal": ("a journal", re.compile(r"(description|compaction)-.+\.json")),
}
"""The same for directories with an ordinary name: what the name of a file in them must look like."""

READERS = 8
"""Files that are read at the same time: footers of remote files are mostly waited for."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table, and the values of the columns that its directories name."""

    path: str
    partition: Mapping[str, str | None] = field(default_factory=dict)


class TableFiles:
    """The files that a path, or a list of files, means.

    Raises:
        ConfigurationError: they are not a whole table, or the path is no Parquet file or directory.
        OSError: they cannot be read.
    """

    def __init__(self, source: str | Sequence[str]) -> None:
        if isinstance(source, str):
            self.system, path = _located(source)
            self.files = _files_of(self.system, path)
        else:
            located = [_located(one) for one in source]
            if len({path for _, path in located}) < len(located):
                raise ConfigurationError("the list has a file twice; its rows would be duplicated")
            self.system = located[0][0]
            for info in self.system.get_file_info([path for _, path in located]):
                if info.type == fs.FileType.Directory:
                    raise ConfigurationError(f"{info.path!r} is a directory; a list must name the files themselves")
            if any(system != self.system for system, _ in located):
                raise ConfigurationError("the files of the list are in different file systems")
            self.files = [TableFile(path) for _, path in located]

    def schema(self, keys: Sequence[str], columns: Sequence[str] | None) -> pa.Schema:
        """The columns of all files, then those that directories name. Only footers are read.

        Args:
            keys: columns that every file must have.
            columns: the other columns that are needed; None for all of them.
        """
        return self._joined(self._mapped(lambda one: self._opened(one).schema_arrow), keys, columns)

    def read(
        self,
        keys: Sequence[str],
        columns: Sequence[str] | None,
        types: pa.Schema | None,
        convert: Callable[[pa.Table, pa.Schema], pa.Table],
    ) -> pa.Table:
        """The rows of all files.

        Args:
            types: types that the user declared for columns; those of files may then differ.
            convert: makes columns of these types, or of those of all files, of the rows of one file.
        """
        wanted = None if columns is None else [*dict.fromkeys((*keys, *columns))]
        tables = self._mapped(lambda one: self._opened(one).read(columns=wanted))
        whole = self._joined([table.schema for table in tables], keys, columns, types)
        parts = []
        for one, table in zip(self.files, tables, strict=True):
            try:
                parts.append(convert(_completed(table, one, whole), whole))
            except pa.ArrowException as error:
                raise pa.ArrowInvalid(f"file {one.path!r}: {error}") from error
        return pa.concat_tables(parts)

    def _mapped(self, act: Callable[[TableFile], Any]) -> list[Any]:
        with ThreadPoolExecutor(min(READERS, len(self.files))) as pool:
            return [*pool.map(act, self.files)]

    def _opened(self, one: TableFile) -> parquet.ParquetFile:
        try:
            return parquet.ParquetFile(one.path, filesystem=self.system)
        except pa.ArrowInvalid as error:
            raise NotParquetError(f"file {one.path!r}: {error}") from error

    def _joined(
        self,
        schemas: Sequence[pa.Schema],
        keys: Sequence[str],
        columns: Sequence[str] | None,
        types: pa.Schema | None = None,
    ) -> pa.Schema:
        """One schema of all files: in the order of the first, with what later ones add."""
        partitions = [*self.files[0].partition]
        needed = None if columns is None else {*keys, *columns}
        declared = {} if types is None else {one.name: one.type for one in types}
        first: dict[str, tuple[pa.DataType, str]] = {}
        for one, schema in zip(self.files, schemas, strict=True):
            for key in keys:
                if key not in schema.names and key not in partitions and len(self.files) > 1:
                    raise ConfigurationError(
                        f"file {one.path!r} has no column {key!r}, which is a key; {did_you_mean(key, schema.names)}"
                    )
            for column in schema:
                name = column.name
                if needed is not None and name not in needed:
                    continue
                if name in partitions:
                    raise ConfigurationError(
                        f"column {name!r} is in file {one.path!r} and in the name of its directory; pass a list of "
                        "files to read what the files have"
                    )
                if schema.names.count(name) > 1:
                    raise ConfigurationError(
                        f"the table has several columns {name!r} in file {one.path!r}; rename all but one, or choose "
                        "others: columns="
                    )
                known, where = first.setdefault(name, (_simple(column.type), one.path))
                if name not in declared and not _alike(known, column.type):
                    shown = shown_type if shown_type(known) != shown_type(column.type) else str
                    raise ConfigurationError(
                        f"column {name!r} is {shown(known)} in file {where!r} and {shown(column.type)} in "
                        f"{one.path!r}; declare its type in schema=, or rewrite the files with one type"
                    )
        self._check_spelling([*first], schemas)
        fields = [pa.field(name, kind) for name, (kind, _) in first.items()]
        for name in partitions:
            if needed is None or name in needed:
                values = [one.partition[name] for one in self.files]
                fields.append(pa.field(name, declared[name] if name in declared else partition_type(name, values)))
        return pa.schema(fields)

    def _check_spelling(self, names: Sequence[str], schemas: Sequence[pa.Schema]) -> None:
        """Check that no file has a column in another spelling than another file: it would be null in one of them."""
        spelt: dict[str, str] = {}
        for name in names:
            other = spelt.setdefault(name.casefold(), name)
            for one, schema in zip(self.files, schemas, strict=True):
                if (name in schema.names) != (other in schema.names):
                    raise ConfigurationError(
                        f"column {other!r} is spelt {name!r} in some files, and file {one.path!r} has only one of "
                        "them; rewrite the files with one spelling"
                    )


class NotParquetError(Exception):
    """A file is not Parquet or not whole, or a path is of no file system that pyarrow knows."""


def _located(source: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path in it."""
    try:
        system, path = fs.FileSystem.from_uri(source)
    except ValueError as error:
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", source):
            raise NotParquetError(str(error)) from error
        return fs.LocalFileSystem(), os.path.abspath(source)
    return system, path


def _files_of(system: fs.FileSystem, path: str) -> list[TableFile]:
    """The files of a whole table."""
    path = path.rstrip("/") or path
    info = system.get_file_info(path)
    if info.type == fs.FileType.NotFound:
        glob = "; for a pattern pass the list of files, as of glob.glob(path)" if "*" in path else ""
        raise FileNotFoundError(f"{path}{glob}")
    _refuse_parts(system, path)
    if info.type != fs.FileType.Directory:
        return [TableFile(path)]
    listed = system.get_file_info(fs.FileSelector(path, recursive=True))
    base = path.rstrip("/") + "/"
    entries = {one.path.removeprefix(base): one.type == fs.FileType.Directory for one in listed}
    _refuse_logs(path, entries)
    files = []
    for name in sorted(name for name, directory in entries.items() if not directory):
        parts = name.split("/")
        if any(map(_is_hidden, parts)):
            continue
        partition = dict(partition_of(part, base + name) for part in parts[:-1])
        files.append(TableFile(base + name, partition))
        if [*partition] != [*files[0].partition]:
            raise ConfigurationError(
                f"the directories of {files[0].path!r} and {base + name!r} name different columns; pass a list of "
                "files, or a directory that has one table"
            )
    if not files:
        raise ConfigurationError(f"{path!r} has no Parquet file: there are no columns to look up")
    return files


def _is_hidden(name: str) -> bool:
    """Whether Spark leaves out a file or directory of this name, or a writer has not finished it."""
    return (
        (name.startswith("_") and "=" not in name)
        or name.startswith(".")
        or name.endswith(("._COPYING_", ".crc", ".inprogress", ".in-progress", ".pending"))
        or ".inprogress." in name
    )


def _refuse_logs(path: str, entries: Mapping[str, bool]) -> None:
    """Check that no directory at or below a path has a log."""
    directories = {name for name, directory in entries.items() if directory}
    for name in entries:
        while name := posixpath.dirname(name):
            directories.add(name)
    for name in sorted(directories):
        above, own = posixpath.split(name)
        if above and any(map(_is_hidden, above.split("/"))):
            continue
        inside = (
            [posixpath.basename(one) for one in entries if posixpath.dirname(one) == name] if own in NAMED_LOGS else []
        )
        kind = _kind_of_log(own, inside)
        if kind is not None:
            raise _more_than_files(posixpath.join(path, above).rstrip("/"), name, kind)


def _refuse_parts(system: fs.FileSystem, path: str) -> None:
    """Check that no directory above a path has a log. Those that may not be looked at are taken to have none."""
    paths = [path]
    if isinstance(system, fs.LocalFileSystem):
        paths.append(os.path.realpath(path))
    above = dict.fromkeys(posixpath.dirname(one) for one in paths)
    for one in [*above]:
        while one not in ("", "/") and posixpath.dirname(one) != one:
            one = posixpath.dirname(one)
            above[one] = None
    for directory in above:
        for name in (*LOGS, *NAMED_LOGS):
            log = posixpath.join(directory, name)
            try:
                if system.get_file_info(log).type != fs.FileType.Directory:
                    continue
                listed = system.get_file_info(fs.FileSelector(log)) if name in NAMED_LOGS else []
            except OSError:
                continue
            kind = _kind_of_log(name, [one.base_name for one in listed])
            if kind is not None:
                raise _more_than_files(directory, name, kind, path)


def _kind_of_log(name: str, inside: Collection[str]) -> str | None:
    """Whose log a directory of this name is."""
    if name in NAMED_LOGS:
        kind, pattern = NAMED_LOGS[name]
        return kind if any(map(pattern.fullmatch, inside)) else None
    return LOGS.get(name)


def _more_than_files(directory: str, log: str, kind: str, part: str | None = None) -> ConfigurationError:
    what = f"{directory!r} is {kind}" if part is None else f"{part!r} is a part of {directory!r}, which is {kind}"
    log = posixpath.basename(log)
    if log == "_spark_metadata":
        ways = "a table that Spark reads, source=spark.read.parquet(path).toArrow()"
    else:
        ways = (
            "a function that returns a pyarrow.Table, such as source=lambda: "
            "deltalake.DeltaTable(path).to_pyarrow_table() with the package deltalake (for others pyiceberg or hudi), "
            "a table that Spark reads, source=spark.read.format(...).load(path).toArrow()"
        )
    return ConfigurationError(
        f"{what}: its log ({log}) says which files are part of it, and others are old or were never committed. Pass "
        f"{ways}, or a list of the files that are part of it"
    )


def simplified(schema: pa.Schema) -> pa.Schema:
    """The schema in types that Spark has: values instead of dictionaries and views, microseconds instead of
    nanoseconds."""
    return pa.schema([pa.field(column.name, _simple(column.type)) for column in schema])


def _simple(kind: pa.DataType) -> pa.DataType:
    if kinds.is_dictionary(kind):
        kind = kind.value_type
    if kinds.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if kinds.is_string_view(kind):
        return pa.string()
    return pa.binary() if kinds.is_binary_view(kind) else kind


def _alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two types differ in nothing that Spark sees."""
    narrow = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    one, other = _simple(one), _simple(other)
    return bool(narrow.get(one, one) == narrow.get(other, other))


def _completed(table: pa.Table, one: TableFile, whole: pa.Schema) -> pa.Table:
    """The columns of all files: those of directories, and nulls for those that this file does not have."""
    columns: dict[str, Any] = {}
    for column in whole:
        if column.name in one.partition:
            value = partition_value(column.name, one.partition[column.name], column.type)
            columns[column.name] = pa.repeat(value, len(table))
        elif column.name in table.column_names:
            columns[column.name] = table[column.name]
        else:
            columns[column.name] = pa.nulls(len(table), column.type)
    return pa.table(columns)


# -- columns in the names of directories


NULL = "__HIVE_DEFAULT_PARTITION__"
"""The value of a directory for rows whose column is null."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_LIKE_A_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}(-[0-9]{1,2})?")
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")


def partition_of(directory: str, file: str) -> tuple[str, str | None]:
    """The column and the value of a directory's name; None for null.

    Raises:
        ConfigurationError: the name is not ``name=value``, or has an escape whose meaning is unknown.
    """
    name, equals, value = directory.partition("=")
    if not (name and equals and value):
        raise ConfigurationError(
            f"file {file!r} is in the directory {directory!r}, whose name is not name=value: Spark does not read it as "
            "a part of the table; pass a list of files, or the directory that has them"
        )
    if any(int(code, 16) > 0x7F for code in _ESCAPE.findall(directory)):
        raise ConfigurationError(
            f"the directory {directory!r} has an escaped byte that is not ASCII; its text is not known: read it in a "
            "function as the source"
        )
    return _unescaped(name), None if value == NULL else _unescaped(value)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)


def partition_type(name: str, values: Sequence[str | None]) -> pa.DataType:
    """The type that Spark infers for these values of a column.

    Raises:
        ConfigurationError: it is none of int, bigint, date and string.
    """
    given = {value for value in values if value is not None}
    if given and all(map(_INTEGER.fullmatch, given)):
        numbers = [*map(int, given)]
        for kind, bits in ((pa.int32(), 31), (pa.int64(), 63)):
            if all(-(1 << bits) <= number < 1 << bits for number in numbers):
                return kind
    if given and all(map(_is_date, given)):
        return pa.date32()
    if any(map(_is_text, given)) or (any(map(_is_date, given)) and any(map(_INTEGER.fullmatch, given))):
        return pa.string()
    shown = f"such as {min(given)!r}" if given else "which are all null"
    raise ConfigurationError(
        f"the type of column {name!r} cannot be known from the names of directories, {shown}; declare the columns in "
        f'schema=, as in schema="{name} string, ..."'
    )


def _is_date(value: str) -> bool:
    if not _DATE.fullmatch(value):
        return False
    try:
        datetime.date.fromisoformat(value)
    except ValueError:
        return False
    return True


def _is_text(value: str) -> bool:
    """Whether Spark can take a value for nothing but text."""
    if _LIKE_A_DATE.fullmatch(value):
        return not _is_date(value)
    is_number = value.strip().lower() in ("nan", "infinity")
    return value[0].isalpha() and not is_number and not re.match("T[0-9]", value)


def partition_value(name: str, value: str | None, kind: pa.DataType) -> Any:
    """The value as a scalar of a type.

    Raises:
        ConfigurationError: it is not of that type, or needs a time zone.
    """
    if value is None:
        return pa.scalar(None, kind)
    if kinds.is_timestamp(kind) and kind.tz is not None:
        raise ConfigurationError(
            f"column {name!r} is in the names of directories, which have no time zone; declare it as timestamp_ntz"
        )
    try:
        if kinds.is_integer(kind):
            if not _INTEGER.fullmatch(value):
                raise pa.ArrowInvalid("it is no integer")
            return pa.scalar(int(value), kind)
        return cast_table(pa.table({name: [value]}), pa.schema([(name, kind)]))[name][0]
    except (pa.ArrowException, OverflowError) as error:
        raise ConfigurationError(
            f"the directory {name}={value} is no {shown_type(kind)}, the type of column {name!r}: {error}"
        ) from error
