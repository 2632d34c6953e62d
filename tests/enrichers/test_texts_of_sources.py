"""Text of sources: bytes that are no text and texts that are no value are errors of their key that say what works."""

from __future__ import annotations

import asyncio
import datetime
import re
import uuid
from pathlib import Path

import asyncpg
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncio_operator import ConfigurationError, EnricherError
from asyncio_operator.lookup import Lookup
from enrichers import PostgresEnricher, SqlEnricher
from enrichers.databases.key_kinds import Instants, Uuids
from tests.enrichers.conftest import Database
from tests.enrichers.helpers import in_sqlite
from tests.servers import PostgresServer

BAD = "convert_from('\\x53fcdf', 'SQL_ASCII')"


@pytest.fixture(scope="module")
def dsn(postgres: PostgresServer) -> str:
    """A database in SQL_ASCII. The key 7 has text in LATIN1, 8 in UTF-8, and both an ASCII one."""
    rows = "SELECT i AS id, 'k' || i AS k, 'plain' AS a, '\\u0008 ' || i AS \"v %\" FROM generate_series(1, 100) i"
    change = f'UPDATE t SET "v %" = {BAD} WHERE id = 7; UPDATE t SET "v %" = \'Süß\' WHERE id = 8'
    asyncio.run(postgres.run("CREATE DATABASE undecodable ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"))
    asyncio.run(postgres.run(f"CREATE TABLE t AS {rows}", change, database="undecodable"))
    return postgres.socket_dsn("undecodable")


async def answers(enricher: PostgresEnricher | SqlEnricher, keys: list[object]) -> list[object]:
    async with Lookup(enricher) as lookup:
        return await asyncio.gather(*map(lookup.get, keys), return_exceptions=True)


@pytest.mark.parametrize("count", [1, 3, 100])
@pytest.mark.parametrize("key", ["id", "k", ["k", "id"]])
async def test_X12_text_of_postgres_that_is_not_utf8_is_an_error_of_its_key_that_says_what_to_do(
    dsn: str, key: str | list[str], count: int
) -> None:
    keys: list[object] = [7, *range(8, 7 + count)] if key == "id" else [f"k{n}" for n in range(7, 7 + count)]
    if isinstance(key, list):
        keys = [(f"k{n}", n) for n in range(7, 7 + count)]
    bad, *others = await answers(PostgresEnricher(dsn, table="t", key=key, columns=["a", "v %"]), keys)
    assert all(isinstance(row, dict) for row in others[:93])
    assert isinstance(bad, EnricherError)
    assert (bad.retryable, bad.any_key, bad.code) == (False, False, "22021")
    text = str(bad)
    assert f"(table=\"t\"), key {keys[0]!r}: the column 'v %' holds b'S\\xfc\\xdf'" in text
    assert "cannot take" not in text
    expressions = re.findall(r"(?:as|as bytes,) (convert\w*\(.*?\) AS \"v %\")", text)
    assert len(expressions) == 2, text
    for expression, value in zip(expressions, [b"S\xfc\xdf", "Süß"], strict=True):
        query = f"SELECT id, {expression} FROM t WHERE id = ANY ($1)"
        rows = await answers(PostgresEnricher(dsn, query=query, key="id"), [7, 1])
        other = "\\u0008 1"
        assert rows == [{"v %": value}, {"v %": other if isinstance(value, str) else other.encode()}]
    rest = PostgresEnricher(dsn, table="t", key="id", columns=["a"])
    assert await answers(rest, [7]) == [{"a": "plain"}]


async def test_L9_a_key_that_the_database_cannot_hold_is_a_miss_beside_text_that_cannot_be_read(dsn: str) -> None:
    found = await answers(PostgresEnricher(dsn, table="t", key="k", columns=["v %"]), ["k7", "k\0", "é", "k1"])
    assert [type(one) for one in found] == [EnricherError, type(None), type(None), dict]


@pytest.mark.parametrize(
    "value", ["convert_from('\\x53fc', 'UTF8')", "(('{\"a\": \"\\u0000\"}' || left(k, 0))::json) ->> 'a'"]
)
async def test_X12_text_that_a_query_cannot_compute_is_not_called_a_key(postgres: PostgresServer, value: str) -> None:
    query = f"SELECT k, 1 AS one, {value} AS v FROM unnest($1::text[]) AS k WHERE k <> ''"
    for key in ("é", "x"):
        [bad] = await answers(PostgresEnricher(postgres.dsn, query=query, key="k"), [key])
        assert f"key {key!r}: a text of its rows cannot be sent as UTF-8 (" in str(bad)


async def test_X12_a_client_encoding_that_is_not_utf8_is_refused(dsn: str) -> None:
    for encoding in ("LATIN1", "SQL_ASCII"):
        with pytest.raises(ConfigurationError, match=r"client_encoding is not UTF8.*: leave client_encoding out of it"):
            PostgresEnricher(f"{dsn}&client_encoding={encoding}", table="t", key="id")
    for encoding in ("utf-8", "UTF8", "'utf8'"):
        enricher = PostgresEnricher(f"{dsn}&client_encoding={encoding}", table="t", key="id")
        assert enricher.schema().names == ["k", "a", "v %"]


async def test_X12_the_same_through_sqlalchemy(dsn: str, postgres: PostgresServer) -> None:
    url = postgres.tcp_dsn("undecodable").replace("postgresql://", "postgresql+asyncpg://")
    bad, good = await answers(SqlEnricher(url, table="t", key="id", columns=["v %"]), [7, 8])
    assert good == {"v %": "Süß"}
    assert "table='t'), key 7: a text of its rows is not UTF-8" in str(bad)
    assert await answers(SqlEnricher(url, table="t", key="k", columns=["id"]), ["k\0", "k7"]) == [None, {"id": 7}]
    found = re.search(r"as in (convert_from.* AS v) ", str(bad))
    assert found is not None
    expression = re.sub(r"\bv\b", '"v %"', found[1])
    query = f"SELECT id, {expression} FROM t WHERE id IN :keys"
    enricher = SqlEnricher(url, query=query, key="id", schema="id int, `v %` string")
    assert await answers(enricher, [7]) == [{"v %": "Süß"}]


async def test_X12_text_of_sqlite_that_is_not_utf8_is_an_error_of_its_key_that_says_what_to_do(tmp_path: Path) -> None:
    insert = "INSERT INTO t VALUES (7, CAST(x'53fcdf' AS TEXT)), (8, 'Süß')"
    url = in_sqlite(tmp_path / "t.db", "CREATE TABLE t (id INTEGER, v TEXT)", insert)
    bad, good = await answers(SqlEnricher(url, table="t", key="id"), [7, 8])
    assert good == {"v": "Süß"}
    assert isinstance(bad, EnricherError)
    assert (bad.retryable, bad.any_key) == (False, False)
    text = str(bad)
    assert "table='t'), key 7: a text of its rows is not UTF-8" in text
    found = re.search(r"CAST\((\w+) AS BLOB\) AS \1", text)
    assert found, text
    query = "SELECT id, CAST(v AS BLOB) AS v FROM t WHERE id IN :keys"
    enricher = SqlEnricher(url, query=query, key="id", schema="id long, v binary")
    assert await answers(enricher, [7, 8]) == [{"v": b"S\xfc\xdf"}, {"v": "Süß".encode()}]


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
