"""`enrich` with a journal: an answer is paid for once (laws J1, J4 to J7, J9)."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator import Cache, ConfigurationError, Enricher, Hedge, Journal
from asyncio_operator.journal import storage
from asyncio_operator.journal.files import Seen
from asyncio_operator.journal.format import ABOUT, JournalError, ddl
from asyncio_operator.journal.identity import wanted_description
from asyncio_operator.journal.storage import Disk, Entry, open_place
from asyncio_operator.lookup import Lookup
from asyncio_operator.loop.thread import loop_thread
from asyncio_operator.spark import EnrichmentMetrics, enrich, read_journal, register_lookup
from asyncio_operator.spark.journal import most_broadcast
from asyncio_operator.spark.worker.process import this_process
from asyncio_operator.spark.worker.task_journal import JournalTask, TaskJournal
from asyncio_operator.state.entries import ABSENT
from enrichers import FunctionEnricher
from tests.spark.helpers import FROM_4_1, GONE, in_partitions, setting, wait_until
from tests.spark.journals import Calls, rows, sources

pytestmark = pytest.mark.spark

ANSWERS = pa.schema([("x", pa.string())])

NO_BROADCAST = ("spark.sql.autoBroadcastJoinThreshold", -1)


def table(spark: SparkSession, keys: list[Any], kind: str = "int", partitions: int = 1) -> DataFrame:
    return in_partitions(spark, [(key, number) for number, key in enumerate(keys)], f"id {kind}, n int", partitions)


KEYS = [1, 2, None, 3, 4, 1, 5, 3, 4]


def test_J1_J9_what_the_journal_holds_is_not_asked_again_by_any_action_or_job(
    spark: SparkSession, calls: Calls, journal: Journal
) -> None:
    metrics = EnrichmentMetrics(spark)
    df = table(spark, KEYS)
    options: dict[str, Any] = {"on": "id", "status_column": "how", "metrics": metrics}
    first = enrich(df, calls.source(), journal=journal, **options)
    expected = rows(first)
    assert [row[1:] for row in expected if row[0] == 4] == [(4, 1, "t4"), (4, 0, None), (8, 1, "t4"), (8, 0, None)]
    assert calls.new() == ["1", "2", "3", "4", "5"]
    assert (metrics.statistics().calls, metrics.statistics().journal_hits) == (5, 0)
    # Another action of the same DataFrame, which was planned before there were answers.
    metrics.reset()
    assert rows(first) == expected
    assert calls.new() == []
    assert (metrics.statistics().calls, metrics.statistics().journal_hits) == (0, 5)
    # Another job, with the answers in its plan.
    metrics.reset()
    second = enrich(df, calls.source(), journal=replace(journal), **options)
    assert rows(second) == expected
    assert calls.new() == []
    statistics = metrics.statistics()
    assert (statistics.rows, statistics.found, statistics.missing) == (9, 6, 3)
    assert (statistics.calls, statistics.journal_hits, statistics.cache_hits) == (0, 5, 0)
    assert "5 keys from the journal" in str(statistics)
    assert sources(second) == {
        ("found", "journal", 0, False): 8,
        ("missing", "journal", 0, False): 2,
        ("missing", "none", 0, False): 1,
    }
    # New keys alone are asked.
    more = enrich(table(spark, [5, 6, 3, 16]), calls.source(), journal=journal, on="id", status_column="how")
    assert sources(more)["found", "call", 1, True] == 2
    assert calls.new() == ["16", "6"]


def test_J1_errors_are_no_answers_and_misses_only_if_they_are_kept(
    spark: SparkSession, calls: Calls, journal: Journal
) -> None:
    df = table(spark, [9, 3, 1])
    found = enrich(df, calls.source(fails=True), on="id", journal=journal, on_error="null")
    assert [row.t for row in found.collect()] == [None, None, "t1"]
    assert calls.new() == ["1", "3", "9"]
    again = enrich(df, calls.source(fails=True), on="id", journal=journal, on_error="null")
    assert [row.t for row in again.collect()] == [None, None, "t1"]
    assert calls.new() == ["9"]
    without = replace(journal, keep_missing=False)
    enrich(df, calls.source(fails=True), on="id", journal=without, on_error="null").collect()
    assert calls.new() == ["3", "9"]
    assert read_journal(spark, journal).where("not _found").count() == 1


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_J5_the_order_of_rows_is_kept_by_every_join(
    spark: SparkSession, calls: Calls, journal: Journal, adaptive: str
) -> None:
    keys = [key * 7 % 50 for key in range(400)]
    df = table(spark, keys, partitions=4)
    known = range(0, 50, 2)
    enrich(table(spark, list(known)), calls.source(), on="id", journal=journal).collect()
    calls.new()
    answers = {key: [None] if key % 10 == 3 else [f"t{key}", *([None] if key % 10 == 4 else [])] for key in keys}
    expected = [(key, number, t) for number, key in enumerate(keys) for t in answers[key]]
    options: dict[str, Any] = {"on": "id", "journal": journal, "columns": ["t"]}
    with setting(spark, "spark.sql.adaptive.enabled", adaptive):
        if adaptive == "true":
            assert rows(enrich(df, calls.source(), **options)) == expected
        with setting(spark, *NO_BROADCAST):
            assert rows(enrich(df, calls.source(), **options)) == expected
            if adaptive == "true":
                free = enrich(df, calls.source(), mode="unordered", **options)
                assert sorted(map(str, rows(free))) == sorted(map(str, expected))
    assert not {int(key) for key in calls.new()} & set(known)


def test_J5_the_users_limit_of_a_broadcast_holds(spark: SparkSession) -> None:
    for text, size in (("-1", -1), ("10MB", 10 << 20), ("1g", 1 << 30), ("2048b", 2048), ("77", 77)):
        with setting(spark, NO_BROADCAST[0], text):
            assert most_broadcast(spark) == size


def test_J9_faces_of_the_output_know_answers_of_the_journal(
    spark: SparkSession, calls: Calls, journal: Journal
) -> None:
    df = table(spark, [1, 3, 4])
    source = calls.source()
    enrich(df, source, on="id", journal=journal).collect()
    options: dict[str, Any] = {"on": "id", "journal": journal}
    assert rows(enrich(df, source, how="inner", columns=["t"], prefix="p_", **options)) == [
        (1, 0, "t1"),
        (4, 2, "t4"),
        (4, 2, None),
    ]
    assert rows(enrich(df, source, columns=[], **options)) == [(1, 0), (3, 1), (4, 2), (4, 2)]
    with pytest.raises(Exception, match="has no row for key 3"):
        enrich(df, source, how="required", **options).collect()
    for others in ({"cache": Cache()}, {"remember": None, "hedge": Hedge(0.5), "mode": "unordered"}):
        more = enrich(table(spark, [1, 3, 4, 7]), source, **options, **others)
        assert len(rows(more)) == 5
    calls.new()
    assert rows(enrich(df, source, strategy="distinct", **options).orderBy("n", "x")) == [
        (1, 0, 1, "t1"),
        (3, 1, None, None),
        (4, 2, 0, None),
        (4, 2, 1, "t4"),
    ]
    assert calls.new() == []


@FROM_4_1
def test_J9_other_faces_refuse_a_journal_in_words(spark: SparkSession, calls: Calls, journal: Journal) -> None:
    source: Any = calls.source()
    options: dict[str, Any] = {"journal": journal}
    with pytest.raises(ConfigurationError, match="which a Lookup does not take"):
        Lookup(source, **options)
    with pytest.raises(ConfigurationError, match="which register_lookup does not take"):
        register_lookup(spark, "with_journal", source, on="id", **options)


def test_J2_a_journal_that_cannot_be_written_fails_the_task_with_one_clear_error(
    spark: SparkSession, journal: Journal, tmp_path: Path
) -> None:
    path = str(journal.path)

    def spoil() -> None:
        import os

        if os.path.isdir(path):
            shutil.rmtree(path)
            with open(path, "w"):
                """A file is where the directory was."""

    asked = str(tmp_path / "asked")

    async def look_up(key: int) -> Any:
        spoil()
        with open(asked, "a") as file:  # noqa: ASYNC230
            file.write("x")
        await asyncio.sleep(0.01)
        return {"x": key}

    source, short = FunctionEnricher(look_up, "x long"), replace(journal, flush_every=0.01)
    with pytest.raises(Exception, match="cannot be written") as caught:
        enrich(table(spark, list(range(2000))), source, on="id", journal=short, capacity=4).collect()
    assert "answers would be paid for again, so the task ends" in str(caught.value)
    assert 0 < len(Path(asked).read_text()) < 1000, "calls go on whose answers are lost"


def in_a_task(path: Path, program: Callable[[JournalTask], Awaitable[None]]) -> None:
    """Run a program with the journal of a task, which a driver has made, on the loop of tasks."""
    journal = Journal(path, flush_every=3600)
    description = wanted_description("x", pa.schema([("id", pa.int64())]), ANSWERS)
    open_place(journal.location).put(description.name, description.text.encode())
    task = JournalTask(journal, description, Seen(), False, "test")

    async def main() -> None:
        await program(task)

    asyncio.run_coroutine_threadsafe(main(), loop_thread().loop).result(60)


def test_J2_a_place_that_hangs_while_it_is_read_ends_the_task_and_not_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "HANGS_AFTER", 0.2)
    gate = threading.Event()
    listed = Disk.list

    def hangs(self: Disk, path: str) -> list[Entry]:
        assert gate.wait(30)
        return listed(self, path)

    monkeypatch.setattr(Disk, "list", hangs)

    async def program(task: JournalTask) -> None:
        journal = TaskJournal(task, ANSWERS, False, "0", this_process)
        with pytest.raises(JournalError, match=r"did not answer for 0\.2 seconds"):
            await journal.find([1])
        await journal.flush()
        monkeypatch.setattr(Disk, "list", listed)
        monkeypatch.setattr(storage, "HANGS_AFTER", 20.0)  # A busy machine is no place that hangs.
        following = TaskJournal(task, ANSWERS, False, "1", this_process)
        assert await following.find([1]) == [ABSENT]
        await following.flush()
        gate.set()

    in_a_task(tmp_path, program)


def test_J3_answers_of_every_type_and_columns_of_any_name_come_back_as_they_were(
    spark: SparkSession, journal: Journal
) -> None:
    moment = datetime(2026, 5, 1, 12, 30, 0, 123456, tzinfo=UTC)
    answer = {
        "flag": True,
        "price": Decimal("1.50"),
        "day": moment.date(),
        "at": moment,
        "local": moment.replace(tzinfo=None),
        "list": [1, None],
        "map": {"k": moment},
        "struct": {"x": 1, "y": ["t"]},
        "old": date(1000, 1, 1),
        "bytes": b"\0\1",
        "single": 1.5,
        "na`me": "ü",
    }
    asked = spark.sparkContext.accumulator(0)

    async def look_up(key: Any) -> Any:
        asked.add(1)
        return answer

    schema = (
        "flag boolean, price decimal(20,2), day date, at timestamp, local timestamp_ntz, list array<int>, "
        "map map<string,timestamp>, struct struct<x: bigint, y: array<string>>, old date, bytes binary, "
        "single float, `na``me` string"
    )
    keys = [(1, date(1200, 1, 1)), (None, date(2026, 1, 1)), (1, None), (1, date(1200, 1, 1))]
    df = in_partitions(spark, keys, "`a.b` int, `C d` date", 1).selectExpr("1 as known", "*", "2 as _0")
    source = FunctionEnricher(look_up, schema)
    legacy = setting(spark, "spark.sql.parquet.datetimeRebaseModeInRead", "LEGACY")
    with legacy, setting(spark, "spark.sql.session.timeZone", "America/New_York"):
        planned = enrich(df, source, on=["a.b", "C d"], journal=journal, remember=None)
        first = planned.collect()
        assert asked.value == 1
        # The task reads what came since the plan, and Spark's join finds what was there before it.
        assert planned.collect() == first
        second = enrich(df, source, on=["a.b", "C d"], journal=journal)
        assert second.collect() == first
        assert second.columns == [*df.columns, *answer]
    assert asked.value == 1
    assert first[0]["at"].astimezone(UTC) == moment
    assert bytes(first[0]["bytes"]) == answer["bytes"]
    # Any reader of Parquet has the columns with the types that the journal's description names.
    plain = spark.read.option("datetimeRebaseMode", "CORRECTED").parquet(journal.location.for_spark)
    named = spark.createDataFrame([], f"`a.b` bigint, `C d` date, {schema}, {ddl(ABOUT)}")
    assert plain.dtypes == named.dtypes
    assert plain.select(*[f"`{name.replace('`', '``')}`" for name in answer]).first() == first[0][4:]


def test_J1_answers_in_columns_are_kept_too_and_half_a_file_is_ignored(
    spark: SparkSession, calls: Calls, journal: Journal, tmp_path: Path
) -> None:
    path = str(tmp_path / "calls")

    class InColumns(Enricher):
        in_memory = True
        max_batch = 10

        def schema(self) -> pa.Schema:
            return pa.schema([("v", pa.string())])

        def key_schema(self) -> pa.Schema:
            return pa.schema([("id", pa.int64())])

        async def lookup_columns(self, keys: pa.Array) -> pa.Table:
            with open(path, "a") as file:  # noqa: ASYNC230
                file.write("".join(f"{key}\n" for key in keys.to_pylist()))
            found = sorted(key for key in keys.to_pylist() for _ in range(key % 3))
            return pa.table({"id": pa.array(found, pa.int64()), "v": [f"v{key}" for key in found]})

    df = in_partitions(spark, [(key,) for key in range(20)], "id int", 1)
    expected = [(key, f"v{key}" if key % 3 else None) for key in range(20) for _ in range(max(1, key % 3))]
    assert rows(enrich(df, InColumns(), on="id", journal=journal)) == expected
    assert len(calls.new()) == 20
    half = Path(journal.path) / "answers-1800000000000-0123456789abcdef-000000.parquet"
    half.write_bytes(b"PAR1 and then the machine was gone")
    (Path(journal.path) / "notes.txt").write_text("not of the journal")
    assert rows(enrich(df, InColumns(), on="id", journal=journal)) == expected
    assert calls.new() == []


def test_X7_a_task_with_a_journal_leaves_no_thread_and_a_limit_writes_what_came(
    spark: SparkSession, calls: Calls, journal: Journal
) -> None:
    enrich(spark.range(0, 500, numPartitions=1), calls.source(), on="id", journal=journal).limit(3).collect()

    async def look_up(key: int) -> Any:
        import threading

        return {"names": [thread.name for thread in threading.enumerate() if "journal" in thread.name]}

    def left() -> list[str]:
        found = enrich(spark.range(0, 4, numPartitions=2), FunctionEnricher(look_up, "names array<string>"), on="id")
        return [name for row in found.collect() for name in row.names]

    wait_until(lambda: not left(), GONE, "no thread of a journal is left")
    asked = {int(key) for key in calls.new()}
    assert {row.id for row in read_journal(spark, journal).collect()} == asked
