"""Journals on local disks, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa

from asyncio_operator.arrow.column_answers import ColumnAnswers, in_order
from asyncio_operator.arrow.key_arrays import key_array
from asyncio_operator.arrow.key_index import ArrowKeys
from asyncio_operator.clock import Clock, wall
from asyncio_operator.journal.answers import AnswerBatch
from asyncio_operator.journal.compaction import TRIES, Compacted, Compactor, is_compact
from asyncio_operator.journal.files import Seen, list_journal
from asyncio_operator.journal.format import Description
from asyncio_operator.journal.identity import open_journal, wanted_description
from asyncio_operator.journal.later_answers import JournalReader
from asyncio_operator.journal.storage import Place
from asyncio_operator.journal.writer import JournalWriter

NOW = 1_800_000_000.0


def described(place: Place, keys: str = "long", answers: Sequence[tuple[str, pa.DataType]] = (("v", pa.string()),)):
    kinds = {"long": pa.int64(), "int": pa.int32(), "text": pa.string(), "double": pa.float64()}
    schema = pa.schema([("id", kinds[keys])])
    return open_journal(place, wanted_description("test", schema, pa.schema(list(answers))))


def batch(answers: Mapping[Any, Sequence[str]], time: float = NOW, kind: pa.DataType | None = None) -> AnswerBatch:
    """Answers by key, each a list of values of the column "v"; an empty list is a miss."""
    rows = pa.table({"v": pa.array([value for values in answers.values() for value in values], pa.string())})
    counts = np.array([len(values) for values in answers.values()])
    return AnswerBatch(pa.array(list(answers), kind), in_order(rows, counts), time)


def seen_at(place: Place) -> Seen:
    """All files that are there now."""
    return Seen.of(entry.name for entry in list_journal(place).files)


def append(writer: JournalWriter, one: AnswerBatch) -> int:
    size = one.keys.nbytes + one.answers.table.nbytes + 32 * len(one.keys)
    return writer.append([one], len(one.keys), size)


def write(place: Place, description: Description, *batches: AnswerBatch, **options: Any) -> JournalWriter:
    """Write a file for each batch."""
    writer = JournalWriter(place, description, flush_every=0.0, drive=JournalWriter.write_due, **options)
    for one in batches:
        append(writer, one)
    writer.close()
    return writer


def compact(
    place: Place, description: Description, *, grace: float = 3600.0, buckets: int = 1, clock: Clock = wall
) -> Compacted:
    """A compaction in the steps in which Spark does it. Each of the buckets has all rows of its keys."""
    for _ in range(TRIES - 1):
        with suppress(FileNotFoundError):
            return _compact(Compactor(place, description, clock=clock), description, grace, buckets)
    return _compact(Compactor(place, description, clock=clock), description, grace, buckets)


def _compact(compactor: Compactor, description: Description, grace: float, buckets: int) -> Compacted:
    deleted = compactor.delete_replaced(grace)
    inputs = compactor.inputs()
    if is_compact(inputs):
        return Compacted(len(inputs), 0, deleted, 0, 0)
    table = pa.concat_tables([table for name in inputs for table in compactor.read(name)])
    keys = key_array([column.combine_chunks() for column in table.columns[: len(description.keys)]])
    bucket = ArrowKeys(keys).hashes % np.uint64(buckets)
    written = [compactor.write(table.filter(pa.array(bucket == number))) for number in range(buckets)]
    names = [name for name, _ in written if name is not None]
    compactor.commit(names, inputs)
    deleted += compactor.delete_replaced(grace) if not grace else 0
    return Compacted(len(inputs), len(names), deleted, table.num_rows, sum(rows for _, rows in written))


def answers_of(known: ColumnAnswers, keys: Sequence[Any]) -> dict[Any, list[Any]]:
    """The values of "v" by key, without the keys that are unknown."""
    values = known.table["v"].to_pylist()
    found = zip(keys, known.starts.tolist(), known.counts.tolist(), strict=True)
    return {key: values[start : start + count] for key, start, count in found if count >= 0}


def read(place: Place, description: Description, keys: Sequence[Any], kind: pa.DataType | None = None, **options: Any):
    options.setdefault("clock", lambda: NOW + 1)
    return answers_of(JournalReader(place, description, **options).read(pa.array(keys, kind)), keys)


class Watched(Place):
    """A place on a disk that counts what is opened, and fails when asked to."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.opened: list[str] = []
        self.errors: list[Exception] = []
        self.puts = 0

    def put(self, name: str, data: bytes) -> None:
        self.puts += 1
        if self.errors:
            raise self.errors.pop(0)
        super().put(name, data)

    def open(self, name: str) -> pa.NativeFile:
        self.opened.append(name)
        return super().open(name)
