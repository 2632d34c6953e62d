"""`SqlEnricher` against a real MariaDB: types, digits, characters, hostile keys, a server that goes and comes back."""

from __future__ import annotations

import asyncio
import datetime
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from asyncio_operator import ConfigurationError, EnricherError
from asyncio_operator.testing import check_enricher
from enrichers import SqlEnricher
from enrichers.sql.connections import Connections, Database
from tests.enrichers import helpers
from tests.mariadb_service import PASSWORD, MariadbServer, mariadb, needs_mariadb, run

__all__ = ["mariadb"]


def opened(server: MariadbServer, **options: Any) -> AbstractAsyncContextManager[SqlEnricher]:
    return helpers.opened(SqlEnricher(**({"url": server.url, "table": "t", "key": "id"} | options)))


async def failure(enricher: SqlEnricher, *keys: Any) -> EnricherError:
    error = await helpers.failure(enricher, *keys)
    assert "sqlalche.me" not in helpers.told(error)
    return error


HOSTILE = ["' OR 1=1 -- ", "\\' OR 1=1 -- ", '"; DROP TABLE t; --', "\0", "%s %(x)s :keys ?", "\ud800", "ü\U0001f600"]


@pytest.mark.parametrize("dialect", ["mysql", "mariadb"])
def test_a_table_keeps_the_contract(mariadb: MariadbServer, dialect: str) -> None:
    run(
        mariadb.execute(
            "CREATE OR REPLACE TABLE t (id varchar(20), v int, INDEX (id))",
            "INSERT INTO t VALUES ('a', 1), ('b', 2), ('b', 3), ('B', 4), (NULL, 5)",
        )
    )
    url = mariadb.url_with(dialect=dialect)
    check_enricher(
        lambda: SqlEnricher(url, table="t", key="id"),
        known={"a": {"v": 1}, "b": [{"v": 2}, {"v": 3}], "B": {"v": 4}},
        missing=["A", "a ", "c", *HOSTILE, "x" * 100_000],
        secrets=[PASSWORD],
    )
    assert len(run(mariadb.execute("SELECT * FROM t"))) == 5


async def test_keys_are_escaped_as_the_mode_of_the_server_wants_it(mariadb: MariadbServer) -> None:
    keys = [key for key in HOSTILE if key != "\ud800"]
    await mariadb.execute("CREATE OR REPLACE TABLE h (id varchar(50) COLLATE utf8mb4_bin, v int)")
    for mode in ("", "NO_BACKSLASH_ESCAPES,ANSI_QUOTES"):
        arguments = {"init_command": f"SET SESSION sql_mode = '{mode}'"}
        async with opened(mariadb, table="h", connect_args=arguments) as enricher:
            assert await enricher.lookup_many(keys) == [None] * len(keys)
            for number, key in enumerate(keys):
                text = key.encode().hex()
                await mariadb.execute(f"INSERT INTO h VALUES (X'{text}', {number})")
            assert await enricher.lookup_many(keys) == [{"v": number} for number in range(len(keys))]
            await mariadb.execute("DELETE FROM h")


VALUES: list[tuple[str, str, Any]] = [
    ("tinyint", "-128", -128),
    ("tinyint unsigned", "255", 255),
    ("smallint", "-32768", -32768),
    ("smallint unsigned", "65535", 65535),
    ("mediumint unsigned", "16777215", 2**24 - 1),
    ("int", "-2147483648", -(2**31)),
    ("int unsigned", "4294967295", 2**32 - 1),
    ("bigint", "-9223372036854775808", -(2**63)),
    ("bigint unsigned", "18446744073709551615", Decimal(2**64 - 1)),
    ("year", "2024", 2024),
    ("float", "0.5", 0.5),
    ("double", "0.1", 0.1),
    ("decimal(10,2)", "-1.50", Decimal("-1.50")),
    ("decimal(50,10)", "1.5", Decimal("1.5000000000")),
    ("char(3)", "'a'", "a"),
    ("varchar(30)", "'ü\U0001f600'", "ü\U0001f600"),
    ("text", "'x'", "x"),
    ("enum('sad','ok')", "'ok'", "ok"),
    ("set('a','b')", "'a,b'", "a,b"),
    ("json", "'{\"a\": 1}'", '{"a": 1}'),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("date", "'2024-02-29'", datetime.date(2024, 2, 29)),
    ("datetime(6)", "'2024-02-29 12:00:00.000001'", datetime.datetime(2024, 2, 29, 12, 0, 0, 1)),
    ("timestamp", "'2024-02-29 12:00:00'", datetime.datetime(2024, 2, 29, 12)),
    ("binary(2)", "X'00ff'", b"\0\xff"),
    ("blob", "X'00ff'", b"\0\xff"),
]


async def test_values_of_every_type_come_as_arrow_can_take_them(mariadb: MariadbServer) -> None:
    names = [f"c{number}" for number in range(len(VALUES))]
    columns = ", ".join(f"{name} {kind} NULL" for name, (kind, _, _) in zip(names, VALUES, strict=True))
    await mariadb.execute(
        f"CREATE OR REPLACE TABLE v (id int, {columns})",
        f"INSERT INTO v VALUES (1, {', '.join(literal for _, literal, _ in VALUES)})",
        "INSERT INTO v (id) VALUES (2)",
    )
    async with opened(mariadb, table="v") as enricher:
        full, empty = await enricher.lookup_many([1, 2])
        assert full == dict(zip(names, (value for _, _, value in VALUES), strict=True))
        assert empty == dict.fromkeys(names)
        assert pa.Table.from_pylist([full, empty], enricher.schema()).to_pylist() == [full, empty]


async def test_keys_of_every_type_find_their_row(mariadb: MariadbServer) -> None:
    for kind, literal, value in VALUES:
        if kind in ("float", "json", "text", "blob"):
            continue  # not compared by value, or not without a length
        await mariadb.execute(f"CREATE OR REPLACE TABLE k (id {kind}, v int)", f"INSERT INTO k VALUES ({literal}, 7)")
        async with opened(mariadb, table="k") as enricher:
            assert await enricher.lookup(value) == {"v": 7}, kind


async def test_a_date_that_python_cannot_hold_is_an_error_of_its_key(mariadb: MariadbServer) -> None:
    await mariadb.execute(
        "CREATE OR REPLACE TABLE z (id int, v date, w bit(1), x time)",
        "SET SESSION sql_mode = ''",
        "INSERT INTO z VALUES (1, '2024-01-01', 1, '12:00'), (2, '0000-00-00', 0, '800:00')",
    )
    async with opened(mariadb, table="z", columns=["v"]) as enricher:
        error = await failure(enricher, 1, 2)
        assert "key 2: the column 'v' holds '0000-00-00' (a text), which does not fit date:" in str(error)
        assert (error.retryable, error.any_key) == (False, False)
    with pytest.raises(ConfigurationError, match=r"'w' of type BIT.*'x' of type TIME"):
        SqlEnricher(mariadb.url, table="z", key="id").schema()
    async with opened(mariadb, table="z", columns=["w"], schema="id int, w boolean") as enricher:
        assert await enricher.lookup_many([1, 2]) == [{"w": True}, {"w": False}]


async def test_composite_keys_use_the_index(mariadb: MariadbServer) -> None:
    await mariadb.execute(
        "CREATE OR REPLACE TABLE c (a varchar(20), b int, v int, PRIMARY KEY (a, b))",
        "INSERT INTO c SELECT concat('a', seq % 100), seq, seq FROM seq_1_to_5000",
    )
    async with opened(mariadb, table="c", key=["a", "b"]) as enricher:
        keys = [(f"a{number % 100}", number) for number in range(1, 500)]
        assert await enricher.lookup_many([*keys, ("a1", 2)]) == [*({"v": b} for _, b in keys), None]
    sql = "EXPLAIN SELECT v FROM c WHERE (a, b) IN (('a1', 1), ('a2', 2))"
    assert (await mariadb.execute(sql))[0][3] == "range"


async def test_wrong_credentials_and_privileges_are_not_retryable(mariadb: MariadbServer) -> None:
    await mariadb.execute(
        "CREATE OR REPLACE TABLE p (id int, v int)",
        "CREATE OR REPLACE USER reader IDENTIFIED BY 's3cret-other'",
        "GRANT SELECT (id) ON d.p TO reader",
    )
    for url, says in (
        (mariadb.url_with("wrong-s3cret"), "refuses the credentials"),
        (mariadb.url_with("s3cret-other", "reader"), "privileges do not suffice"),
        (mariadb.url_with(name="nothing"), "no such database"),
    ):
        enricher = SqlEnricher(url, table="p", key="id", schema="id int, v int")
        object.__setattr__(enricher, "_description", SqlEnricher(mariadb.url, table="p", key="id")._described())
        await enricher.open()
        error = await failure(enricher, 1)
        assert (says in str(error), error.retryable, error.any_key) == (True, False, True), error
        await enricher.close()


async def test_X7_a_cancelled_lookup_leaves_nothing_and_the_server_ends_its_statement(mariadb: MariadbServer) -> None:
    query = "SELECT 1 AS id, SLEEP(if(1 IN :keys, 30, 0)) AS v"
    async with opened(mariadb, table=None, query=query, schema="id int, v int", pool_size=1) as enricher:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await enricher.lookup(1)
    sql = "SELECT count(*) FROM information_schema.processlist WHERE info LIKE '%SLEEP%' AND time > 5"
    assert await mariadb.execute(sql) == ((0,),)


async def test_X7_a_server_that_hangs_is_left_at_the_deadline(mariadb: MariadbServer) -> None:
    await mariadb.execute("CREATE OR REPLACE TABLE g (id int, v int)", "INSERT INTO g VALUES (1, 2), (3, 4)")
    async with opened(mariadb, table="g", pool_size=1) as enricher:
        assert await enricher.lookup(1) == {"v": 2}
        with mariadb.paused():
            for _ in range(2):  # on the connection that stands, and on a new one
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await enricher.lookup(1)
        # No lookup waits for the late answers.
        assert await enricher.lookup(3) == {"v": 4}


async def test_a_lock_that_is_not_free_is_retryable(mariadb: MariadbServer) -> None:
    await mariadb.execute("CREATE OR REPLACE TABLE l (id int PRIMARY KEY, v int)", "INSERT INTO l VALUES (1, 2)")
    import aiomysql

    other = await aiomysql.connect(host="127.0.0.1", port=mariadb.port, user="test", password=PASSWORD, db="d")
    cursor = await other.cursor()
    await cursor.execute("SELECT * FROM l FOR UPDATE")
    query = "SELECT id, v FROM l WHERE id IN :keys FOR UPDATE"
    arguments = {"init_command": "SET innodb_lock_wait_timeout = 0"}
    async with opened(mariadb, table=None, query=query, schema="id int, v int", connect_args=arguments) as enricher:
        error = await failure(enricher, 1)
        assert (error.retryable, error.any_key) == (True, True)
        assert "could not get a lock (Lock wait timeout exceeded" in str(error)
        await other.rollback()  # A closed connection keeps its locks until the server notices.
        await other.ensure_closed()
        assert await enricher.lookup(1) == {"v": 2}


async def test_it_connects_again_after_a_restart_and_says_so_while_the_server_is_gone() -> None:
    needs_mariadb()
    with MariadbServer(**{"max-connections": "10"}) as server:
        await server.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 2)")
        async with opened(server, url=lambda: server.url, pool_size=3) as enricher:
            assert await asyncio.gather(*(enricher.lookup(1) for _ in range(9))) == [{"v": 2}] * 9
            server.restart()
            assert await asyncio.gather(*(enricher.lookup(1) for _ in range(9))) == [{"v": 2}] * 9
            lost = asyncio.ensure_future(enricher.lookup_many([1]))
            server.stop()
            await asyncio.gather(lost, return_exceptions=True)
            error = await failure(enricher, 1)
            assert (error.retryable, error.any_key) == (True, True)
            assert "not reachable (Can't connect to MySQL server on '127.0.0.1', error 2003)" in str(error)
            server.start()
            assert await enricher.lookup(1) == {"v": 2}


async def test_a_connection_that_no_statement_has_used_is_replaced_too() -> None:
    """That of a lookup which was cancelled before it was there, or was served by another one."""
    needs_mariadb()
    with MariadbServer() as server:
        await server.execute("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 2)")
        connections = Connections(Database(lambda: server.url, None, 5.0), "t", 1)
        first = asyncio.ensure_future(connections.fetch(sa.text("SELECT 1"), {}))
        await asyncio.sleep(0)
        first.cancel()
        async with asyncio.timeout(10):
            while "1 idle" not in repr(connections):  # noqa: ASYNC110 - a pool does not tell
                await asyncio.sleep(0.01)
        server.restart()
        assert (await connections.fetch(sa.text("SELECT v FROM t"), {}))[1] == [(2,)]
        await connections.close()


async def test_L8_a_full_server_is_shared_by_the_connections_that_there_are(mariadb: MariadbServer) -> None:
    await mariadb.execute(
        "CREATE OR REPLACE USER few IDENTIFIED BY 's3cret-few' WITH MAX_USER_CONNECTIONS 2",
        "GRANT SELECT ON d.* TO few",
        "CREATE OR REPLACE TABLE f (id int PRIMARY KEY, v int)",
        "INSERT INTO f VALUES (1, 2)",
    )
    url = mariadb.url_with("s3cret-few", "few")
    async with opened(mariadb, url=url, table="f", pool_size=8) as enricher:
        assert await asyncio.gather(*(enricher.lookup(1) for _ in range(50))) == [{"v": 2}] * 50


# -- digits and characters


FLOATS = [
    "0.1",
    "16777216",
    "-16777215",
    "1234567",
    "123456.789",
    "1e-10",
    "3.4e38",
    "20240229",
    "0.30000001",
    "-1e-38",
]


@pytest.mark.parametrize("kind", ["float", "float(24)", "float unsigned", "float(30,4)", "double", "real"])
@pytest.mark.parametrize("schema", [None, "id {0}, v {0}, n int"])
async def test_X12_every_digit_of_a_float_comes_and_finds_its_row(
    mariadb: MariadbServer, kind: str, schema: str | None
) -> None:
    fits = [n for n in FLOATS if not (n[0] == "-" and "unsigned" in kind) and not ("e" in n and "," in kind)]
    rows = [f"({number}, {number}, {i})" for i, number in enumerate(fits)]
    await mariadb.execute(
        "SET SESSION sql_mode = ''",
        f"CREATE OR REPLACE TABLE fl (id {kind}, v {kind}, n int)",
        f"INSERT INTO fl VALUES {', '.join(rows)}",
    )
    stored = await mariadb.execute("SELECT id + 0e0, n FROM fl")
    with_schema = {} if schema is None else {"schema": schema.format("double")}
    async with opened(mariadb, table="fl", columns=["v", "n"], **with_schema) as enricher:
        found = await enricher.lookup_many([key for key, _ in stored])
        assert found == [{"v": key, "n": n} for key, n in stored]
        if kind == "float":
            assert await enricher.lookup(0.1) is None, "the server finds nothing either: no float is 0.1"
    async with opened(mariadb, table="fl", key=["n", "id"], columns=["v"], **with_schema) as enricher:
        assert await enricher.lookup_many([(n, key) for key, n in stored]) == [{"v": key} for key, _ in stored]


async def test_X12_a_query_that_would_cut_a_float_is_refused_with_what_works(mariadb: MariadbServer) -> None:
    await mariadb.execute("CREATE OR REPLACE TABLE fq (id int, v float)", "INSERT INTO fq VALUES (1, 16777216)")
    query = "SELECT id, {} FROM fq WHERE id IN :keys"
    advised = ""
    for kind in ("double", "float", "decimal(20,2)"):
        with pytest.raises(ConfigurationError, match="sends six digits only") as raised:
            SqlEnricher(mariadb.url, query=query.format("v"), key="id", schema=f"id int, v {kind}").schema()
        advised = str(raised.value)
    advised = advised.partition("as in ")[2]
    async with opened(mariadb, table=None, query=query.format(advised), schema="id int, v double") as enricher:
        assert await enricher.lookup(1) == {"v": 16777216.0}


HELD = {
    "utf8mb3": "aé日",
    "latin1": "aé\x81€",
    "ascii": "a",
    "cp1251": "aж",
    "gbk": "aé日",
    "ucs2": "aé日",
    "utf16": "aé日\U0001f600",
    "koi8r": "aж",
    "sjis": "a日",
    "utf8mb4": "aé日\U0001f600",
}


@pytest.mark.parametrize("characters", HELD)
async def test_L9_a_text_that_the_character_set_of_its_column_cannot_hold_is_a_miss(
    mariadb: MariadbServer, characters: str
) -> None:
    keys = ["a", "é", "日", "\U0001f600", "ж", "\x81", "€", "\0", "x" * 100_000, "\ud800"]
    held = [key for key in keys if key in HELD[characters]]
    rows = ", ".join(f"(CONVERT(X'{key.encode().hex()}' USING utf8mb4), {i})" for i, key in enumerate(held))
    kind = f"varchar(20) CHARACTER SET {characters}"
    await mariadb.execute(f"CREATE OR REPLACE TABLE cs (id {kind}, v int, INDEX (id))", f"INSERT INTO cs VALUES {rows}")
    expected = [{"v": held.index(key)} if key in held else None for key in keys]
    query = {"table": None, "query": "SELECT id, v FROM cs WHERE id IN :keys", "schema": "id string, v int"}
    for options in ({"table": "cs"}, query):
        async with opened(mariadb, **options) as enricher:
            assert await enricher.lookup_many(keys) == expected
            assert [await enricher.lookup(key) for key in keys] == expected
    async with opened(mariadb, table="cs", key=["id", "v"], columns=["v"]) as enricher:
        pairs = [(key, held.index(key) if key in held else 0) for key in keys]
        assert await enricher.lookup_many(pairs) == expected


@pytest.mark.parametrize("schema", ["id timestamp, v int", "id timestamp_ntz, v timestamp"])
async def test_X4_a_time_is_not_declared_with_a_zone_that_mysql_does_not_have(
    mariadb: MariadbServer, schema: str
) -> None:
    """The moment would be compared as if it were of the session's zone: another row, or none."""
    await mariadb.execute("CREATE OR REPLACE TABLE zo (id datetime, v datetime)")
    sources: list[dict[str, Any]] = [{"table": "zo"}, {"query": "SELECT id, v FROM zo WHERE id IN :keys"}]
    for source in sources:
        with pytest.raises(ConfigurationError, match=r"column '(id|v)' is timestamp in schema=.*timestamp_ntz"):
            SqlEnricher(mariadb.url, key="id", schema=schema, **source).schema()


@pytest.mark.parametrize("charset", ["utf8", "utf8mb3", "utf8mb4"])
async def test_X12_every_character_comes_whatever_mysql_calls_utf8(mariadb: MariadbServer, charset: str) -> None:
    await mariadb.execute("CREATE OR REPLACE TABLE em (id varchar(9), v varchar(9)) CHARACTER SET utf8mb4")
    await mariadb.execute("INSERT INTO em VALUES ('\U0001f600', 'a'), ('b', '\U0001f600')")
    asked, expected = ["\U0001f600", "b", "\U0001f601"], [{"v": "a"}, {"v": "\U0001f600"}, None]
    for options in ({"url": f"{mariadb.url}?charset={charset}"}, {"connect_args": {"charset": charset}}):
        async with opened(mariadb, table="em", **options) as enricher:
            assert await enricher.lookup_many(asked) == expected
    with pytest.raises(ConfigurationError, match=r"character set latin1.*charset=utf8mb4"):
        SqlEnricher(f"{mariadb.url}?charset=latin1", table="em", key="id").schema()
