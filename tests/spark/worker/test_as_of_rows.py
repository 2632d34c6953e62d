"""X16 in a task, without Spark: each row gets the version of its time, however the enricher answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import LongType, StructField, StructType

from asyncio_operator import Cache, ConfigurationError, Enricher, EnricherError, FunctionError, MissingKeyError
from asyncio_operator.arrow.as_of import AsOf
from asyncio_operator.arrow.key_index import KeyIndex
from asyncio_operator.enricher import as_schema
from asyncio_operator.spark.driver.build_task import EnrichOptions, enrich_task
from tests.spark.worker.tasks import chained, rows_of

ROWS = StructType([StructField("id", LongType()), StructField("at", LongType())])
ADDED = pa.schema([("since", pa.int64()), ("tier", pa.string())])
FAILS = 13

Versions = dict[int, list[int | None]]


def tiers(versions: Versions, key: int) -> list[dict[str, Any]]:
    """The rows of a key, in the order of the source."""
    if key == FAILS:
        raise EnricherError("thirteen", retryable=False)
    return [{"since": since, "tier": f"{key}.{number}"} for number, since in enumerate(versions.get(key, ()))]


class InRows(Enricher):
    """A key with one version gives a row, and no list.

    Args:
        number: makes the clients of two tests different.
        asked: a file that gets a byte for each key.
    """

    max_batch = 4

    def __init__(self, versions: Versions, number: int = 0, asked: Path | None = None) -> None:
        self.versions, self.number, self.asked = versions, number, asked

    def schema(self) -> pa.Schema:
        return ADDED

    def key_schema(self) -> pa.Schema:
        return pa.schema([("id", pa.int64())])

    def count(self, keys: Sequence[Any]) -> None:
        if self.asked is not None:
            with self.asked.open("ab") as file:
                file.write(b"." * len(keys))

    async def lookup_many(self, keys: Sequence[int]) -> Sequence[Any]:
        self.count(keys)
        found = [tiers(self.versions, key) for key in keys]
        return [rows[0] if len(rows) == 1 else rows for rows in found]


class InColumns(InRows):
    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        self.count(keys)
        found = [(key, row) for key in reversed(keys.to_pylist()) for row in tiers(self.versions, key)]
        table = pa.Table.from_pylist([row for _, row in found], ADDED)
        return table.append_column("id", pa.array([key for key, _ in found], pa.int64()))


class InMemory(InColumns):
    in_memory = True


class ByNumber(InMemory):
    """All rows in one table, in which those of a key are not neighbours."""

    async def lookup_rows(self, keys: pa.Array) -> Any:
        self.count(keys)
        if FAILS in keys.to_pylist():
            tiers(self.versions, FAILS)
        most = max(map(len, self.versions.values()), default=0)
        of_key = [(key, number) for number in range(most) for key in self.versions if number < len(self.versions[key])]
        table = pa.Table.from_pylist([tiers(self.versions, key)[number] for key, number in of_key], ADDED)
        return table, *KeyIndex(pa.array([key for key, _ in of_key], pa.int64())).find(keys)


KINDS = (InRows, InColumns, InMemory, ByNumber)
_numbers = iter(range(10**9))


def out(enricher: Enricher, rows: Sequence[tuple[Any, Any]], **options: Any) -> list[dict[str, Any]]:
    """The rows of a task that reads them four at a time."""
    task, _ = enrich_task(ROWS, enricher, EnrichOptions(on="id", as_of=("at", "since"), **options))
    types = pa.schema([("id", pa.int64()), ("at", pa.int64())])
    whole = pa.RecordBatch.from_pylist([dict(zip(types.names, row, strict=True)) for row in rows], types)
    return rows_of(chained([task], [whole.slice(start, 4) for start in range(0, len(rows), 4)]))


def held(versions: Versions, key: int | None, at: int | None) -> dict[str, Any] | None:
    """The model."""
    if key is None or key == FAILS or at is None:
        return None
    rows = [row for row in tiers(versions, key) if row["since"] is not None and row["since"] <= at]
    return max(reversed(rows), key=lambda row: row["since"], default=None)


NOTHING = {"since": None, "tier": None}
small = st.integers(-2, 4)


@given(
    versions=st.dictionaries(st.integers(0, 5), st.lists(small | st.none(), max_size=5)),
    rows=st.lists(st.tuples(st.sampled_from([*range(6), FAILS, None]), small | st.none()), max_size=14),
    kind=st.sampled_from(KINDS),
    cache=st.sampled_from([None, Cache(max_rows=3)]),
    how=st.sampled_from(["left", "inner"]),
    mode=st.sampled_from(["ordered", "unordered"]),
    status=st.booleans(),
    columns=st.sampled_from([None, ["tier"], ["since"]]),
)
def test_X1_X16_each_row_gets_the_version_of_its_time(
    versions: Versions, rows: list[Any], kind: type[InRows], cache: Any, how: Any, mode: Any, status: bool, columns: Any
) -> None:
    enricher = kind(versions, next(_numbers))
    status_column = "told" if status else None
    found = out(
        enricher, rows, cache=cache, how=how, mode=mode, status_column=status_column, columns=columns, on_error="null"
    )
    expected = []
    for key, at in rows:
        version = held(versions, key, at)
        if version is None and how == "inner" and key != FAILS:
            continue
        row = {"id": key, "at": at} | {name: (version or NOTHING)[name] for name in columns or ADDED.names}
        if status:
            row["told"] = "failed" if key == FAILS else "missing" if version is None else "found"
        expected.append(row)
    for row in found:
        if status:
            row["told"] = row.pop("status")["status"]
    assert found == expected if mode == "ordered" else Counter(map(str, found)) == Counter(map(str, expected))


@pytest.mark.parametrize("cache", [None, Cache()], ids=["remembered", "cached"])
@pytest.mark.parametrize("kind", [InRows, InColumns])
def test_X16_a_key_is_looked_up_and_kept_whatever_the_times(kind: type[InRows], cache: Any, tmp_path: Path) -> None:
    enricher = kind({1: [0, 5]}, next(_numbers), tmp_path / "asked")
    rows = [(1, at) for at in (-1, 0, 4, 5, None, 9, 3, 7)]
    found = [row["tier"] for row in out(enricher, rows, cache=cache)]
    assert found == [None, "1.0", "1.0", "1.1", None, "1.1", "1.0", "1.1"]
    assert (tmp_path / "asked").read_bytes() == b"."


@pytest.mark.parametrize("kind", KINDS)
def test_X6_X16_a_row_without_a_version_is_a_miss_of_a_key_that_was_called_for(kind: type[InRows]) -> None:
    found = out(kind({1: [5], 2: []}, next(_numbers)), [(1, 4), (1, 5), (2, 9), (None, 9)], status_column="told")
    told = [(row["status"]["status"], row["status"]["source"], row["status"]["attempts"]) for row in found]
    assert told == [("missing", "call", 1), ("found", "call", 1), ("missing", "call", 1), ("missing", "none", 0)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("row", "says"),
    [
        ((1, 4), "has rows for key 1, but none that held at 4; how="),
        ((1, None), "has rows for key 1, but none that held at a null time; how="),
        ((2, 9), "has no row for key 2; how="),
        ((None, 9), "has no row for key None: a part of it is null"),
    ],
)
def test_X11_X16_a_row_that_needs_a_version_and_has_none_fails_the_task(
    kind: type[InRows], row: Any, says: str
) -> None:
    with pytest.raises(MissingKeyError, match=says):
        out(kind({1: [5]}, next(_numbers)), [(1, 5), row], how="required")


def test_X16_a_version_that_is_no_value_of_its_type_is_an_error_of_its_key() -> None:
    class Wrong(InRows):
        async def lookup_many(self, keys: Sequence[int]) -> Sequence[Any]:
            return [{"since": "soon" if key == 2 else 0, "tier": "a"} for key in keys]

    wrong = Wrong({}, next(_numbers))
    with pytest.raises(FunctionError, match="column 'since' is bigint, which the answer does not fit: 'soon'"):
        out(wrong, [(1, 1), (2, 1)], columns=["tier"])
    found = out(wrong, [(1, 1), (2, 1), (1, -1)], columns=["tier"], on_error="null")
    assert [row["tier"] for row in found] == ["a", None, None]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"as_of": "at"}, "as_of is 'at'; it must be a pair of names"),
        ({"as_of": ("at",)}, "it must be a pair of names: the DataFrame's column of times, and the enricher's"),
        ({"as_of": ("at", 1)}, "it must be a pair of names"),
        ({"as_of": ("time", "since")}, "as_of names 'time', which is not a column of the DataFrame"),
        ({"as_of": ("at", "sinse")}, "as_of names 'sinse', which is not a column of .*; did you mean 'since'"),
        ({"as_of": ("at", "tier")}, "as_of compares 'at', which is bigint, with 'tier' of .*, which is string; both"),
        ({"as_of": ("at", "since"), "strategy": "distinct"}, 'strategy="distinct" sends only keys'),
    ],
)
def test_X4_X16_what_cannot_be_compared_is_found_on_the_driver(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        enrich_task(ROWS, InRows({}), EnrichOptions(on="id", **options))


class Typed(Enricher):
    def __init__(self, version: str) -> None:
        self._version = version

    def schema(self) -> pa.Schema:
        return as_schema(f"since {self._version}")

    async def lookup(self, key: Any) -> Any:
        return None


def as_of(own: str, theirs: str, zone: str = "Europe/Berlin") -> AsOf | None:
    kind = from_arrow_type(as_schema(f"at {own}").field(0).type, prefer_timestamp_ntz=True)
    schema = StructType([StructField("id", LongType()), StructField("at", kind)])
    options = EnrichOptions(on="id", as_of=("at", "since"))
    return enrich_task(schema, Typed(theirs), options, zone=zone)[0].layout.as_of


SAME = ["tinyint", "bigint", "double", "decimal(10,2)", "string", "boolean", "binary", "date", "timestamp"]


def test_X16_both_columns_have_one_type_or_are_times() -> None:
    for kind in SAME:
        assert as_of(kind, kind) == AsOf(1, 0)
    assert as_of("timestamp", "timestamp_ntz") == AsOf(1, 0, "Europe/Berlin")
    assert as_of("timestamp_ntz", "timestamp") == AsOf(1, 0, "Europe/Berlin")
    assert as_of("date", "timestamp") == AsOf(1, 0, "Europe/Berlin")
    # Neither has a zone.
    assert as_of("timestamp_ntz", "date") == AsOf(1, 0, "UTC")


@pytest.mark.parametrize(
    ("own", "theirs", "says"),
    [
        ("int", "bigint", r"with df.withColumn\('at', F.col\('at'\).cast\('bigint'\)\)"),
        ("decimal(10,2)", "decimal(12,2)", r"cast it first, with .*cast\('decimal\(12,2\)'\)"),
        ("string", "timestamp", "both must have one type, or be dates or timestamps"),
        ("bigint", "date", "both must have one type, or be dates or timestamps"),
        ("array<int>", "array<int>", "it must be a number, text, a boolean, a date"),
    ],
)
def test_X4_X16_other_types_are_refused_with_the_cast_that_helps(own: str, theirs: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        as_of(own, theirs)


def test_X4_X16_a_zone_that_is_not_known_is_an_error_where_it_is_needed() -> None:
    assert as_of("timestamp", "timestamp", "Mars/Olympus") == AsOf(1, 0)
    with pytest.raises(ConfigurationError, match=r"'Mars/Olympus' is not known to pyarrow: set spark.sql.session.time"):
        as_of("timestamp", "timestamp_ntz", "Mars/Olympus")


def test_X16_times_of_parquet_files_that_spark_wrote_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    as_of("timestamp", "timestamp_ntz", "UTC")
    as_of("timestamp", "date")
    assert not caplog.records
    as_of("timestamp", "timestamp_ntz")
    [message] = [record.getMessage() for record in caplog.records]
    assert "in the time zone of the session, Europe/Berlin: one of them has no time zone" in message
