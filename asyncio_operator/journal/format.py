"""The files of a journal, format version 1: a directory of Parquet files that anything can read.

    answers-TIME-ID-NUMBER.parquet      answers of one writer. TIME: milliseconds since the epoch, 13 digits; ID: 16
                                        hexadecimal digits, another one for every writer; NUMBER: 6 digits
    compacted-TIME-ID-NUMBER.parquet    answers of other files, which it may replace
    _journal/description-HASH.json      what the journal holds; HASH: the first 12 digits of the SHA-256 of its bytes
    _journal/compaction-TIME-ID.json    which files were replaced by which
    .NAME.ID.part                       a file that is being written, where there is a rename; it is ignored

Names that begin with ``_`` or ``.`` are passed over by Spark, Arrow, DuckDB and Polars when they read a directory. No
file is ever changed, and no name is used for a second content.

The description is a JSON object. Columns are written as in Spark's DDL, so that ``as_schema`` reads them:

    {"format": 1, "identity": "...", "keys": "tailnum string", "answers": "model string, seats int"}

A Parquet file has the key columns, the answer's columns and those of `ABOUT`, which `docs/journal-format.md` explains.
Its metadata has, as ``asyncio_operator.journal``, the format and the HASH of its description. Its pages have checksums.
As ``asyncio_operator.footer`` the metadata have the checksum of the footer: 8 hexadecimal digits, the CRC-32 of its
bytes with eight characters "0" instead of these digits. A file without it is valid too. A key of integers is stored as
bigint and a key of floats as double.

A record of a compaction is a JSON object, written after all its files:

    {"format": 1, "time": milliseconds, "written": [names of files], "replaced": [names of files]}
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds

from asyncio_operator.arrow.schema import as_schema
from asyncio_operator.arrow.type_names import quoted_name, spark_type
from asyncio_operator.errors import AsyncOperatorError, ConfigurationError, StateError

FORMAT = 1

ANSWERS, COMPACTED = "answers", "compacted"

DIRECTORY = "_journal"  # Of descriptions and records.

METADATA = b"asyncio_operator.journal"

CHECKSUM = b"asyncio_operator.footer"

_NO_CHECKSUM = b"0" * 8

DATA_NAME = re.compile(rf"(?:{ANSWERS}|{COMPACTED})-\d{{13}}-[0-9a-f]{{16}}-\d{{6}}\.parquet")

DESCRIPTION_NAME = re.compile(r"description-([0-9a-f]{12})\.json")

RECORD_NAME = re.compile(r"compaction-(\d{13})-[0-9a-f]{16}\.json")

ABOUT = pa.schema(
    [
        ("_found", pa.bool_()),
        ("_time", pa.timestamp("us", "UTC")),
        ("_attempts", pa.int32()),
        ("_latency_ms", pa.float64()),
        ("_weights", pa.map_(pa.string(), pa.float64())),
        ("_run", pa.string()),
        ("_expires", pa.timestamp("us", "UTC")),
        ("_row", pa.int32()),
        ("_call", pa.int64()),
    ]
)
"""The columns beside those of the key and the answer."""

MEGABYTE = 1 << 20


WIDEST = pa.decimal128(38, 18)  # For decimals that have more digits than Spark's.


class JournalError(AsyncOperatorError):
    """A journal cannot be read or written: its place does not answer, is full, or refuses."""


@dataclass(frozen=True)
class Description:
    """What a journal holds."""

    identity: str  # What was asked, without secrets.
    keys: pa.Schema  # Names and stored types of the key columns.
    answers: pa.Schema  # Names and stored types of the answer's columns.

    @cached_property
    def text(self) -> str:
        """Its file."""
        about = {
            "format": FORMAT,
            "identity": self.identity,
            "keys": ddl(self.keys),
            "answers": ddl(self.answers),
        }
        return json.dumps(about, indent=1, ensure_ascii=False) + "\n"

    @cached_property
    def hash(self) -> str:
        """It names the file of this description."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    @cached_property
    def mark(self) -> bytes:
        """The metadata of `schema` in the bytes of a footer: two texts of Thrift's compact protocol, each after its
        type and length."""
        return _in_footer(METADATA) + _in_footer(self.schema.metadata[METADATA])

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{DIRECTORY}/description-{self.hash}.json"

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of its Parquet files, and what their metadata say."""
        metadata = {METADATA: f"{FORMAT} {self.hash}".encode()}
        return pa.schema([*self.keys, *self.answers, *ABOUT], metadata=metadata)

    @cached_property
    def key_type(self) -> pa.DataType:
        """The type of its keys: that of the only key column, or a struct with the fields "0", "1" and so on."""
        types = self.keys.types
        return types[0] if len(types) == 1 else pa.struct([(str(i), kind) for i, kind in enumerate(types)])

    @classmethod
    def read(cls, data: bytes, shown: str) -> Description:
        """The description in a file, which messages call `shown`; StateError if it is damaged, or of another format."""
        about = read_json(data, shown)
        try:
            return cls(str(about["identity"]), as_schema(about["keys"]), as_schema(about["answers"]))
        except (KeyError, TypeError, ConfigurationError) as error:
            raise StateError(f"the journal's file {shown} is damaged ({error!r}): restore it") from error


def read_json(data: bytes, shown: str) -> dict[str, Any]:
    """A description or a record. Raises StateError if it is damaged or of another format."""
    try:
        about = json.loads(data)
        version = about["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise StateError(f"the journal's file {shown} is damaged ({error!r}): restore it") from error
    if version != FORMAT:
        raise StateError(
            f"the journal's file {shown} is of format {version!r}, and this version of asyncio-operator knows format "
            f"{FORMAT}: install the version that wrote it, or use another path"
        )
    return dict(about)


def file_name(kind: str, milliseconds: int, writer: str, number: int) -> str:
    """The name of a data file; `writer` is an ID."""
    return f"{kind}-{milliseconds:013d}-{writer}-{number:06d}.parquet"


def encode(table: pa.Table, group: int = 1 << 16) -> bytes:
    """A data file with these rows, in the schema of the description. Zstandard; statistics are of the keys only."""
    sink = pa.BufferOutputStream()
    width = len(table.schema) - len(ABOUT)
    texts = [field.name for field in table.schema if kinds.is_string(field.type) or kinds.is_boolean(field.type)]
    about = {"write_statistics": table.schema.names[:width], "use_dictionary": texts, "compression": "zstd"}
    # A byte that was changed on its way is then an error, and not another answer.
    about["write_page_checksum"] = True
    # Without Arrow's own schema, which would add two kilobytes to each file: the description has it.
    with pq.ParquetWriter(sink, table.schema, store_schema=False, **about) as writer:
        writer.write_table(table, row_group_size=group)
        writer.add_key_value_metadata({**table.schema.metadata, CHECKSUM: _NO_CHECKSUM})
    data = bytes(sink.getvalue())
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[start:-8]
    # A footer has names, types, places and numbers of rows: changed, it would be another answer, or none.
    # The last one, as in `is_footer_right`: a key or an answer may hold the same bytes.
    head, _, rest = footer.rpartition(_SEAL)
    return data[:start] + head + _SEAL + b"%08x" % crc32(footer) + rest[len(_NO_CHECKSUM) :] + data[-8:]


def is_footer_right(footer: bytes) -> bool:
    """Whether a footer is as it was written; True for one without a checksum."""
    head, found, rest = footer.rpartition(_SEAL)
    digits = len(_NO_CHECKSUM)
    return not found or rest[:digits] == b"%08x" % crc32(head + found + _NO_CHECKSUM + rest[digits:])


def _in_footer(text: bytes) -> bytes:
    """A text of less than 128 bytes in Thrift's compact protocol, which footers are in: after its type and length."""
    return bytes([0x18, len(text)]) + text


_SEAL = _in_footer(CHECKSUM) + _in_footer(_NO_CHECKSUM)[:2]  # Before the digits of the checksum.


def stored_key_type(kind: pa.DataType) -> pa.DataType:
    """The type in which keys of a type are stored: the widest of Spark's whose keys are equal to them (law L10). Keys
    that it cannot hold are not stored."""
    if kinds.is_integer(kind):
        return pa.int64()
    if kinds.is_decimal(kind) and kind.precision > WIDEST.precision:
        return WIDEST
    return pa.float64() if kinds.is_floating(kind) else kind


def ddl(schema: pa.Schema) -> str:
    """The columns in Spark's DDL, which `as_schema` reads back in the types that Spark takes. ConfigurationError if a
    type cannot be stored."""
    columns = []
    for field in schema:
        kind = spark_type(field.type)
        if kind is None:
            raise ConfigurationError(f"a journal cannot store columns of type {field.type}: use a type that Spark has")
        columns.append(f"{quoted_name(field.name)} {kind}")
    return ", ".join(columns)
