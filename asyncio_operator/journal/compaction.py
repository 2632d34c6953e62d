"""Makes few files of many, and drops what no reader needs any more, while jobs read and write.

A compaction writes new files, reads their footers back, and then writes one record of what they replace. Killed before
the record, it leaves files whose answers are in two places, and count once. Nothing is deleted before a record is
`grace` old, and then only what other files hold: they exist, or were themselves replaced by files that do. Two
compactions at once both write everything; the next one merges that. A replaced file that comes back, because a listing
lags or a record is gone, changes no answer: what was dropped had expired, or lived no longer than a later answer.

`Compactor` has the steps, for an engine that brings the rows of a key together itself.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import pyarrow as pa

from asyncio_operator.clock import Clock, wall
from asyncio_operator.errors import StateError
from asyncio_operator.journal.answers import worth_keeping
from asyncio_operator.journal.files import Listing, check_description, list_journal, open_file, read_columns
from asyncio_operator.journal.format import COMPACTED, DIRECTORY, FORMAT, Description, encode, file_name
from asyncio_operator.journal.storage import Place

logger = logging.getLogger("asyncio_operator.journal")

PART_LIFE = 86_400.0  # Seconds after which a file that never got its name is deleted. No write takes a day.
SAMPLED = 8  # Files of which a row group is read to estimate the memory of all rows.
TRIES = 3  # A compaction starts anew if another one deletes a file that it reads.


class Compacted(NamedTuple):
    """What a compaction did: numbers of files, and of rows."""

    files_read: int
    files_written: int
    files_deleted: int
    rows_read: int
    rows_written: int


@dataclass(eq=False)
class Compactor:
    """The steps of a compaction: `inputs`, `write` for tables in which all rows of a key are together, `commit`."""

    place: Place
    description: Description
    _: KW_ONLY
    clock: Clock = wall  # Seconds since the epoch.
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex  # Returns 32 hexadecimal digits that no other call returns.

    def __post_init__(self) -> None:
        self._id = self.new_id()[:16]
        self._number = 0

    def inputs(self) -> dict[str, tuple[int, int]]:
        """The files to read, with their rows and their uncompressed bytes. Files that are not complete are left."""
        found = {}
        for entry in list_journal(self.place).live:
            try:
                file = open_file(self.place, entry.name, self.description)
            except FileNotFoundError:
                continue
            if file is not None:
                with file:
                    groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
                found[entry.name] = (file.metadata.num_rows, sum(group.total_byte_size for group in groups))
        return found

    def read(self, name: str) -> Iterator[pa.Table]:
        """The rows of a file, a row group at a time. FileNotFoundError: another compaction deleted it, start anew."""
        file = open_file(self.place, name, self.description)
        if file is None:
            raise FileNotFoundError(name)
        with file:
            for group in range(file.num_row_groups):
                yield read_columns(file, group, self.description.schema.names, self.description)

    def memory(self, inputs: Mapping[str, tuple[int, int]]) -> float:
        """About the bytes of all rows of `inputs` in memory. Encoded, a text that repeats is much smaller."""
        names = [*inputs]
        sampled = [next(self.read(name), None) for name in names[:: max(1, len(names) // SAMPLED)]]
        largest = max((table.nbytes / table.num_rows for table in sampled if table is not None), default=0.0)
        return max(largest * sum(rows for rows, _ in inputs.values()), sum(size for _, size in inputs.values()))

    def write(self, table: pa.Table) -> tuple[str | None, int]:
        """Write what a reader may need of rows in which each key is complete. Returns the file's name, None if nothing
        is left, and the number of rows."""
        kept = worth_keeping(table, len(self.description.keys), self.clock())
        if not kept.num_rows:
            return None, 0
        name = file_name(COMPACTED, round(self.clock() * 1000), self._id, self._number)
        self._number += 1
        check_description(self.place, self.description)
        self.place.put(name, encode(kept.replace_schema_metadata(self.description.schema.metadata)))
        return name, kept.num_rows

    def commit(self, written: Iterable[str], replaced: Iterable[str]) -> None:
        """Declare that the written files hold all that is needed of the replaced ones. Raises StateError if one of them
        cannot be read back."""
        written = sorted(written)
        for name in written:
            self._check(name)
        now = round(self.clock() * 1000)
        about = {"format": FORMAT, "time": now, "written": written, "replaced": sorted(replaced)}
        name = f"{DIRECTORY}/compaction-{now:013d}-{self._id}.json"
        self.place.put(name, json.dumps(about).encode())

    def _check(self, name: str) -> None:
        file = open_file(self.place, name, self.description)
        if file is None:
            raise StateError(f"the file {self.place.shown}/{name} is not complete after it was written")
        file.close()

    def delete_replaced(self, grace: float) -> int:
        """Delete the files that were replaced `grace` seconds ago, and records that name none any more. Returns the
        number of data files that were deleted."""
        listing = list_journal(self.place)
        there = {entry.name for entry in listing.files}
        before = round(self.clock() * 1000) - round(grace * 1000)
        deleted = 0
        for record in listing.records:
            if record.time > before:
                continue
            old = record.replaced & there
            if not old:
                self.place.delete(record.name)
            elif self._holds(record.written & there, listing, old):
                for name in sorted(old):
                    self.place.delete(name)
                deleted += len(old)
                there -= old
        # What killed writers have left, when no writer can still be at it.
        for part in self.place.parts():
            if part.modified < self.clock() - max(grace, PART_LIFE):
                self.place.delete(part.name)
        return deleted

    def _holds(self, written: frozenset[str], listing: Listing, old: frozenset[str]) -> bool:
        """Whether the answers of old files are in others, which can be read now."""
        live = {entry.name for entry in listing.live}
        if live & old:
            return False
        try:
            for name in written:
                self._check(name)
        except (FileNotFoundError, StateError) as error:
            logger.warning("replaced files of the journal %s are not deleted yet: %r", self.place.shown, error)
            return False
        return True


def is_compact(inputs: Collection[str]) -> bool:
    """Whether a compaction of these files would change nothing."""
    return not inputs or (len(inputs) == 1 and next(iter(inputs)).startswith(COMPACTED))
