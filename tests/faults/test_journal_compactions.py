"""Laws J1, J4 and J7 in Spark: compactions beside a job whose workers are killed, in another application.

The job of `test_journal_kills` begins with a journal of a third of its answers. While it runs, this process compacts
the journal again and again, and deletes what was replaced. Kills may cost what law J2 says, and compactions nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from asyncio_operator.journal.compaction import Compacted
from asyncio_operator.journal.files import list_journal
from asyncio_operator.journal.options import Journal
from asyncio_operator.journal.storage import open_place
from asyncio_operator.spark import compact_journal, enrich, read_journal
from enrichers import HttpEnricher
from tests.faults.killed_jobs import LOCAL, KilledJob, Service, begin, finish, start
from tests.faults.programs import Kill, kill_family, line_of
from tests.spark.helpers import python_workers

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(600)]

KEYS = 3_000
"""In two tasks. Two thirds are asked for, in 5 seconds, or more because of the kills."""

COMPACTIONS = 3
"""The least number that change files while a job makes calls."""


def answers(spark: SparkSession, path: Path) -> dict[int, int | None]:
    """The answers by key, of which `read_journal` gives one row each."""
    rows = read_journal(spark, path).select("key", "v").collect()
    found = {row.key: row.v for row in rows}
    assert len(found) == len(rows), "a key has two answers"
    return found


def pay_for_some(spark: SparkSession, service: Service, path: Path) -> None:
    """Write a third of the answers, as the job would, in a dozen files."""

    def process() -> dict[str, str]:
        return {"X-Process": str(os.getpid())}

    schema = "v long, text string"
    source = HttpEnricher(f"{service.service.url}/v/{{key}}", schema=schema, missing_statuses=(404,), headers=process)
    journal = Journal(path, flush_every=0.1, identity="counted")
    enrich(spark.range(0, KEYS, 3, 2), source, on="id", capacity=20, journal=journal).collect()


@pytest.mark.parametrize("join", ["broadcast", "merge"])
def test_J7_compactions_beside_a_job_whose_workers_are_killed_lose_nothing(
    spark: SparkSession, tmp_path: Path, join: str
) -> None:
    service, path = Service(), tmp_path / "0"
    settings = LOCAL | {"spark.sql.shuffle.partitions": "2"}
    if join == "merge":
        settings["spark.sql.autoBroadcastJoinThreshold"] = "-1"
    with service.service:
        pay_for_some(spark, service, path)
        kills, asked, known = list[Kill](), service.asked, answers(spark, path)
        assert len(known) == KEYS // 3
        with start(service, tmp_path, settings, keys=KEYS) as program:
            job = KilledJob(program, service, 0, finish)
            # Its input is planned and may still be read: replaced files stay.
            made = [compact_journal(spark, path)]
            assert job.goes_on(asked, set())
            while service.asked < KEYS and not job.is_over(0.1):
                # The known answers are joined when calls are made, so nothing that was replaced is read again.
                made.append(compact_journal(spark, path, grace=0))
                before, known = known, answers(spark, path)
                assert before.items() <= known.items(), "a compaction has lost or changed an answer"
                if len(made) in (2, 4):
                    kills += [kill_family(worker.pid) for worker in python_workers(program.pid)[:1]]
            job.join()
            check(made, kills, service)
            compact_journal(spark, path, grace=0)
            [file] = list_journal(open_place(Journal(path).location)).files
            assert file.name.startswith("compacted")
            assert answers(spark, path) == {key: None if key % 10 == 3 else key for key in range(KEYS)}
            asked = service.asked
            begin(program, 0)
            assert line_of(program) == "good"
            assert service.asked == asked, "a finished job makes calls after a compaction"


def check(made: list[Compacted], kills: list[Kill], service: Service) -> None:
    """Check that there were compactions and kills, and what they have cost."""
    changed = [one for one in made if one.files_written]
    deleted = sum(one.files_deleted for one in made)
    print(f"{len(changed)} compactions of {sum(one.files_read for one in changed)} files, {deleted} deleted")
    assert len(changed) >= COMPACTIONS
    assert deleted > 0
    assert len(kills) > 1, "the workers were not killed while the journal was compacted"
    service.check(kills)
