"""Dates, times and decimals as keys in SQLite, which has no type for them: every way to write one finds its row."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import ConfigurationError
from enrichers import SqlEnricher
from enrichers.scalars import JSON, scalar
from enrichers.sql.column_types import column_for
from enrichers.sql.spellings import MOST, moments, spellings_of, zoned
from tests.enrichers.helpers import failure, in_sqlite
from tests.enrichers.test_sql_enricher import opened, path, url

__all__ = ["path", "url"]

AT = datetime(2024, 2, 29, 12)


def fill(path: Path, kind: str, values: list[Any]) -> None:
    anew = "DROP TABLE IF EXISTS t", f"CREATE TABLE t (id {kind}, v INTEGER)"
    in_sqlite(path, *anew, "INSERT INTO t VALUES (?, ?)", rows=[(value, i) for i, value in enumerate(values)])


@given(st.datetimes(min_value=datetime(1, 1, 1)))
def test_L10_a_time_is_read_back_from_each_of_its_spellings(moment: datetime) -> None:
    for convert, texts, expected in (
        (scalar(column_for_time(None), JSON), moments(moment), moment),
        (scalar(column_for_time("UTC"), JSON), zoned(moment), moment.replace(tzinfo=UTC)),
    ):
        assert convert is not None
        assert len({*texts}) == len(texts) <= MOST
        assert {convert(text) for text in texts if len(text) > 10} == {expected}


def column_for_time(zone: str | None) -> Any:
    import pyarrow as pa

    return column_for(pa.timestamp("us", tz=zone)).arrow


WRITTEN: list[tuple[datetime, list[str]]] = [
    (AT, ["2024-02-29 12:00:00", "2024-02-29T12:00:00", "2024-02-29 12:00", "2024-02-29T12:00:00.000000000"]),
    (AT, ["2024-02-29 12:00:00.000", "2024-02-29 12:00:00.000000"]),
    (
        AT.replace(microsecond=120_000),
        ["2024-02-29 12:00:00.12", "2024-02-29T12:00:00.120", "2024-02-29 12:00:00.120000"],
    ),
    (AT.replace(microsecond=1), ["2024-02-29 12:00:00.000001", "2024-02-29T12:00:00.000001000"]),
    (AT.replace(hour=0), ["2024-02-29", "2024-02-29 00:00", "2024-02-29T00:00:00.0"]),
    (datetime(1, 1, 1, 0, 0, 1), ["0001-01-01 00:00:01"]),
]


@pytest.mark.parametrize(("key", "stored"), WRITTEN)
@pytest.mark.parametrize("kind", ["DATETIME", "TIMESTAMP"])
async def test_X12_a_time_is_found_however_it_is_written(
    path: Path, url: str, kind: str, key: datetime, stored: list[str]
) -> None:
    fill(path, kind, [*stored, "", None, "soon"])
    expected = [{"v": i} for i in range(len(stored))]
    async with opened(url, table="t") as enricher:
        found = await enricher.lookup(key)
        assert [*(found if isinstance(found, list) else [found])] == expected
        assert await enricher.lookup_many([key + timedelta(microseconds=3)]) == [None]
    query = "SELECT id, v FROM t WHERE id IN :keys ORDER BY v"
    async with opened(url, table=None, query=query, schema="id timestamp_ntz, v bigint") as enricher:
        assert await enricher.lookup_many([AT.replace(year=2000), key]) == [None, found]
    async with opened(url, table="t", key=["v", "id"], columns=["id"]) as enricher:
        pairs = [(i, key) for i in range(len(stored))]
        assert await enricher.lookup_many(pairs) == [{"id": key}] * len(stored)


async def test_X12_a_time_with_a_zone_is_found_if_it_is_written_in_utc(path: Path, url: str) -> None:
    fill(path, "TIMESTAMP", ["2024-02-29 12:00:00+00:00", "2024-02-29T12:00:00.000Z"])
    key = AT.replace(hour=14, tzinfo=timezone(timedelta(hours=2)))
    async with opened(url, table="t", schema="id timestamp, v bigint") as enricher:
        assert await enricher.lookup(key) == [{"v": 0}, {"v": 1}]


@pytest.mark.parametrize(
    ("kind", "value", "named", "key"),
    [
        ("DATETIME", 1709208000, "bigint", 1709208000),
        ("DATETIME", 2460370.25, "double", 2460370.25),
        ("DATETIME", "2024-02-29 12:00:00+01:00", "string", "2024-02-29 12:00:00+01:00"),
        ("DATETIME", "2024-02-29_12:00:00", "string", "2024-02-29_12:00:00"),
        ("DATETIME", "2024-02-29 12", "string", "2024-02-29 12"),
        ("DATE", "2024-02-29 00:00:00", "string", "2024-02-29 00:00:00"),
        ("DATE", 20240229, "bigint", 20240229),
    ],
)
async def test_X12_a_time_that_no_key_would_find_is_refused_with_what_works(
    path: Path, url: str, kind: str, value: Any, named: str, key: Any
) -> None:
    fill(path, kind, [value])
    with pytest.raises(ConfigurationError, match=f"the key column 'id' is .*'id {named}, ...'"):
        SqlEnricher(url, table="t", key="id").schema()
    async with opened(url, table="t", schema=f"id {named}, v bigint") as enricher:
        assert await enricher.lookup(key) == {"v": 0}


async def test_a_date_alone_in_a_column_of_times_is_midnight(path: Path, url: str) -> None:
    fill(path, "DATETIME", ["2024-02-29"])
    async with opened(url, table="t", key="v", columns=["id"]) as enricher:
        assert await enricher.lookup(0) == {"id": datetime(2024, 2, 29)}


@pytest.mark.parametrize(
    ("kind", "stored", "keys", "others"),
    [
        ("DATE", ["2024-02-29"], [date(2024, 2, 29)], [date(1, 1, 1), date(9999, 12, 31)]),
        ("DATETIME", ["2024-02-29 12:00:00.000000"], [AT], [AT.replace(hour=0)]),
        ("BOOLEAN", [True], [True], [False]),
        ("BLOB", [b"\0"], [b"\0", bytearray(b"\0")], [b""]),
        ("REAL", [0.5], [0.5, Decimal("0.5")], [0.25, math.nan, math.inf]),
        ("NUMERIC(10, 2)", [1.25], [Decimal("1.25"), Decimal("1.250"), 1.25], [Decimal("NaN"), Decimal("1e30"), 1]),
        ("NUMERIC(30, 0)", [10**18], [10**18, Decimal(10**18)], [10**19, -(10**20), Decimal(2**63)]),
        ("DECIMAL(20, 4)", ["7.5000"], [Decimal("7.5")], [Decimal("7.50001")]),
        ("INTEGER", [2**63 - 1], [2**63 - 1], [2**63, -(2**63) - 1, Decimal("0.5"), 2**200]),
        ("INTEGER", [7], [7, 7.0, Decimal(7)], [7.5, math.nan]),
        ("TEXT", ["a", "\0"], ["a"], ["A", "a ", "\ud800", "\U0001f600", "x" * 10_000, "a\0"]),
        ("CHAR(2)", ["a"], ["a"], ["b", "a ", "abc", "\udfff"]),
    ],
)
async def test_L9_L10_keys_match_by_value_and_one_that_its_column_cannot_hold_is_a_miss(
    path: Path, url: str, kind: str, stored: list[Any], keys: list[Any], others: list[Any]
) -> None:
    fill(path, kind, stored)
    async with opened(url, table="t") as enricher:
        asked, found = [*keys, *others], [{"v": 0}] * len(keys) + [None] * len(others)
        assert await enricher.lookup_many(asked) == [await enricher.lookup(key) for key in asked] == found
        assert "cannot be compared" in str(await failure(enricher, object()))


def test_only_sqlite_has_spellings() -> None:
    assert spellings_of(column_for_time(None), "mariadb") is None
