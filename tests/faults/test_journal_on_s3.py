"""Laws J1, J3 and J7 with Spark's own client of S3: a journal is written, joined, read and compacted on a server that
speaks S3, and refuses some requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from subprocess import Popen
from typing import Any

import pytest

from tests.faults.programs import line_of, spark_program
from tests.hadoop_aws import settings
from tests.moto_store import MotoStore
from tests.object_store import KEY_ID, SECRET, FailingServer, ObjectStore

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(900)]

KEYS = 500

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from asyncio_operator import Journal
from asyncio_operator.spark import compact_journal, enrich, plan, read_journal
from enrichers import FunctionEnricher

settings, url, keys = json.loads(sys.argv[1])
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
journal = Journal(url, identity="s3", flush_every=0.1)

async def ask(key):
    return None if key % 10 == 3 else {"v": key, "text": f"text {key}"}

source = FunctionEnricher(ask, "v long, text string")

def look_up():
    rows = spark.range(0, keys, 1, 2)
    found = enrich(rows, source, on="id", journal=journal, status_column="how").collect()
    right = [(row.id, row.v) for row in found] == [(key, None if key % 10 == 3 else key) for key in range(keys)]
    return [right, sorted({row.how.source for row in found})]

def planned():
    made = plan(spark.range(0, 2 * keys, 1, 2), source, on="id", journal=journal)
    return [made.calls, made.journal_calls]

def read():
    rows = read_journal(spark, journal).collect()
    return [len(rows), len({row.id for row in rows})]

def compact():
    return list(compact_journal(spark, journal, grace=0))

for line in sys.stdin:
    print(json.dumps(globals()[line.strip()]()), flush=True)
"""


@pytest.fixture(params=[ObjectStore, MotoStore])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingServer]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with request.param() as store:
        yield store


def ask(program: Popen[str], what: str) -> Any:
    """What a function of the program returns."""
    assert program.stdin is not None
    print(what, file=program.stdin, flush=True)
    line = line_of(program)
    assert line, f"the program has ended at {what}"
    return json.loads(line)


def test_J3_spark_joins_reads_and_compacts_a_journal_on_s3(store: FailingServer) -> None:
    with spark_program(PROGRAM, settings(store), store.url("answers"), KEYS) as program:
        assert ask(program, "look_up") == [True, ["call"]]
        assert ask(program, "look_up") == [True, ["journal"]]
        assert ask(program, "planned") == [KEYS, KEYS]
        assert ask(program, "read") == [KEYS, KEYS]
        # Clients repeat what the store refuses: Arrow's twice.
        store.refuse = 2
        files, written, deleted, *rows = ask(program, "compact")
        assert (written, deleted, rows) == (1, files, [KEYS, KEYS])
        store.refuse = 2
        assert ask(program, "look_up") == [True, ["journal"]]
        assert store.refuse == 0
        assert ask(program, "read") == [KEYS, KEYS]
    assert len([name for name in store.objects if name.endswith(".parquet")]) == 1
