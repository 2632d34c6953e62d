"""Laws J1, J3, J4 and J7 on a local disk: what is written, and which answers count."""

from __future__ import annotations

import datetime
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncio_operator.arrow.column_answers import in_order
from asyncio_operator.errors import ConfigurationError
from asyncio_operator.journal import later_answers
from asyncio_operator.journal.answers import AnswerBatch, to_table, weights_array
from asyncio_operator.journal.files import Seen, list_journal
from asyncio_operator.journal.format import Description
from asyncio_operator.journal.identity import open_journal, wanted_description
from asyncio_operator.journal.later_answers import JournalReader
from asyncio_operator.journal.storage import Place
from asyncio_operator.spark.worker.task_journal import noted_columns
from tests.journal.helpers import NOW, Watched, answers_of, batch, described, read, write


def test_J3_any_reader_of_parquet_finds_the_columns_of_the_format(place: Place, tmp_path: Path) -> None:
    description = described(place)
    attempts, latency = pa.array([1, 2], pa.int32()), pa.array([12.5, None])
    weights = weights_array([{"tokens": 7.0}, None])
    rows = pa.table({"v": ["a"]})
    answers = in_order(rows, np.array([1, 0]))
    one = AnswerBatch(pa.array([5, 6]), answers, np.array([NOW, NOW + 1]), attempts, latency, weights)
    writer = write(place, description, one, label="app-7", expire_after=60)
    table = pq.read_table(tmp_path)
    start = datetime.datetime.fromtimestamp(NOW, datetime.UTC)
    later = start + datetime.timedelta(seconds=1)
    minute = datetime.timedelta(seconds=60)
    assert writer.run.startswith("app-7-")
    common = {"_run": writer.run, "_row": 0}
    assert table.to_pylist() == [
        {"id": 5, "v": "a", "_found": True, "_time": start, "_attempts": 1, "_latency_ms": 12.5}
        | {"_weights": [("tokens", 7.0)], "_expires": start + minute, "_call": 0, **common},
        {"id": 6, "v": None, "_found": False, "_time": later, "_attempts": 2, "_latency_ms": None}
        | {"_weights": None, "_expires": later + minute, "_call": 1, **common},
    ]


def test_J4_the_latest_counts_by_time_then_run_then_call(place: Place) -> None:
    description = described(place)
    first = write(place, description, batch({1: ["old"]}, NOW + 5), batch({1: ["new"]}, NOW + 5))
    assert read(place, description, [1]) == {1: ["new"]}
    write(place, description, batch({1: ["earlier", "rows"]}, NOW + 4))
    assert read(place, description, [1]) == {1: ["new"]}
    second = write(place, description, batch({1: ["other run"]}, NOW + 5))
    assert read(place, description, [1]) == {1: ["other run" if second.run > first.run else "new"]}
    write(place, description, batch({1: []}, NOW + 6))
    assert read(place, description, [1]) == {1: []}


def test_J6_keys_of_int_and_bigint_and_of_float_and_double_are_the_same(place: Place, tmp_path: Path) -> None:
    description = described(place, "int")
    write(place, description, batch({1: ["a"]}, kind=pa.int32()), batch({2: ["b"]}, kind=pa.int64()))
    assert read(place, description, [1, 2], pa.int8()) == read(place, description, [1, 2]) == {1: ["a"], 2: ["b"]}
    doubles = Place(str(tmp_path / "doubles"))
    description = described(doubles, "double")
    write(doubles, description, batch({-0.0: ["zero"], math.nan: ["nan"]}), batch({0.5: ["half"]}, kind=pa.float32()))
    assert answers_of(
        JournalReader(doubles, description).read(pa.array([0.0, float("nan"), 0.5], pa.float32())), "znh"
    ) == {"z": ["zero"], "n": ["nan"], "h": ["half"]}


def test_J6_composite_keys_are_compared_part_by_part(place: Place) -> None:
    keys = pa.schema([("day", pa.date32()), ("code", pa.string())])
    description = open_journal(place, wanted_description("two", keys, pa.schema([("v", pa.string())])))
    days = pa.array([datetime.date(2026, 1, 1)] * 2 + [None])
    asked = pa.StructArray.from_arrays([days, pa.array(["x", "y", "x"])], names=["0", "1"])
    write(place, description, AnswerBatch(asked[:2], in_order(pa.table({"v": ["a", "b"]})), NOW))
    known = JournalReader(place, description, clock=lambda: NOW).read(asked)
    assert known.counts.tolist() == [1, 1, -1]
    assert known.table["v"].to_pylist() == ["a", "b"]


def test_J6_a_key_that_the_journal_cannot_hold_is_unknown(place: Place) -> None:
    description = described(place)
    write(place, description, batch({1: ["a"]}))
    assert read(place, description, [1.0, 1.5, None]) == {1.0: ["a"]}


def test_J7_the_expiry_of_the_writer_is_shortened_by_the_reader_and_never_lengthened(place: Place) -> None:
    description = described(place)
    write(place, description, batch({1: ["a"]}), expire_after=10)
    for age, own, found in [(9, None, True), (10, None, False), (4, 5, True), (5, 5, False), (11, 100, False)]:
        assert bool(read(place, description, [1], clock=lambda at=NOW + age: at, expire_after=own)) is found, (age, own)


def test_J1_misses_are_answers_unless_they_are_not_kept(place: Place) -> None:
    description = described(place)
    write(place, description, batch({1: [], 2: ["b"]}))
    assert read(place, description, [1, 2]) == {1: [], 2: ["b"]}
    assert read(place, description, [1, 2], keep_missing=False) == {2: ["b"]}
    write(place, description, batch({4: ["d"]}))
    # The source has no such row any more: the answer before the miss is not used.
    write(place, description, batch({2: []}, NOW + 0.5))
    assert read(place, description, [2, 4], keep_missing=False) == {4: ["d"]}


def test_J1_a_reader_looks_only_into_files_that_came_after_a_listing(tmp_path: Path) -> None:
    place = Watched(str(tmp_path))
    description = described(place)
    write(place, description, batch({1: ["a"], 2: ["b"]}))
    listing = list_journal(place)
    write(place, description, batch({2: ["c"], 3: ["d"]}, NOW + 1))
    place.opened.clear()
    seen = Seen.of(entry.name for entry in listing.files)
    assert read(place, description, [1, 2, 3], since=seen) == {2: ["c"], 3: ["d"]}
    assert [name for name in place.opened if name in {entry.name for entry in listing.files}] == []


def test_J5_row_groups_without_the_keys_are_not_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    description = described(place)
    keys = range(200_000)
    rows = pa.table({"v": pa.repeat(pa.scalar("x"), len(keys))})
    write(place, description, AnswerBatch(pa.array(keys), in_order(rows), NOW))
    groups: list[int] = []
    original = pq.ParquetFile.read_row_group

    def read_row_group(file: pq.ParquetFile, group: int, **options: object) -> pa.Table:
        groups.append(group)
        return original(file, group, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", read_row_group)
    assert read(place, description, [150_000, 150_001]) == {150_000: ["x"], 150_001: ["x"]}
    assert groups.count(2) == 2, "its keys for the index, and its answers"
    assert set(groups) == {0, 1, 2, 3}
    groups.clear()
    monkeypatch.setattr(later_answers, "MOST_BYTES", 0)
    assert read(place, description, [150_000, 150_001]) == {150_000: ["x"], 150_001: ["x"]}
    assert groups == [2, 2], "without an index: its keys, and its answers"


@pytest.mark.parametrize("most", [0, 3000, 1 << 26])
def test_J5_whatever_fits_into_the_index_the_answers_are_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(later_answers, "MOST_BYTES", most)
    description = described(place)
    reader = JournalReader(place, description, clock=lambda: NOW + 100)
    expected: dict[int, list[str]] = {}
    for number in range(4):
        answers = {
            key: [f"{number}/{key}/{row}" for row in range(key % 3)] for key in range(number, 40 * number + 40, 2)
        }
        expected |= answers
        write(place, description, batch(answers, NOW + number, pa.int64()))
        reader.begin()
        for _ in range(2):
            assert answers_of(reader.read(pa.array(range(200))), range(200)) == expected
        for key in (min(answers), max(answers)):
            # Its own, though it is at the end of what the statistics of the file say.
            assert answers_of(reader.read(pa.array([key])), [key]) == {key: expected[key]}


def test_J2_a_key_that_does_not_fit_is_an_error_and_not_another_key(place: Place) -> None:
    description = described(place)
    with pytest.raises(Exception, match="does not fit the journal's key columns") as caught:
        write(place, description, batch({None: ["a"]}, kind=pa.int64()))
    assert isinstance(caught.value.__cause__, ConfigurationError)


def test_J3_an_answer_that_a_task_notes_has_its_seconds_in_milliseconds() -> None:
    description = Description("d", pa.schema([("id", pa.int64())]), pa.schema([("v", pa.string())]))
    noted = [(1, {"v": "a"}, 5.0, 2, 0.25, None), (2, None, 5.0, None, None, None)]
    assert noted_columns(noted, description, keep_missing=False).keys.to_pylist() == [1]
    table = to_table(noted_columns(noted, description), description, run="r", first=0, expire_after=None)
    rows = table.select(["id", "_found", "_attempts", "_latency_ms"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(1, True, 2, 250.0), (2, False, None, None)]
