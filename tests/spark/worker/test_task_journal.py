"""The journal of a task: how far ahead it asks, and two attempts at once (laws J1, J4)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext

from asyncio_operator import Journal
from asyncio_operator.journal import writer
from asyncio_operator.journal.files import Seen
from asyncio_operator.journal.identity import open_journal, wanted_description
from asyncio_operator.journal.later_answers import AHEAD, FEWEST, MOST, JournalReader
from asyncio_operator.journal.storage import open_place
from asyncio_operator.lookup.key_batch import PENDING, Calls
from asyncio_operator.spark.worker.process import this_process
from asyncio_operator.spark.worker.task_journal import JournalTask, TaskJournal
from asyncio_operator.state.entries import ABSENT
from asyncio_operator.testing import ManualClock
from enrichers import FunctionEnricher
from tests.keyed import key_batch
from tests.spark.worker.tasks import chained, task_for

ADDED = pa.schema([("x", pa.int64())])
KEYS = list(range(20))


def journal_of(path: Path, flush_every: float = 3600.0) -> JournalTask:
    journal = Journal(path, flush_every=flush_every)
    wanted = wanted_description("x", pa.schema([("id", pa.int64())]), ADDED)
    description = open_journal(open_place(journal.location), wanted)
    return JournalTask(journal, description, Seen(), False, "test")


def begun(journal: JournalTask, source: FunctionEnricher, attempt: int) -> Iterator[pa.RecordBatch]:
    """An attempt of a task, up to where it reads its input."""
    task = task_for(source, journaled=True, journal=journal)
    context = TaskContext()
    context._stageId, context._partitionId, context._attemptNumber = 1, 0, attempt
    output = chained([task], [pa.RecordBatch.from_pydict({"id": pa.array(KEYS, pa.int64())})])

    def run() -> Iterator[pa.RecordBatch]:
        TaskContext._taskContext = context
        yield from output

    return run()


def rows(batches: Iterator[pa.RecordBatch]) -> dict[int, int]:
    return {row["id"]: row["x"] for batch in batches for row in batch.to_pylist()}


def known(journal: JournalTask) -> dict[int, int]:
    """The answers that a reader gets."""
    read = JournalReader(open_place(journal.journal.location), journal.description).read(pa.array(KEYS))
    values = read.table["x"].to_pylist()
    return {key: values[start] for key, start, count in zip(KEYS, read.starts, read.counts, strict=True) if count == 1}


@pytest.fixture(autouse=True)
def _context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "_taskContext", None)


def test_J1_a_task_asks_for_the_keys_of_half_a_second_of_calls_because_answers_of_others_come(tmp_path: Path) -> None:
    journal, clock = journal_of(tmp_path), ManualClock()
    reader = JournalReader(open_place(journal.journal.location), journal.description, monotonic=clock)
    reader.begin()

    def most(answers: int, seconds: float) -> int:
        for _ in range(10):
            clock.advance(seconds / 10)
            reader.count(answers // 10)
            reader.pace()
        return reader.most

    assert reader.most == FEWEST, "nothing is known of the calls"
    assert most(2_000, 10) == 200 * AHEAD
    assert most(20, 100) == FEWEST, "what was long ago counts less"
    assert most(10_000_000, 100) == MOST


def test_J1_a_warm_worker_reads_a_journal_that_was_deleted_and_made_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    asked: list[int] = []

    async def look_up(key: int) -> Any:
        asked.append(key)
        return {"x": len(asked)}

    source = FunctionEnricher(look_up, "x long")
    first = rows(begun(journal_of(path), source, 0))
    assert rows(begun(journal_of(path), source, 1)) == first
    shutil.rmtree(path)
    again = journal_of(path)
    second = rows(begun(again, source, 2))
    assert sorted(asked) == sorted(KEYS * 2), "the answers are gone with the files"
    assert rows(begun(again, source, 3)) == second == known(again)
    assert len(asked) == 2 * len(KEYS)


def test_J1_a_known_answer_that_expires_on_its_way_is_not_used(tmp_path: Path) -> None:
    wall = ManualClock(100.0)
    journal = TaskJournal(journal_of(tmp_path), ADDED, False, "", replace(this_process, wall=wall))
    row = pa.struct([("_row", pa.int32()), ("_found", pa.bool_()), ("x", pa.int64())])
    kind = pa.struct([("ends", pa.int64()), ("rows", pa.list_(row))])

    def answer(ends: int | None, x: int) -> dict[str, Any]:
        return {"ends": ends, "rows": [{"_row": 0, "_found": True, "x": x}]}

    column = pa.array([answer(101_000_000, 7), answer(None, 8), None], kind)

    def recalled() -> list[Any]:
        batch = key_batch(pa.RecordBatch.from_pydict({"id": [1, 2, 3]}), (0,))
        journal.recall(batch, column)
        return [None if one is PENDING else one.answer()["x"] for one in batch.outcomes]

    assert recalled() == [7, 8, None]
    wall.advance(1)
    assert recalled() == [None, 8, None]


def test_what_waits_for_a_journal_is_bounded_also_where_the_first_answer_of_each_call_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MOST_WAITING", 2**20)
    added, row = pa.schema([("x", pa.string())]), {"x": "x" * 10_000}
    journal = TaskJournal(journal_of(tmp_path), added, False, "", replace(this_process, drive=lambda _: None))
    calls = 0
    while journal.has_room:
        journal.learn(range(100), [None, *[row] * 99])
        calls += 1
    assert calls <= 2, "each has about a megabyte"


async def test_J7_an_answer_of_a_cache_is_as_old_in_the_journal_as_it_is(tmp_path: Path) -> None:
    task = journal_of(tmp_path)
    task = replace(task, journal=replace(task.journal, expire_after=60.0))
    process = replace(this_process, loop=asyncio.get_running_loop, wall=ManualClock(1000.0))
    journal = TaskJournal(task, ADDED, False, "", process)
    assert journal.keep(1, {"x": 1}, came=950.0)
    assert journal.keep(2, {"x": 2}, came=940.0), "it has expired, and is not written"
    await journal.flush()
    await asyncio.to_thread(journal.finish, False)
    [row] = pq.read_table(tmp_path).to_pylist()
    assert (row["id"], row["_time"].timestamp(), row["_expires"].timestamp()) == (1, 950, 1010)


def test_J7_after_a_failed_write_an_answer_of_a_cache_is_said_not_to_be_written_and_not_to_be_late(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    writers: list[writer.JournalWriter] = []
    process = replace(this_process, monotonic=clock, drive=writers.append)
    journal = TaskJournal(journal_of(tmp_path), ADDED, False, "", process)
    journal.learn([1], ["no row"])
    clock.advance(3600)
    writers[0].write_due()
    assert not journal.keep(2, {"x": 2}, came=0.0)
    texts = [record.getMessage() for record in caplog.records]
    assert any("answers are not written: " in text and "do not fit the journal" in text for text in texts)
    assert not any("keep up" in text for text in texts)


async def test_J3_L6_an_answer_is_written_with_what_it_took_and_is_not_known_to_a_refresh(tmp_path: Path) -> None:
    task, process = journal_of(tmp_path), replace(this_process, loop=asyncio.get_running_loop)
    journal, next_one = (TaskJournal(task, ADDED, False, "", process) for _ in range(2))
    journal.learn([1], [{"x": 1}], Calls(3, [0.25], [{"tokens": 2.0}]))
    await journal.flush()
    await asyncio.to_thread(journal.finish, False)
    [row] = pq.read_table(tmp_path).to_pylist()
    assert (row["_attempts"], row["_latency_ms"], row["_weights"]) == (3, 250, [("tokens", 2.0)])
    # A cache that refreshes an answer wants a new one of the source.
    assert [one is ABSENT for one in (*await next_one.find([1]), *await next_one.renew([1]))] == [False, True]
    await next_one.flush()
