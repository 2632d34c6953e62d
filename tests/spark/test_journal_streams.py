"""A journal on streams, in chains and with `distinct` (laws J1, J5, J8, C1)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator import Journal
from asyncio_operator.spark import EnrichmentMetrics, compact_journal, enrich, plan
from tests.spark.helpers import in_partitions, setting
from tests.spark.journals import Calls, rows, sources
from tests.spark.test_streaming import finished, stream, write

pytestmark = pytest.mark.spark


def keys(directory: Path, *batches: list[int]) -> None:
    """Files of keys, with one micro-batch for each."""
    for batch in batches:
        write(directory, ({"id": key} for key in batch))


def run(frame: DataFrame, directory: Path) -> list[Any]:
    """The rows of the next micro-batches, in order."""
    output: list[Any] = []

    def collect(batch: DataFrame, _: int) -> None:
        output.extend(rows(batch))

    started = frame.writeStream.foreachBatch(collect).trigger(availableNow=True)
    finished(started.option("checkpointLocation", str(directory / "checkpoint")).start())
    return output


def test_J8_a_stream_finds_answers_of_earlier_runs_and_of_earlier_micro_batches(
    spark: SparkSession, calls: Calls, journal: Journal, tmp_path: Path
) -> None:
    enrich(spark.range(1, 3), calls.source(), on="id", journal=journal).collect()
    assert calls.new() == ["1", "2"]
    keys(tmp_path / "in", [2, 1, 4], [4, 3, 1, 5])
    # Without memory and cache: a micro-batch knows nothing of the one before it but what the journal has.
    options: dict[str, Any] = {"on": "id", "journal": replace(journal, flush_every=0.01), "remember": None}
    found = run(enrich(stream(spark, tmp_path / "in", "id long"), calls.source(), **options), tmp_path)
    assert found[:4] == [(2, 1, "t2"), (1, 1, "t1"), (4, 1, "t4"), (4, 0, None)]
    assert found[4:] == [(4, 1, "t4"), (4, 0, None), (3, None, None), (1, 1, "t1"), (5, 1, "t5")]
    assert calls.new() == ["3", "4", "5"]
    # A compaction, whose replaced files are gone, between a plan and its run.
    planned = enrich(stream(spark, tmp_path / "in", "id long"), calls.source(), **options)
    compact_journal(spark, journal, grace=0)
    keys(tmp_path / "in", [5, 6])
    assert run(planned, tmp_path) == [(5, 1, "t5"), (6, 1, "t6")]
    assert calls.new() == ["6"]


def test_J8_a_further_attempt_of_a_micro_batch_asks_only_for_the_rest(
    spark: SparkSession, calls: Calls, journal: Journal, tmp_path: Path
) -> None:
    keys(tmp_path / "in", [1, 2, 9, 5])
    # One call after another. The identity is that of both sources.
    options: dict[str, Any] = {"on": "id", "capacity": 1, "retry": None, "remember": None}
    options["journal"] = replace(journal, identity="calls")
    with pytest.raises(StreamingQueryException, match="enough"):
        run(enrich(stream(spark, tmp_path / "in", "id long"), calls.source(fails=True), **options), tmp_path)
    assert calls.new() == ["1", "2", "9"]
    assert not list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")), "the micro-batch has failed"
    found = run(enrich(stream(spark, tmp_path / "in", "id long"), calls.source(), **options), tmp_path)
    assert found == [(key, 1, f"t{key}") for key in (1, 2, 9, 5)]
    assert calls.new() == ["5", "9"]


def test_C1_lookups_with_journals_follow_each_other_each_with_its_own(
    spark: SparkSession, calls: Calls, tmp_path: Path
) -> None:
    first, second = Journal(tmp_path / "first"), Journal(tmp_path / "second")
    other = Calls(tmp_path / "other calls")

    def chain() -> DataFrame:
        df = in_partitions(spark, [(7,), (8,), (14,), (7,)], "id int", 2)
        one = enrich(df, calls.source(), on="id", journal=first)
        two = enrich(one, other.source(), on="t", prefix="y_", journal=second)
        return enrich(two, other.source(), on="y_t", prefix="z_")

    expected = rows(chain())
    assert expected == [
        (7, 1, "t7", 2, "tt7", 3, "ttt7"),
        (8, 1, "t8", 2, "tt8", 3, "ttt8"),
        (14, 2, "t14", 3, "tt14", 4, "ttt14"),
        (14, 2, "t14", 3, "tt14", 0, None),
        (14, 2, "t14", 0, None, None, None),
        (14, 0, None, None, None, None, None),
        (7, 1, "t7", 2, "tt7", 3, "ttt7"),
    ]
    assert (sorted(set(calls.new())), len(set(other.new()))) == (["14", "7", "8"], 6)
    assert rows(chain()) == expected
    assert (calls.new(), sorted(set(other.new()))) == ([], ["tt14", "tt7", "tt8"])


def test_J1_with_distinct_only_keys_without_a_living_answer_are_asked(
    spark: SparkSession, calls: Calls, journal: Journal
) -> None:
    metrics = EnrichmentMetrics(spark)
    df = in_partitions(spark, [(key % 6, number) for number, key in enumerate(range(30))], "id long, n int", 4)
    options: dict[str, Any] = {"on": "id", "journal": journal, "strategy": "distinct", "metrics": metrics}
    expected = sorted(map(str, rows(enrich(df, calls.source(), on="id"))))
    calls.new()
    with setting(spark, "spark.sql.autoBroadcastJoinThreshold", -1):
        few = enrich(df.where("id < 4"), calls.source(), **options)
        few.count()
        few.collect()
        assert calls.new() == ["0", "1", "2", "3"], "each once, although Spark evaluates it twice"
        metrics.reset()
        all_rows = enrich(df, calls.source(), **options, status_column="how")
        assert sorted(map(str, rows(all_rows))) == expected
        assert calls.new() == ["4", "5"]
        assert (metrics.statistics().journal_hits, metrics.statistics().calls) == (4, 2)
        assert {one[1] for one in sources(all_rows)} == {"journal"}


def test_J1_a_plan_says_what_a_journal_saves_and_makes_none(
    spark: SparkSession, calls: Calls, journal: Journal
) -> None:
    df = in_partitions(spark, [(key % 20 if key % 7 else None,) for key in range(100)], "id int", 1)
    empty = plan(df, calls.source(), on="id", journal=journal)
    assert (empty.calls, empty.journal_rows, empty.journal_calls) == (20, 0, 0)
    assert not Path(journal.path).exists()
    enrich(spark.range(12), calls.source(), on="id", journal=journal).collect()
    calls.new()
    told = plan(df, calls.source(), on="id", journal=journal)
    assert (told.rows, told.null_keys, told.distinct_keys, told.calls) == (100, 15, 8, 8)
    assert told.journal_calls == 12
    assert told.journal_rows == df.where("id < 12").count()
    assert "with an answer in the journal, which saves 12 calls" in " ".join(str(told).split())
    assert calls.new() == []
