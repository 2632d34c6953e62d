"""Law X12 for text: a lenient reader of Python would find other rows, or make other values, than the source means."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

import asyncpg
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncio_operator.enricher import as_schema
from enrichers.databases.key_kinds import Instants, Uuids
from enrichers.scalars import COERCED, JSON, TEXT
from enrichers.typed import MisfitError, json_decoder, typed_row
from tests.enrichers.conftest import Database

ONE = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
DIGITS = ONE.replace("-", "")

SPELLINGS = [
    ONE,
    ONE.upper(),
    DIGITS,
    f"{{{ONE}}}",
    f"{{{DIGITS}}}",
    "-".join(DIGITS[i : i + 4] for i in range(0, 32, 4)),
    "-".join(DIGITS[i : i + 8] for i in range(0, 32, 8)),
    "-".join(DIGITS[i : i + 2] for i in range(0, 32, 2)),
    *(
        f"{before}{ONE}{after}"
        for before, after in ((" ", ""), ("", " "), ("", "\n"), ("{", ""), ("", "}"), ("{{", "}}"))
    ),
    f"urn:uuid:{ONE}",
    f"uuid:{ONE}",
    f"{ONE}-",
    f"-{ONE}",
    ONE.replace("-", "--"),
    "0x" + DIGITS[2:],
    "+" + DIGITS[1:],
    " " + DIGITS[1:],
    DIGITS[:4] + "_" + DIGITS[5:],
    "\uff11" + DIGITS[1:],
    "\u0661" * 32,
    DIGITS[1:],
    DIGITS + "0",
    "",
]


async def test_X12_a_text_finds_the_uuids_that_postgres_finds(database: Database) -> None:
    await database.execute(f"CREATE TABLE t (id uuid, n int); INSERT INTO t VALUES ('{ONE}', 1)")
    digits = [spelling for spelling in SPELLINGS if len(spelling) == 32]
    for text in digits:
        if text.isascii() and text.isalnum() and text != DIGITS:
            await database.execute(f"INSERT INTO t VALUES ('{uuid.UUID(text.replace('x', '0'))}', 2)")
    await database.execute("INSERT INTO t VALUES ('00eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 3)")
    async with database.enricher(table="t", key="id", columns=["n"]) as enricher:
        for text in SPELLINGS:
            try:
                found = await database.fetch("SELECT n FROM t WHERE id = $1::text::uuid", text)
            except asyncpg.DataError:
                found = []
            wanted = [row["n"] for row in found]
            assert [row["n"] for row in await enricher.lookup_many([text]) if row] == wanted, text  # type: ignore[call-overload]
            assert (await enricher.lookup_columns(pa.array([text])))["n"].to_pylist() == wanted, text


@given(st.text(st.sampled_from("0aF-{} x_\uff11"), min_size=28, max_size=45) | st.uuids().map(str))
@example("{" + ONE)
def test_X12_a_text_is_a_uuid_only_as_postgres_reads_it(text: str) -> None:
    found = Uuids().canonical(text)
    assert found is None or str(uuid.UUID(text)) == found
    if found is not None:
        assert text.isascii()
        assert set(text.lower()) <= set("0123456789abcdef-{}")


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("bigint", ["\u00a07", "7\u2003", "7 7", "\uff17", "\u0667", "1_0", "0x7", "7.0", "--7", "\x1c7"]),
        ("double", ["\u00a01.5", "1_0.5", "\uff11.5", "0x1p3", "1,5", "1.5f", "1e400", "-1e400"]),
        ("decimal(10,2)", ["\u00a01", "1_0", "\uff11", "1,0", "1.505", "NaN", "Infinity", "1e10"]),
        ("boolean", ["\u00a0true", "t", "yes", "on", "\uff11", "2", "01"]),
        ("date", ["\u00a02024-02-29", "2024-2-9", "20240229", "2024-W09-4", "2024-060", "\uff12024-02-29"]),
        (
            "timestamp_ntz",
            [
                "\u00a02024-02-29T12:00:00",
                "2024-02-29T12:00:00\x1c",
                "2024-02-29T120000.1234567",
                "2024-02-29T12:00:00.1234567",
                "2024-02-29T12:00:00,12345670000001",
                "2024-02-29",
                "2024-02-29x12:00:00",
            ],
        ),
    ],
)
def test_X12_a_text_that_is_no_value_of_its_type_is_an_error(kind: str, texts: list[str]) -> None:
    schema = as_schema(f"c {kind}")
    for text in texts:
        for value in (text, text.encode()):
            with pytest.raises(MisfitError, match="column 'c' holds"):
                typed_row({"c": value}, schema, TEXT)


@pytest.mark.parametrize("kind", ["bigint", "double", "decimal(10,2)", "boolean", "date", "timestamp"])
def test_X12_an_empty_text_is_null(kind: str) -> None:
    value: Any = typed_row({"c": ""}, as_schema(f"c {kind}"), TEXT)
    assert value == {"c": None}


@pytest.mark.parametrize("kind", ["double", "decimal(10,2)", "int"])
@pytest.mark.parametrize("text", ['{"v":1,"v":2}', '[{"v":1},{"w":{"a":1,"a":1}}]', '{"v":1,"\\u0076":1}'])
def test_X12_an_object_with_two_values_of_one_name_is_an_error(kind: str, text: str) -> None:
    for coerce in (False, True):
        with pytest.raises(ValueError, match="two values of one name"):
            json_decoder(as_schema(f"v {kind}"), COERCED if coerce else JSON)(text)


def test_L10_the_zone_of_a_key_need_not_have_a_hash() -> None:
    class Zone(datetime.tzinfo):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return self is other

        def utcoffset(self, _moment: datetime.datetime | None) -> datetime.timedelta:
            return datetime.timedelta(hours=1)

        def tzname(self, _moment: datetime.datetime | None) -> str:
            return "one hour"

        dst = utcoffset

    noon = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
    one, other = noon.replace(tzinfo=Zone()), noon.replace(tzinfo=Zone())
    hour = datetime.timedelta(hours=1)
    assert Instants().canonical_many([noon, one, other]) == [noon, noon - hour, noon - hour]
    assert Instants().canonical_many(keys := [noon, noon]) is keys
