"""Laws J4 and J7: compaction changes no reader's answer, at no later time, and deletes only what others hold."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator.arrow.column_answers import in_order
from asyncio_operator.arrow.key_arrays import distinct
from asyncio_operator.errors import StateError
from asyncio_operator.journal.answers import AnswerBatch, latest, living, to_table, worth_keeping
from asyncio_operator.journal.compaction import Compactor
from asyncio_operator.journal.files import list_journal
from asyncio_operator.journal.format import ABOUT
from asyncio_operator.journal.identity import wanted_description
from asyncio_operator.journal.later_answers import JournalReader
from asyncio_operator.journal.storage import Place
from asyncio_operator.testing import ManualClock
from tests.journal.helpers import NOW, answers_of, batch, compact, described, read, seen_at, write

DESCRIPTION = wanted_description("x", pa.schema([("id", pa.string())]), pa.schema([("v", pa.string())]))

ANSWERS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 2),  # rows
        st.integers(0, 5),  # time
        st.sampled_from(["run 1", "run 2"]),
        st.sampled_from([None, 1, 3, 8]),  # expire_after
    ),
    min_size=1,
    max_size=8,
)


def view(table: pa.Table, now: float, expire_after: float | None) -> list[str]:
    """What a reader gives, with the run and the call of each answer."""
    table = living(table, now, expire_after)
    if not table.num_rows:
        return []
    _, codes = distinct([table["id"].combine_chunks()])
    chosen = table.take(pa.array(latest(table, codes))).select(["id", "v", "_found", "_run", "_call", "_row"])
    return sorted(map(repr, chosen.to_pylist()))


@settings(max_examples=60, deadline=None)
@given(ANSWERS, st.integers(0, 9), st.data())
def test_J7_compaction_changes_no_view_at_any_later_time(
    answers: list[tuple[str, int, int, str, int | None]], now: int, data: st.DataObject
) -> None:
    tables = []
    for call, (key, count, time, run, expire_after) in enumerate(answers):
        rows = pa.table({"v": [f"{call}/{row}" for row in range(count)]}, schema=DESCRIPTION.answers)
        one = AnswerBatch(pa.array([key]), in_order(rows, np.array([count])), float(time))
        tables.append(to_table(one, DESCRIPTION, run=run, first=call, expire_after=expire_after))
    twice = data.draw(st.lists(st.sampled_from(tables)))
    everything = pa.concat_tables(tables)
    kept = worth_keeping(pa.concat_tables([*tables, *twice]), 1, now)
    assert kept.schema.equals(DESCRIPTION.schema)
    for later in (now, now + 1, now + 4, 14):
        for own in (None, 2):
            assert view(kept, later, own) == view(everything, later, own)
    # What a deleted file brings back changes nothing.
    back = pa.concat_tables([kept, *data.draw(st.lists(st.sampled_from(tables)))])
    for later in (now, now + 3, 14):
        assert view(back, later, None) == view(everything, later, None)


def names(place: Place) -> set[str]:
    return {entry.name.split("-")[0] for entry in list_journal(place).files}


def test_J7_many_files_become_few_and_the_old_ones_stay_for_grace(place: Place, tmp_path: Path) -> None:
    description, clock = described(place), ManualClock(NOW)
    write(place, description, *(batch({key: [f"v{key}"], 0: [f"{key}"]}, NOW + key) for key in range(1, 20)))
    expected = {key: [f"v{key}"] for key in range(1, 20)} | {0: ["19"]}
    first = compact(place, description, grace=60, clock=clock)
    assert (first.files_read, first.files_written, first.files_deleted) == (19, 1, 0)
    assert (first.rows_read, first.rows_written) == (38, 20)
    assert len(list_journal(place).files) == 20
    assert len(list_journal(place).live) == 1
    assert read(place, description, range(20)) == expected
    clock.advance(59)
    assert compact(place, description, grace=60, clock=clock).files_deleted == 0
    clock.advance(2)
    assert compact(place, description, grace=60, clock=clock).files_deleted == 19
    assert names(place) == {"compacted"}
    assert read(place, description, range(20)) == expected
    compact(place, description, grace=60, clock=clock)
    assert list((tmp_path / "_journal").glob("compaction-*")) == [], "nothing is left of what it names"


def test_J7_a_task_that_knows_the_replaced_files_does_not_read_their_successor(place: Place) -> None:
    description = described(place)
    write(place, description, batch({1: ["a"]}))
    seen = seen_at(place)
    compact(place, description, clock=lambda: NOW)
    assert read(place, description, [1], since=seen) == {}
    write(place, description, batch({2: ["b"]}))
    # Later, so that its record is read after the other one, and not before it by chance.
    compact(place, description, clock=lambda: NOW + 1)
    assert read(place, description, [1, 2], since=seen) == {1: ["a"], 2: ["b"]}


def test_J7_a_reader_finds_the_successor_of_a_file_that_is_gone(place: Place) -> None:
    description = described(place)
    write(place, description, batch({1: ["a"]}), batch({2: ["b"]}))
    reader = JournalReader(place, description, clock=lambda: NOW, monotonic=lambda: 0.0)
    reader.read(pa.array([], pa.int64()))
    assert reader.has_files
    compact(place, description, grace=0, clock=lambda: NOW)
    assert answers_of(reader.read(pa.array([1, 2])), [1, 2]) == {1: ["a"], 2: ["b"]}


def test_J7_a_file_is_not_deleted_while_its_successor_is_missing(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    description = described(place)
    write(place, description, batch({1: ["a"]}), batch({2: ["b"]}))
    compact(place, description, clock=lambda: NOW)
    [successor] = tmp_path.glob("compacted-*")
    data = successor.read_bytes()
    for damaged in (data[:100], None):
        if damaged is None:
            successor.unlink()
        else:
            successor.write_bytes(damaged)
        assert Compactor(place, description, clock=lambda: NOW + 9999).delete_replaced(1) == 0
    assert read(place, description, [1, 2]) == {1: ["a"], 2: ["b"]}


def test_J7_a_compaction_that_cannot_be_read_back_is_not_recorded(place: Place, tmp_path: Path) -> None:
    description = described(place)
    write(place, description, batch({1: ["a"]}))
    compactor = Compactor(place, description, clock=lambda: NOW)
    inputs = compactor.inputs()
    name, rows = compactor.write(pa.concat_tables([table for one in inputs for table in compactor.read(one)]))
    assert name is not None
    assert rows == 1
    (tmp_path / name).write_bytes(b"PAR1")
    with pytest.raises(StateError, match="is not complete after it was written"):
        compactor.commit([name], inputs)
    assert list((tmp_path / "_journal").glob("compaction-*")) == []


def test_J7_what_a_killed_writer_left_is_deleted_after_a_day(place: Place, tmp_path: Path) -> None:
    description = described(place)
    write(place, description, batch({1: ["a"]}))
    for name, age in [(".old.part", 86_500), (".young.part", 86_000), (".other", 90_000)]:
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (NOW - age, NOW - age))
    compact(place, description, clock=lambda: NOW)
    assert {path.name for path in tmp_path.glob(".*")} == {".young.part", ".other"}


def test_J5_rows_are_measured_in_memory_and_not_in_files(place: Place) -> None:
    description = described(place)
    # A text that repeats takes a few bytes of a file, and 2 MB of memory.
    write(place, description, batch({key: ["x" * 10_000] for key in range(200)}))
    write(place, description, batch({1: ["y"]}, NOW + 1))
    compactor = Compactor(place, description)
    assert compactor.memory(compactor.inputs()) > 1 << 20


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"format": 2}, "of format 2, and this version of asyncio-operator knows format 1"),
        ({"format": 1}, "damaged"),
        ({"format": 1, "time": "soon"}, "damaged"),
        ({"format": 1, "time": 1, "written": 3, "replaced": []}, "damaged"),
    ],
)
def test_J7_a_record_that_is_damaged_or_of_another_format_is_named(
    place: Place, tmp_path: Path, about: dict[str, object], says: str
) -> None:
    described(place)
    name = f"compaction-{1:013d}-{'0' * 16}.json"
    (tmp_path / "_journal" / name).write_text(json.dumps(about))
    with pytest.raises(StateError, match=f"{name} is {says}"):
        list_journal(place)


def test_J3_the_columns_of_the_format_are_those_of_its_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "journal-format.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `_")]
    assert sorted(name for row in rows for name in row.replace("`", "").replace(",", "").split()) == sorted(ABOUT.names)


def test_J4_J7_a_clock_that_goes_back_loses_no_answer_and_deletes_no_file_that_is_needed(place: Place) -> None:
    description = described(place)
    write(place, description, batch({1: ["ahead"], 2: ["ahead"]}, NOW + 3600), clock=lambda: NOW + 3600)
    write(place, description, batch({2: ["later"], 3: ["later"]}, NOW), clock=lambda: NOW)
    expected = {1: ["ahead"], 2: ["ahead"], 3: ["later"]}
    assert read(place, description, [1, 2, 3], clock=lambda: NOW) == expected
    compact(place, description, clock=lambda: NOW + 3600)
    for moment in (NOW, NOW - 86_400 * 365):
        compact(place, description, clock=lambda moment=moment: moment)  # type: ignore[misc]
        assert read(place, description, [1, 2, 3], clock=lambda: NOW) == expected
    assert len(list_journal(place).files) == 3, "the record is younger than the grace"
    write(place, description, batch({4: ["last"]}, NOW - 3600), clock=lambda: NOW - 3600)
    compact(place, description, grace=0, clock=lambda: NOW + 7200)
    assert read(place, description, [1, 2, 3, 4], clock=lambda: NOW) == expected | {4: ["last"]}
