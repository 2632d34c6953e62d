"""Law J2 with real processes: writers and compactions that are killed (SIGKILL) at random moments.

A writer says on its standard output what was acknowledged. What it said when it was dead must be in the journal, whole;
what else is there must be an answer that it was given, whole too.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from asyncio_operator.journal.files import list_journal
from asyncio_operator.journal.format import Description
from asyncio_operator.journal.later_answers import JournalReader
from asyncio_operator.journal.options import Journal
from asyncio_operator.journal.storage import Place, open_place
from tests.journal.helpers import compact, described
from tests.object_store import KEY_ID, SECRET, ObjectStore

ROOT = Path(__file__).resolve().parents[2]

WRITER = """
import sys, time
import numpy as np, pyarrow as pa
from asyncio_operator.arrow.column_answers import in_order
from asyncio_operator.journal.answers import AnswerBatch
from asyncio_operator.journal.identity import read_description
from asyncio_operator.journal.storage import open_place
from asyncio_operator.journal.options import Journal
from asyncio_operator.journal.writer import JournalWriter
from tests.journal.helpers import append

place = open_place(Journal(sys.argv[1]).location)
first = int(sys.argv[2])
writer = JournalWriter(place, read_description(place), flush_every=0.005, first_pause=0.01)
print("ready", flush=True)
said = 0
for start in range(0, 1_000_000, 10):
    keys = np.arange(start, start + 10)
    counts = keys % 4
    values = [f"{key}/{row}" for key in keys for row in range(key % 4)]
    rows = pa.table({"v": pa.array(values, pa.string())})
    append(writer, AnswerBatch(pa.array(keys + first), in_order(rows, counts), time.time()))
    time.sleep(0.001)
    if writer.acknowledged > said:
        said = writer.acknowledged
        print(said, flush=True)
"""

COMPACTION = """
import sys
from asyncio_operator.journal.identity import read_description
from asyncio_operator.journal.storage import open_place
from asyncio_operator.journal.options import Journal
from tests.journal.helpers import compact

place = open_place(Journal(sys.argv[1]).location)
description = read_description(place)
print("ready", flush=True)
while True:
    compact(place, description, grace=float(sys.argv[2]), buckets=4)
    print("done", flush=True)
"""

EACH = 10_000_000
"""The keys of one writer begin at a multiple of it."""


def started(program: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    return process


def killed_after(process: subprocess.Popen[str], seconds: float) -> list[str]:
    """Kill a process. Returns the lines that it wrote whole since the last one that was read."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    assert process.poll() is None, process.communicate()[1]
    process.kill()
    written, _ = process.communicate()
    return [line for line in written.splitlines(keepends=True) if line.endswith("\n")]


def check(place: Place, description: Description, first: int, acknowledged: int) -> int:
    """Check the answers of one writer. Returns how many are there."""
    there = 0
    reader = JournalReader(place, description)
    for start in range(0, acknowledged + 50_000, 50_000):
        keys = np.arange(start, start + 50_000)
        known = reader.read(pa.array(keys + first))
        values = known.table["v"].to_pylist()
        found = known.counts >= 0
        assert found[keys < acknowledged].all(), f"lost: {keys[(keys < acknowledged) & ~found][:5]}"
        assert (known.counts[found] == keys[found] % 4).all(), "an answer is half or doubled"
        assert values == [f"{key}/{row}" for key in keys[found].tolist() for row in range(key % 4)]
        there += int(found.sum())
        if not found[-1]:
            break
    return there


@pytest.fixture(params=["disk", pytest.param("store", marks=pytest.mark.faults)])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "disk":
        yield str(tmp_path / "journal")
        return
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with ObjectStore() as store:
        yield store.url("journal")


def many(kills: int) -> object:
    return pytest.param(kills, marks=[pytest.mark.faults, pytest.mark.timeout(600)])


@pytest.mark.parametrize("kills", [4, many(100)])
def test_J2_of_killed_writers_none_loses_what_it_acknowledged(path: str, kills: int) -> None:
    drawn = random.Random(kills)
    place = open_place(Journal(path).location)
    description = described(place)
    said: dict[int, int] = {}
    for number in range(kills):
        process = started(WRITER, path, str(number * EACH))
        line = ""
        if drawn.random() < 0.75:  # The others are killed in or before their first write.
            assert process.stdout is not None
            line = process.stdout.readline()
        lines = [line, *killed_after(process, drawn.uniform(0.0, 0.3))]
        said[number * EACH] = int(lines[-1] or 0)
        assert check(place, description, number * EACH, said[number * EACH]) >= said[number * EACH]
        if drawn.random() < 0.3:
            compact(place, description, grace=drawn.choice([0.0, 60.0]))
    compact(place, description, grace=0)
    for first, count in said.items():
        check(place, description, first, count)
    assert sum(said.values()) > 0, "nothing was acknowledged: the test shows nothing"
    parts = list(Path(path).rglob("*.part")) if os.path.isdir(path) else []
    assert len(parts) <= kills


@pytest.mark.parametrize("kills", [2, many(30)])
def test_J7_killed_compactions_beside_others_and_a_writer_lose_nothing(path: str, kills: int) -> None:
    drawn = random.Random(kills)
    place = open_place(Journal(path).location)
    description = described(place)
    writer = started(WRITER, path, "0")
    other = started(COMPACTION, path, "5")
    for _ in range(kills):
        killed_after(started(COMPACTION, path, "5"), drawn.uniform(0.0, 0.5))
    acknowledged = int(killed_after(writer, 0)[-1])
    killed_after(other, 0)
    check(place, description, 0, acknowledged)
    compact(place, description, grace=0)
    check(place, description, 0, acknowledged)
    assert len(list_journal(place).live) == 1
