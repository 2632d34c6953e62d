"""The journal of a lookup in a task: answers that are known, and new ones on their way to the writer.

Known answers come in two ways. Spark's join brings those that the driver knew; they are a column of the input, and
their keys have an outcome before the batch is read (`recall`). Files that came since are read here, before a call is
made, for the keys that would need one (`find`). Reading is done in a thread, so that calls go on meanwhile.

Laws: J1, and J2: when a task ends, in whatever way, it writes what it has.

New answers are noted as Python keys, with mappings or rows of tables, and the writer makes columns of them. An answer
whose key these columns cannot hold is left out: no row of the source can have such a key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from asyncio_operator.arrow.column_answers import ColumnAnswers
from asyncio_operator.arrow.columns import collected
from asyncio_operator.arrow.decimals import cast_exactly
from asyncio_operator.arrow.key_arrays import Ints, in_utc, key_array, key_parts
from asyncio_operator.arrow.key_fit import fit_values
from asyncio_operator.checks import seconds
from asyncio_operator.engine.timing import wake
from asyncio_operator.errors import describe_error
from asyncio_operator.journal.answers import AnswerBatch, weights_array
from asyncio_operator.journal.files import Seen
from asyncio_operator.journal.format import Description, JournalError
from asyncio_operator.journal.later_answers import FEWEST, UNKNOWN, JournalReader
from asyncio_operator.journal.options import Journal
from asyncio_operator.journal.storage import Place, beside, goes_on, open_place
from asyncio_operator.journal.writer import JournalWriter
from asyncio_operator.lookup.answers import size_of
from asyncio_operator.lookup.key_batch import ONE_CALL, Answer, Calls, KeyBatch
from asyncio_operator.lookup.places import KnownAnswers
from asyncio_operator.policies.shutdown import TASK_END, TASK_GRACE_PERIOD
from asyncio_operator.state.entries import ABSENT

if TYPE_CHECKING:
    from asyncio_operator.spark.worker.process import WorkerProcess

logger = logging.getLogger("asyncio_operator.journal")

ENTRY = 400  # Bytes of a key, of its places in lists and of a row, beside the values of the row.
SAMPLED = 8  # One of this many answers is measured.

LAST_WRITE = TASK_END - TASK_GRACE_PERIOD
"""Seconds for the last write of a task that was ended: by law X7 its end takes 5, and its calls have had some."""

Noted = tuple[Any, Any, float, int | None, float | None, Mapping[str, float] | None]
"""An answer that has come: its canonical key; the answer, checked (a mapping, a list of mappings, `ColumnAnswers`, or
None for a miss); the time in seconds since the epoch; the calls that it took, and seconds of the last of them, or None
if a cache had it; and what it weighed beside its calls, by unit, or None. A class would cost as much as all the rest of
noting it."""


@dataclass(frozen=True, slots=True)
class JournalTask:
    """What a task needs to know of its journal: plain data, made on the driver."""

    journal: Journal
    description: Description
    seen: Seen  # The files whose answers the input has as a column.
    column: bool  # Whether it has one.
    application: str  # Begins the text of `_run`.
    # How often the driver has found the journal empty. What a worker keeps of an earlier one is old.
    generation: int = 0


class TaskJournal(KnownAnswers):
    """The journal of one lookup of a task.

    `recall` is called by one thread, `finish` by the task's main thread, and the rest on the loop.
    `label` names the task in the text of `_run`.
    """

    source = "journal"

    def __init__(self, task: JournalTask, found: pa.Schema, timed: bool, label: str, process: WorkerProcess) -> None:
        journal, location = task.journal, task.journal.location
        self.column = task.column  # Whether the input has the column of known answers.
        self._location = location
        self._expire_after = None if journal.expire_after is None else seconds(journal.expire_after)
        self._task = task
        self._found = found  # The columns that rows get.
        self._timed = timed  # Outcomes say where they came from.
        # Bytes of an answer: some are looked at.
        self._size = self._until_looked_at = 0
        self._room: asyncio.Future[None] | None = None
        self._process = process
        self._wall = process.wall
        self._loop = process.loop()
        self._reader: JournalReader | None = None
        self._read_as = str(location), task.description.hash, task.seen, self._expire_after, journal.keep_missing
        self.keeps = f"{location} {task.description.hash} {task.generation}"
        # Each problem once.
        self._warn = cache(partial(logger.warning, "the journal %s: %s", location))
        self._place = open_place(location)
        self._writer = JournalWriter(
            self._place,
            task.description,
            label=f"{task.application}-{label}",
            columns=lambda noted: [noted_columns(noted, task.description, journal.keep_missing)],
            flush_every=seconds(journal.flush_every),
            expire_after=self._expire_after,
            on_room=lambda: self._loop.call_soon_threadsafe(lambda: wake(self._room)),
            clock=process.wall,
            monotonic=process.monotonic,
            new_id=process.new_id,
            drive=process.drive,
        )

    # -- answers that came with the input

    def recall(self, batch: KeyBatch, column: pa.StructArray) -> None:
        """Set the outcomes of the keys whose answers came with the rows. The payload of the batch has the number of
        each row's key; the column has the known answer of each row (see `spark.journal`)."""
        codes: Ints = batch.payload.key_of
        # Written from the last row to the first, so that the first row of a key stays. The last place is for nulls.
        first = np.zeros(len(batch.keys) + 1, np.int64)
        first[codes[::-1]] = np.arange(len(codes))[::-1]
        column = column.take(pa.array(first[:-1]))
        ends, several = column.flatten()
        now = round(self._wall() * 1_000_000)
        lives = np.asarray(ends.fill_null(np.iinfo(np.int64).max)) > now
        known = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False) & lives)
        if not len(known):
            return
        offsets = several.offsets.to_numpy()
        _, _, *columns = several.values.flatten()
        table = _table(columns, self._found, len(several.values))
        answers = ColumnAnswers(table, offsets[:-1][known], (offsets[1:] - offsets[:-1])[known])
        outcomes, timed = batch.outcomes, self._timed
        for place, answer in zip(known.tolist(), answers, strict=True):
            outcomes[place] = Answer(answer, "journal", 0, None) if timed else answer
        batch.known = len(known)

    # -- answers of later files

    @property
    def most(self) -> int:
        return FEWEST if self._reader is None else self._reader.most

    async def find(self, keys: Sequence[Any]) -> Sequence[Any]:
        if self._reader is None:
            task, process = self._task, self._process
            self._reader = process.readers.borrow(
                self._read_as,
                lambda: JournalReader(
                    open_place(self._location),
                    task.description,
                    monotonic=process.monotonic,
                    since=task.seen,
                    expire_after=self._expire_after,
                    keep_missing=task.journal.keep_missing,
                    clock=process.wall,
                ),
            )
            self._reader.begin()
        reader = self._reader
        reader.pace()
        if not reader.has_files and not reader.is_due():
            return [ABSENT] * len(keys)
        read = asyncio.wrap_future(beside(partial(self._read, keys, reader), self._process.start))
        try:
            await _while_it_goes_on(read, reader.place)
            answers = read.result()
        except JournalError:
            # The next task begins anew: a thread that hangs would hold this one.
            self._reader = None
            raise
        finally:
            read.cancel()
        reader.count(len(answers) - answers.count(ABSENT))
        return answers

    def _read(self, keys: Sequence[Any], reader: JournalReader) -> Sequence[Any]:
        read = reader.read(_stored_keys(keys, self._task.description))
        names = self._found.names
        columns = [column.combine_chunks() for column in read.table.select(names).columns]
        table = _table(columns, self._found, read.table.num_rows)
        answers = ColumnAnswers(table, read.starts, np.maximum(read.counts, 0))
        return [ABSENT if count == UNKNOWN else one for one, count in zip(answers, read.counts.tolist(), strict=True)]

    # -- new answers

    def learn(self, keys: Sequence[Any], answers: Sequence[Any], calls: Calls = ONE_CALL) -> None:
        about = repeat(calls.attempts), calls.latencies, calls.weights
        self._note(list(zip(keys, answers, repeat(self._wall()), *about, strict=False)))

    def keep(self, key: Any, answer: Any, came: float) -> bool:
        """See `KnownAnswers`. The calls that such an answer took are not known."""
        writer = self._writer
        if not writer.has_room and writer.error is None:
            self._warn("it does not keep up with the answers of the cache: some are not written yet")
            return False
        life = self._expire_after
        if life is None or came + life > self._wall():
            self._note([(key, answer, came, None, None, None)])
        return writer.error is None

    def _note(self, some: list[Noted]) -> None:
        count = len(some)
        self._until_looked_at -= count
        if self._until_looked_at < 0:
            looked_at = [one[1] for one in some[::SAMPLED]]
            self._size, self._until_looked_at = ENTRY + size_of(looked_at) // len(looked_at), SAMPLED
        if self._reader is not None:
            self._reader.count(count)
        try:
            self._writer.append(some, count, count * self._size)
        except Exception as error:
            # The writer has failed: `room` and `finish` raise its error.
            self._warn(f"answers are not written: {describe_error(error)}")

    async def flush(self) -> None:
        """See `KnownAnswers`. `finish` waits until everything is written."""
        if self._reader is not None:
            self._process.readers.give_back(self._read_as, self._reader)
            self._reader = None

    @property
    def has_room(self) -> bool:
        """See `KnownAnswers`. After a failure there is none: `room` raises it."""
        return self._writer.has_room

    async def room(self) -> None:
        """See `KnownAnswers`. It raises if the journal cannot be written, or its place hangs."""
        writer = self._writer
        writer.check()
        while not writer.has_room:
            # Another call may wait for it too.
            room = self._room if self._room is not None and not self._room.done() else self._loop.create_future()
            self._room = room
            await _while_it_goes_on(room, self._place)
            writer.check()

    def finish(self, failed: bool) -> None:
        """Wait until everything is written. The run has ended. It raises if that is not possible, unless the task has
        failed, or Spark needs no more rows: then an error is only logged, and the wait is short."""
        try:
            self._writer.close(LAST_WRITE if failed else None)
        except Exception as error:
            if not failed:
                raise
            logger.warning("%s", error)


async def _while_it_goes_on(done: asyncio.Future[Any], place: Place) -> None:
    """Wait on the loop for work on a place, which runs beside it: a place that hangs must not hold up others."""
    for most in goes_on(done.done, place):
        await asyncio.wait([done], timeout=most)


def _table(columns: Sequence[pa.Array], found: pa.Schema, rows: int) -> pa.Table:
    """Columns of rows, in the types that are found."""
    if not len(found):
        # A table without columns has no rows.
        return pa.table({"": pa.nulls(rows)})
    cast = [cast_exactly(in_utc(column), field.type) for column, field in zip(columns, found, strict=True)]
    return pa.Table.from_arrays(cast, schema=found)


def noted_columns(noted: Sequence[Noted], description: Description, keep_missing: bool = True) -> AnswerBatch:
    """Some answers in columns, one at least: in the writer's thread. Left out are those whose key the journal cannot
    hold, and perhaps misses."""
    keys = _stored_keys([one[0] for one in noted], description)
    kept = np.logical_and.reduce([part.is_valid().to_numpy(zero_copy_only=False) for part in key_parts(keys)])
    if not keep_missing:
        kept &= np.array([one[1] is not None for one in noted])
    some = [one for one, is_kept in zip(noted, kept.tolist(), strict=True) if is_kept]
    _, answers, times, attempts, latencies, weights = zip(*some, strict=True) if some else [()] * 6
    return AnswerBatch(
        keys.filter(pa.array(kept)),
        collected(answers, description.answers),
        np.array(times, np.float64),
        pa.array(attempts, pa.int32()),
        # None becomes NaN, and then null.
        pa.array(np.array(latencies, np.float64) * 1000, from_pandas=True),
        weights_array(weights) if any(weights) else None,
    )


def _stored_keys(keys: Sequence[Any], description: Description) -> pa.Array:
    """Python keys in the types of the journal, null where a key does not fit."""
    kinds = description.keys.types
    parts = [keys] if len(kinds) == 1 else list(zip(*keys, strict=True))
    return key_array([fit_values(values, kind) for values, kind in zip(parts, kinds, strict=True)])
