"""Reads the living answers of given keys from the files of a journal that came after a listing.

A task gets older answers from Spark's own join. Here it reads what came since: the answers of earlier attempts
of it, of other tasks, and of other jobs. The keys of later files are indexed once, in bounded memory. Of a file, only
row groups with one of the keys are read. Files beyond that memory are searched for every batch, without the row groups
whose statistics exclude all keys. In memory are the index, one row group, and the answers of the keys of a batch,
however many files there are.

Tasks of one journal and one plan use a `JournalReader` one after the other, and the next one gets the keys that were
read. Law: a task sees all files that existed when it began. It looks for later ones in at most 2 % of its time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from asyncio_operator.arrow.column_answers import ColumnAnswers
from asyncio_operator.arrow.key_arrays import Ints, key_array, key_parts
from asyncio_operator.arrow.key_fit import fit_keys
from asyncio_operator.arrow.key_index import KeyIndex
from asyncio_operator.clock import Clock, monotonic, wall
from asyncio_operator.errors import describe_error
from asyncio_operator.journal.answers import latest, living
from asyncio_operator.journal.files import DataFile, Seen, is_whole, list_journal, open_file, read_columns
from asyncio_operator.journal.format import MEGABYTE, Description, JournalError
from asyncio_operator.journal.storage import Entry, Place

ABOUT_ROWS = ["_found", "_time", "_run", "_expires", "_row", "_call"]

CODE = "_key of a search"

UNKNOWN = -1  # The count of a key without an answer.
TRIES = 3  # Files may be deleted again while a new listing is read.
MOST_BYTES = 64 * MEGABYTE  # Of keys and of their index: about three million numbers.
PER_ROW = 12  # Bytes of the index for a row.
LIST_AGAIN = 1.0  # Seconds after which a task looks for new files at the earliest.

MOST_LISTING = 50
"""It looks after this many times the time that the last look took: looking takes at most 2 % of a task."""

FEWEST, MOST = 10, 10_000  # Keys of one question.

AHEAD = 0.5
"""Seconds for which the keys of one question last: files that come later have answers for the others. If questions take
long they are for more keys, so that they take at most about 4 % of a task."""


@dataclass(eq=False)
class JournalReader:
    """Reads the files of a journal that were not there at a listing, for the tasks of this process.

    Any thread may call it. Reading waits for another reading.
    """

    place: Place
    description: Description
    _: KW_ONLY
    since: Seen = field(default_factory=Seen)  # The files that the caller has read in another way, replaced ones too.
    # Shortens the life of answers, in seconds from when they came; None: as they were written.
    expire_after: float | None = None
    keep_missing: bool = True  # Whether a miss is an answer. If not, a key whose latest answer is a miss is unknown.
    clock: Clock = wall  # Seconds since the epoch.
    monotonic: Clock = monotonic

    def __post_init__(self) -> None:
        self.most = FEWEST  # The number of keys that the next question should ask for.
        self.has_files = False  # Whether there were files to look into when it looked last.
        self._files: Sequence[Entry] = ()
        self._keys = LaterKeys(self.place, self.description)
        self._indexed: list[str] = []
        # Answers and the time in which they came: the pace of the task. And the seconds of the last question.
        self._done = 0.0
        self._begun = self.monotonic()
        self._took = 0.0
        self._lock = threading.Lock()
        self._next = 0.0

    def begin(self) -> None:
        """A task begins: it has to see the files that existed when it began."""
        self._next = 0.0
        self._begun, self._done = self.monotonic(), 0.0

    def count(self, answers: int) -> None:
        """The task got answers of calls, or of this. Called on the loop."""
        self._done += answers

    def pace(self) -> None:
        """Set `most`, before a question. Called on the loop."""
        lasted, ahead = self.monotonic() - self._begun, max(AHEAD, AHEAD * MOST_LISTING * self._took)
        if lasted > 0 and self._done:
            self.most = min(max(FEWEST, round(ahead * self._done / lasted)), MOST)
        if lasted > 4 * ahead:
            # The pace of long ago counts less and less.
            self._begun += lasted / 2
            self._done /= 2

    def is_due(self) -> bool:
        """Whether there may be files that were not listed yet."""
        return self.monotonic() >= self._next

    def read(self, keys: pa.Array) -> ColumnAnswers:
        """The latest living answers of distinct keys, which are as `AnswerBatch` has them. A null, or a key that the
        journal cannot hold, is unknown. JournalError if the place does not answer; StateError if a file is of another
        journal or format; TypeError if keys of this type are never equal to those of the journal."""
        with self._lock:
            begun, is_due = self.monotonic(), self.is_due()
            try:
                if is_due:
                    self._list()
                listed = self.monotonic()
                read = self._read(fit_keys(keys, self.description.key_type))
                self._took = self.monotonic() - listed
                return read
            except (OSError, pa.ArrowException) as error:
                raise JournalError(
                    f"the journal {self.place.shown} cannot be read ({describe_error(error)}): its answers would be "
                    "paid for again, so the task ends; check the place, and start the job again"
                ) from error
            finally:
                if is_due:
                    now = self.monotonic()
                    self._next = now + max(LIST_AGAIN, MOST_LISTING * (now - begun))

    def _list(self) -> None:
        listing = list_journal(self.place)
        # The files that were seen, and those that hold nothing but the answers of such files.
        seen = self.since
        known = {entry.name for entry in listing.files if entry.name in seen}
        for record in listing.records:
            if all(name in seen or name in known for name in record.replaced):
                known |= record.written
        self._files = [entry for entry in listing.live if entry.name not in known]
        self.has_files = bool(self._files)

    def _read(self, asked: pa.Array) -> ColumnAnswers:
        count = len(asked)
        tables = self._found(asked) if self._files and count else []
        if not tables:
            zeros = np.zeros(count, np.int64)
            return ColumnAnswers(self.description.answers.empty_table(), zeros, zeros + UNKNOWN)
        table = living(pa.concat_tables(tables), self.clock(), self.expire_after)
        codes = table[CODE].to_numpy()
        chosen = latest(table, codes)
        table, codes = table.take(pa.array(chosen)), codes[chosen]
        found = table["_found"].to_numpy()
        counts = np.full(count, UNKNOWN, np.int64)
        if self.keep_missing:
            counts[codes[~found]] = 0
        rows = np.bincount(codes[found], minlength=count)
        counts = np.where(rows > 0, rows, counts)
        table = table.select(self.description.answers.names).filter(pa.array(found))
        # Rows are in the order of their keys.
        return ColumnAnswers(table.combine_chunks(), np.cumsum(rows) - rows, counts)

    def _found(self, asked: pa.Array) -> list[pa.Table]:
        """The rows of the keys in all files, with the number of the key of each as `CODE`."""
        for _ in range(TRIES):
            try:
                return list(self._rows(asked))
            except FileNotFoundError:
                # A compaction has deleted it, and a file that took its place is in a new listing.
                self._list()
        self._files = [entry for entry in self._files if is_whole(self.place, entry, self.description)]
        return list(self._rows(asked))

    def _rows(self, asked: pa.Array) -> Iterator[pa.Table]:
        names = [entry.name for entry in self._files]
        if self._indexed != names:
            self._keys.set_files(names)
            self._indexed = names
        for name, hits in groupby(self._keys.find(asked), key=itemgetter(0)):
            file = open_file(self.place, name, self.description)
            if file is not None:
                with file:
                    for _, group, rows, codes in hits:
                        yield _picked(file, group, rows, codes, self.description)
        index, bounds = KeyIndex(asked), _range(key_parts(asked)[0])
        for name in names:
            file = None if name in self._keys.names else open_file(self.place, name, self.description)
            if file is not None:
                with file:
                    yield from self._searched(file, index, *bounds)

    def _searched(self, file: DataFile, index: KeyIndex, lowest: Any, highest: Any) -> Iterator[pa.Table]:
        """The rows of the keys in an index, in a file whose keys are not in memory."""
        for group in range(file.num_row_groups):
            if _may_have(file.metadata.row_group(group).column(0).statistics, lowest, highest):
                # The index gives places in the asked keys by the rows' keys.
                codes, rows = index.find(_keys_of(file, group, self.description))
                if len(rows):
                    yield _picked(file, group, rows, codes, self.description)


def _keys_of(file: DataFile, group: int, description: Description) -> pa.Array:
    """The keys of a row group."""
    table = read_columns(file, group, description.keys.names, description)
    return key_array([column.combine_chunks() for column in table.columns])


def _may_have(statistics: Any, lowest: Any, highest: Any) -> bool:
    """Whether the statistics of the first key column allow one of the keys, whose range is that of `_range`."""
    if lowest is None:
        return highest is not None
    if statistics is None or not statistics.has_min_max:
        return True
    try:
        return bool(statistics.min <= highest and statistics.max >= lowest)
    except TypeError:
        return True


def _picked(file: DataFile, group: int, rows: Ints, codes: Ints, description: Description) -> pa.Table:
    """Some rows of a row group, with the number of the key of each as `CODE`."""
    table = read_columns(file, group, [*description.answers.names, *ABOUT_ROWS], description)
    return table.take(pa.array(rows)).append_column(CODE, pa.array(codes))


def _range(part: pa.Array) -> tuple[object, object]:
    """The least and the greatest value, to be compared with statistics. The first is None if they are not compared,
    and both if there is no value."""
    if part.null_count == len(part):
        return None, None
    kind = part.type
    # Statistics leave out NaN, and those of decimals and times come in Python types that need care.
    if not (kinds.is_integer(kind) or kinds.is_string(kind) or kinds.is_date(kind)):
        return None, True
    bounds = pc.min_max(part)
    return bounds["min"].as_py(), bounds["max"].as_py()


class LaterKeys:
    """The keys of some files, in bounded memory: which rows of which row groups have the keys of a batch."""

    def __init__(self, place: Place, description: Description) -> None:
        self._place = place
        self._description = description
        self.names: frozenset[str] = frozenset()  # Of the files.
        # Name of the file, number of the row group and its keys; in the index they follow each other.
        self._groups: list[tuple[str, int, pa.Array]] = []
        self._starts: Ints = np.zeros(0, np.int64)
        self._index: KeyIndex | None = None

    def set_files(self, names: Sequence[str]) -> None:
        """Read the keys of new files, as far as there is room, and drop those of others. FileNotFoundError if one is
        gone."""
        wanted = set(names)
        groups = [one for one in self._groups if one[0] in wanted]
        held = {name for name, _, _ in groups}
        room = MOST_BYTES - sum(array.nbytes + PER_ROW * len(array) for _, _, array in groups)
        for name in names:
            if name in held or room <= 0:
                continue
            file = open_file(self._place, name, self._description)
            if file is None:
                continue  # It may be complete later, and is searched until then.
            with file:
                if PER_ROW * file.metadata.num_rows > room:
                    continue
                held.add(name)
                for group in range(file.num_row_groups):
                    array = _keys_of(file, group, self._description)
                    groups.append((name, group, array))
                    room -= array.nbytes + PER_ROW * len(array)
        arrays = [array for _, _, array in groups]
        self.names, self._groups = frozenset(held), groups
        self._starts = np.cumsum([0, *map(len, arrays)])
        self._index = KeyIndex(pa.concat_arrays(arrays)) if arrays else None

    def find(self, asked: pa.Array) -> Iterator[tuple[str, int, Ints, Ints]]:
        """The rows of keys, by row group: file, row group, rows, and the position of the key of each in `asked`."""
        if self._index is None:
            return
        rows, codes = self._index.find(asked)
        group_of = np.searchsorted(self._starts, rows, side="right") - 1
        # Rows of a group in their order, because they are taken from it.
        order = np.lexsort((rows, group_of))
        rows, codes, group_of = rows[order], codes[order], group_of[order]
        for number in np.unique(group_of):
            name, group, _ = self._groups[number]
            own = slice(*np.searchsorted(group_of, [number, number + 1]))
            yield name, group, rows[own] - self._starts[number], codes[own]
