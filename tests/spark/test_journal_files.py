"""`read_journal` and `compact_journal`: which answers count, and what a compaction changes (laws J4, J5, J7)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import asyncio_operator.spark.journal as journaled
from asyncio_operator import ConfigurationError, Journal, StateError
from asyncio_operator.journal.files import list_journal
from asyncio_operator.journal.format import METADATA, JournalError
from asyncio_operator.journal.identity import open_journal, wanted_description
from asyncio_operator.journal.later_answers import JournalReader
from asyncio_operator.journal.storage import Place, open_place
from asyncio_operator.spark import compact_journal, enrich, read_journal
from asyncio_operator.spark.journal import Contents
from enrichers import FunctionEnricher
from tests.journal.helpers import answers_of, batch, described, write
from tests.spark.helpers import in_background, setting

pytestmark = pytest.mark.spark

HALF = "answers-1800000000000-0123456789abcdef-000000.parquet"


def values(frame: DataFrame) -> dict[int, list[str]]:
    """The answers by key; a miss is an empty list."""
    found: dict[int, list[str]] = {}
    for row in sorted(frame.collect(), key=lambda row: (row["id"], row["_row"])):
        found.setdefault(row["id"], []).extend([row["v"]] if row["_found"] else [])
    return found


def random_journal(path: Path, seed: int) -> Place:
    """Answers of few keys by many writers, at few different times, some expired, some in two files. While a test runs,
    none expires."""
    drawn, now = random.Random(seed), time.time()
    place = open_place(Journal(path).location)
    description = described(place)
    for number in range(40):
        keys = drawn.sample(range(12), 3)
        answers = {key: [f"{number}/{row}" for row in range(drawn.choice([0, 1, 1, 3]))] for key in keys}
        life = drawn.choice([None, None, 3000.0, 300_000.0])
        write(place, description, batch(answers, now - 60 * drawn.choice([10, 20, 30, 100])), expire_after=life)
    return place


@pytest.mark.parametrize("expire_after", [None, 900.0])
def test_J4_read_journal_gives_each_key_its_latest_living_answer_as_a_task_reads_it(
    spark: SparkSession, tmp_path: Path, expire_after: float | None
) -> None:
    place = random_journal(tmp_path / "with [brackets]", 1)
    journal = Journal(tmp_path / "with [brackets]", expire_after=expire_after)
    keys = list(range(12))
    reader = JournalReader(place, described(place), expire_after=expire_after)
    expected = answers_of(reader.read(pa.array(keys)), keys)
    assert values(read_journal(spark, journal)) == expected
    assert len(expected) > 0
    assert any(not rows for rows in expected.values())
    # Some replaced files are still there.
    compact_journal(spark, journal)
    assert values(read_journal(spark, journal)) == expected


def test_J7_a_compaction_makes_few_files_of_many_and_deletes_the_replaced_ones_after_the_grace(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = random_journal(tmp_path, 2)
    before, listed = values(read_journal(spark, tmp_path)), read_journal(spark, tmp_path)
    made = compact_journal(spark, tmp_path)
    assert (made.files_read, made.files_deleted) == (40, 0)
    assert 0 < made.files_written < 4
    assert 0 < made.rows_written < made.rows_read
    assert values(listed) == before, "a job that listed files can still read them"
    rows = spark.read.parquet(str(tmp_path)).count()
    assert rows == made.rows_read + made.rows_written, "a plain reader sees replaced files too"
    # The second one merges what the first has written, if that is more than one file.
    again = compact_journal(spark, tmp_path, grace=0)
    assert made.files_written + again.files_written + 40 == again.files_deleted + len(list_journal(place).files)
    assert len(list_journal(place).files) < 4
    assert values(read_journal(spark, tmp_path)) == before


@pytest.mark.parametrize("most_named", [0, 32])
def test_J4_a_half_written_file_is_ignored_among_few_files_and_many(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_named: int
) -> None:
    monkeypatch.setattr(journaled, "MOST_NAMED", most_named)
    place = open_place(Journal(tmp_path).location)
    write(place, described(place), batch({1: ["a"], 2: []}, time.time()))
    (tmp_path / HALF).write_bytes(b"PAR1 and then the machine was gone")
    (tmp_path / f".{HALF}.x.part").write_bytes(b"PAR1")
    assert values(read_journal(spark, tmp_path)) == {1: ["a"], 2: []}
    assert compact_journal(spark, tmp_path).files_written == 1
    assert values(read_journal(spark, Journal(tmp_path, keep_missing=False))) == {1: ["a"]}


@pytest.mark.parametrize("most_named", [0, 32])
def test_J4_a_file_with_another_name_holds_no_answers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_named: int
) -> None:
    monkeypatch.setattr(journaled, "MOST_NAMED", most_named)
    place = open_place(Journal(tmp_path).location)
    write(place, described(place), batch({1: ["a"]}, time.time()))
    # Such as what a person has exported, or a table that was appended here.
    pq.write_table(pa.table({"id": [2], "v": ["b"]}), tmp_path / "answers-2026.parquet")
    (tmp_path / "day=1").mkdir()
    pq.write_table(pa.table({"id": [3], "v": ["c"]}), tmp_path / "day=1" / "part-0.parquet")
    assert values(read_journal(spark, tmp_path)) == {1: ["a"]}
    assert compact_journal(spark, tmp_path)[:2] == (1, 1)


def test_J4_a_file_of_another_journal_or_format_is_an_error_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    place = open_place(Journal(one).location)
    write(place, described(place), batch({1: ["a"]}, time.time()))
    foreign = open_place(Journal(other).location)
    description = open_journal(foreign, replace(described(place), identity="not the same"))
    write(foreign, description, batch({2: ["not ours"]}, time.time()))
    [file] = other.glob("*.parquet")
    (one / file.name).write_bytes(file.read_bytes())

    async def nothing(key: int) -> None:
        """Every key is a miss."""

    asked = FunctionEnricher(nothing, "v string")
    for use in (
        lambda: read_journal(spark, one),
        lambda: compact_journal(spark, one),
        lambda: enrich(spark.range(1), asked, on="id", journal=Journal(one, identity="test")),
    ):
        with pytest.raises(StateError, match=rf"{file.name} is of another journal: remove it"):
            use()
    next_format = pq.ParquetFile(file).read().replace_schema_metadata({METADATA: b"2 0123456789ab"})
    pq.write_table(next_format, one / file.name)
    with pytest.raises(StateError, match="is of format '2', not 1"):
        read_journal(spark, one)


def test_J7_a_compaction_loses_no_file_that_the_session_would_pass_over(spark: SparkSession, tmp_path: Path) -> None:
    place = open_place(Journal(tmp_path).location)
    description = described(place)
    for key in range(20):
        write(place, description, batch({key: [f"answer{key:02}"]}, time.time() + key))
    # Not one of those from which a compaction estimates its memory.
    file = next(one for one in sorted(tmp_path.glob("*.parquet"))[1::2] if b"answer" in one.read_bytes())
    file.write_bytes(file.read_bytes().replace(b"answer", b"nswera", 1))
    with setting(spark, "spark.sql.files.ignoreCorruptFiles", "true"):
        for use in (lambda: read_journal(spark, tmp_path).collect(), lambda: compact_journal(spark, tmp_path, grace=0)):
            with pytest.raises(Exception, match=f"reading file .*{file.name}"):
                use()
    assert file.exists()


def test_J6_what_is_no_journal_is_refused_in_words(spark: SparkSession, tmp_path: Path) -> None:
    for use in (read_journal, compact_journal):
        with pytest.raises(ConfigurationError, match=f"there is no journal at {tmp_path}"):
            use(spark, tmp_path)
        with pytest.raises(ConfigurationError, match="path is 7; it must be a local or mounted path"):
            use(spark, 7)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="spark is None; it must be a SparkSession"):
            use(None, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="grace is -1"):
        compact_journal(spark, tmp_path, grace=-1)
    described(open_place(Journal(tmp_path).location))
    assert read_journal(spark, tmp_path).collect() == []
    assert compact_journal(spark, tmp_path).files_written == 0


def test_J3_a_place_that_spark_cannot_read_is_named_with_what_it_needs(spark: SparkSession) -> None:
    description = wanted_description("x", pa.schema([("id", pa.int64())]), pa.schema([("v", pa.string())]))
    for path, needed in (("s3://bucket/answers", "hadoop-aws"), ("gs://bucket/answers", "Cloud Storage connector")):
        contents = Contents(Journal(path).location, description, (HALF,), 1, (HALF,))
        with pytest.raises(JournalError, match=f"Spark cannot read the journal .*/answers, .*; Spark needs .*{needed}"):
            contents.rows(spark)


def test_J4_two_jobs_at_once_lose_nothing_and_every_key_has_one_answer(spark: SparkSession, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", identity="the same", flush_every=0.01)

    def job(name: str) -> Callable[[], list[Any]]:
        async def look_up(key: int) -> Any:
            await asyncio.sleep(0.002)
            return [{"v": name}, {"v": f"{name}{key}"}]

        return enrich(
            spark.range(0, 60, numPartitions=1),
            FunctionEnricher(look_up, "v string"),
            on="id",
            journal=journal,
            capacity=2,
        ).collect

    threads = [in_background(job(name)) for name in ("a", "b")]
    for thread, _ in threads:
        thread.join(60)
    assert [len(outcome[0]) for _, outcome in threads] == [120, 120]
    found = values(read_journal(spark, journal))
    assert sorted(found) == list(range(60))
    assert all(answer in (["a", f"a{key}"], ["b", f"b{key}"]) for key, answer in found.items())
    [again] = [in_background(job("c"))]
    again[0].join(60)
    assert {row.id: row.v[0] for row in again[1][0]} == {key: answer[0] for key, answer in found.items()}
