"""Which files of a journal count: a listing, the records of compactions, and what a task has seen before.

A listing may lag behind, and files may vanish while it is used. So a reader trusts a file only when it has read its
footer, and passes over a replaced file only if it sees every file that took its place. That saves reading an answer
twice; that it counts once is the work of `answers`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from asyncio_operator.errors import StateError, describe_error
from asyncio_operator.journal.format import (
    DATA_NAME,
    DIRECTORY,
    FORMAT,
    METADATA,
    RECORD_NAME,
    Description,
    is_footer_right,
    read_json,
)
from asyncio_operator.journal.storage import Entry, Place

logger = logging.getLogger("asyncio_operator.journal")


class Record(NamedTuple):
    """A compaction that is complete: the name of its file, its end in milliseconds since the epoch, and names of data
    files."""

    name: str
    time: int
    written: frozenset[str]
    replaced: frozenset[str]


@dataclass(frozen=True, slots=True)
class Seen:
    """The files of a listing, for a task that must read only later ones: 8 bytes for each file."""

    hashes: frozenset[int] = frozenset()

    @classmethod
    def of(cls, names: Iterable[str]) -> Seen:
        """Those of these files."""
        return cls(frozenset(map(_hash, names)))

    def __contains__(self, name: str) -> bool:
        return _hash(name) in self.hashes


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


class Listing(NamedTuple):
    """All data files of a journal at one moment, its records of compactions, and the files that must be read: all but
    those that others in this listing replace. Older files come first."""

    files: Sequence[Entry]
    records: Sequence[Record]
    live: Sequence[Entry]


def check_description(place: Place, description: Description) -> None:
    """Raise FileNotFoundError if a journal does not have its description: a file would be of no journal."""
    try:
        place.open(description.name).close()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{description.name} is not there: the journal was deleted, or this machine does not see the driver's path"
        ) from error


def list_journal(place: Place) -> Listing:
    """The files of a journal. Records are read first: whatever they name was written before them."""
    records = []
    for entry in place.list(DIRECTORY):
        if not RECORD_NAME.fullmatch(entry.name):
            continue
        name = f"{DIRECTORY}/{entry.name}"
        try:
            about = read_json(read_file(place, name), f"{place.shown}/{name}")
            written, replaced = frozenset(about["written"]), frozenset(about["replaced"])
            records.append(Record(name, int(about["time"]), written, replaced))
        except FileNotFoundError:
            continue  # Another compaction has deleted it, because nothing is left of what it names.
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"the journal's file {place.shown}/{name} is damaged ({error!r}): restore it") from error
    records.sort(key=lambda record: (record.time, record.name))
    files = [entry for entry in place.list() if DATA_NAME.fullmatch(entry.name)]
    # By the time in their names, which follows the kind of the file.
    files.sort(key=lambda entry: entry.name.split("-", 2)[1:])
    names, covered = {entry.name for entry in files}, set[str]()
    # From the latest on: a file that took the place of others may have been replaced itself. Records of one moment
    # may be in any order, so it is repeated until nothing changes.
    changed = True
    while changed:
        changed = False
        for record in records:
            if not record.replaced <= covered and record.written <= names | covered:
                covered |= record.replaced
                changed = True
    return Listing(files, records, [entry for entry in files if entry.name not in covered])


def read_file(place: Place, name: str) -> bytes:
    """All bytes of a small file."""
    with place.open(name) as file:
        return bytes(file.read())


class DataFile(pq.ParquetFile):  # type: ignore[misc]
    """A data file that is open. `shown` names it in messages."""

    def __init__(self, source: pa.NativeFile, about: pq.FileMetaData, shown: str) -> None:
        super().__init__(source, metadata=about, page_checksum_verification=True)
        self.shown = shown


def open_file(place: Place, name: str, description: Description) -> DataFile | None:
    """A data file. None if it is not complete: it is ignored, with a warning. FileNotFoundError if it is gone; OSError
    if the place does not answer, or its end is damaged; StateError if it is of another journal or format."""
    shown = f"{place.shown}/{name}"
    source = place.open(name)
    try:
        tail = _tail(source)
        if not _is_ended(tail, source.size()):
            source.close()
            logger.warning("the journal's file %s is not complete and is ignored", shown)
            return None
        if not tail.endswith(_END) or not is_footer_right(tail[:-8]):
            raise OSError("its footer is damaged")
        # Arrow would read the footer once more.
        about = pq.read_metadata(pa.BufferReader(tail))
        file = DataFile(source, about, shown)
    except (OSError, pa.ArrowInvalid, EOFError, UnicodeDecodeError) as error:
        # Also for a footer that was changed: Arrow does not say in which file.
        source.close()
        raise OSError(f"the file {shown} cannot be read ({describe_error(error)})") from error
    found = (file.metadata.metadata or {}).get(METADATA, b"").decode(errors="replace")
    version, _, hash_ = found.partition(" ")
    if version == str(FORMAT) and hash_ == description.hash:
        return file
    file.close()
    problem = f"is of format {version!r}, not {FORMAT}" if found and version != str(FORMAT) else "is of another journal"
    raise StateError(f"the file {shown} {problem}: remove it, or use another path for the journal")


_END = b"PAR1"  # The first four bytes of a Parquet file, and the last ones of a complete file.
_LEAST = 12  # Bytes of a Parquet file without a footer. A shorter file that ends with `_END` has only begun.


def _is_ended(tail: bytes, size: int) -> bool:
    """Whether a file was complete: its last bytes are those of a complete file, or one bit of them was changed.

    A file that was cut ends so by chance only, once in 2 ** 27 times.
    """
    changed = int.from_bytes(tail[-4:], "big") ^ int.from_bytes(_END, "big")
    return size >= _LEAST and changed.bit_count() <= 1


_TAIL = 8192  # Bytes at the end of a file, in which its footer is unless it has tens of columns or of row groups.


def _tail(file: pa.NativeFile) -> bytes:
    """The footer of a data file and the 8 bytes behind it; less of a file that is not complete."""
    size = file.size()
    tail: bytes = file.read_at(min(size, _TAIL), max(0, size - _TAIL))
    length = 8 + int.from_bytes(tail[-8:-4], "little")
    if tail.endswith(_END) and len(tail) < length <= size:
        tail = file.read_at(length, size - length)
    return tail[-length:]


def is_whole(place: Place, entry: Entry, description: Description) -> bool:
    """Whether a data file ends as a Parquet file does. A file that is gone is not whole. It is opened only if its last
    bytes do not say that it is of this journal: that takes ten times as long. Other errors are those of `open_file`."""
    try:
        with place.open(entry.name) as file:
            tail = _tail(file)
        if not _is_ended(tail, entry.size):
            return False
        if tail.endswith(_END) and description.mark in tail and is_footer_right(tail[:-8]):
            return True
        whole = open_file(place, entry.name, description)
    except FileNotFoundError:
        return False
    if whole is None:
        return False
    whole.close()
    return True


def read_columns(file: DataFile, group: int, columns: list[str], description: Description) -> pa.Table:
    """Some columns of a row group, in the types of the journal. Raises OSError if the place does not answer, or the
    file is damaged."""
    schema = pa.schema([description.schema.field(name) for name in columns])
    try:
        return file.read_row_group(group, columns=columns).select(columns).cast(schema)
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException, KeyError, UnicodeDecodeError) as error:
        # Arrow does not say in which file.
        raise OSError(f"the file {file.shown} cannot be read ({describe_error(error)})") from error
