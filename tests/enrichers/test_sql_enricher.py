"""`SqlEnricher` against SQLite, in a real file: answers, types, names, keys, errors, limits, what it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import math
import os
import sqlite3
import threading
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from asyncio_operator import ConfigurationError, ResultError
from asyncio_operator.testing import check_enricher
from enrichers import SqlEnricher, TableEnricher
from enrichers.sql import connections
from enrichers.sql import key_select as statements
from tests.enrichers import helpers
from tests.enrichers.helpers import failure, in_sqlite, told

MOST_OF_SQLITE = 32_766


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite+aiosqlite:///{path}"


def opened(url: Any, **options: Any) -> AbstractAsyncContextManager[SqlEnricher]:
    return helpers.opened(SqlEnricher(url, **({"key": "id"} | options)))


HOSTILE = ["' OR 1=1 --", '"; DROP TABLE t; --', "\0", "%s %(x)s :keys ?", "\ud800", "ü\U0001f600", "\\", "x" * 100_000]


@pytest.mark.parametrize("max_batch", [1, 500])
def test_a_table_keeps_the_contract(path: Path, url: str, max_batch: int) -> None:
    in_sqlite(
        path,
        "CREATE TABLE t (id TEXT, v INTEGER, w TEXT)",
        "INSERT INTO t VALUES ('a', 1, 'x'), ('b', 2, NULL), ('b', 3, 'y'), ('B', 4, 'z'), (NULL, 5, 'n')",
    )
    check_enricher(
        lambda: SqlEnricher(url, table="t", key="id", max_batch=max_batch),
        known={
            "a": {"v": 1, "w": "x"},
            "b": [{"v": 2, "w": None}, {"v": 3, "w": "y"}],
            "B": {"v": 4, "w": "z"},
        },
        missing=["A", "c", *HOSTILE, None],
    )


def test_composite_keys_and_a_query_keep_the_contract(path: Path, url: str) -> None:
    in_sqlite(
        path,
        "CREATE TABLE t (a TEXT, b INTEGER, v TEXT)",
        "INSERT INTO t VALUES ('x', 1, 'one'), ('x', 2, 'two'), ('y', 1, 'three'), ('y', 1, 'four'), (NULL, 1, 'n')",
    )
    known: dict[Any, Any] = {("x", 1): {"v": "one"}, ("y", 1): [{"v": "four"}, {"v": "three"}]}
    query = "SELECT b, v, a FROM t WHERE (a, b) IN :keys ORDER BY v"
    check_enricher(
        lambda: SqlEnricher(lambda: url, query=query, key=["a", "b"], schema="a string, b int, v string"),
        known=known,
        missing=[("z", 1), ("x", 3), ("x", None)],
    )


@pytest.mark.parametrize("dialect", ["sqlite", "mssql"])
async def test_composite_keys_find_their_rows_with_and_without_row_values(
    path: Path, url: str, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dialect == "mssql":
        monkeypatch.setattr(statements, "WITHOUT_ROW_VALUES", {"sqlite"})
    rows = [(a, b, 10 * a + b) for a in range(10) for b in range(10)]
    in_sqlite(path, "CREATE TABLE t (a INTEGER, b INTEGER, v INTEGER)", "INSERT INTO t VALUES (?, ?, ?)", rows=rows)
    async with opened(url, table="t", key=["a", "b"]) as enricher:
        keys = [(a, b) for a in range(9, -2, -1) for b in range(12)]
        assert await enricher.lookup_many(keys) == [
            {"v": 10 * a + b} if 0 <= a < 10 and b < 10 else None for a, b in keys
        ]


VALUES: list[tuple[str, Any, Any]] = [
    ("INTEGER", -(2**63), -(2**63)),
    ("BIGINT", 2**63 - 1, 2**63 - 1),
    ("REAL", 0.1, 0.1),
    ("REAL", math.inf, math.inf),
    ("NUMERIC(10, 2)", 1.25, Decimal("1.25")),
    ("NUMERIC(10, 2)", 7, Decimal("7.00")),
    ("NUMERIC", 0.1, Decimal("0.100000000000000000")),
    ("TEXT", "ü\0\U0001f600", "ü\0\U0001f600"),
    ("VARCHAR(3)", "abc", "abc"),
    ("BOOLEAN", 1, True),
    ("BLOB", b"\0\xff", b"\0\xff"),
    ("DATE", "2024-02-29", datetime.date(2024, 2, 29)),
    ("DATETIME", "2024-02-29 12:00:00.000001", datetime.datetime(2024, 2, 29, 12, 0, 0, 1)),
    ("TIMESTAMP", "2024-02-29T12:00:00", datetime.datetime(2024, 2, 29, 12)),
    ("JSON", '{"a": [1]}', '{"a": [1]}'),
]


async def test_values_of_every_type_come_as_arrow_can_take_them(path: Path, url: str) -> None:
    names = [f"c{number}" for number in range(len(VALUES))]
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in zip(names, VALUES, strict=True))
    marks = ", ".join("?" * len(VALUES))
    rows = [(1, *(stored for _, stored, _ in VALUES)), (2, *(None for _ in VALUES))]
    in_sqlite(path, f"CREATE TABLE t (id INTEGER, {columns})", f"INSERT INTO t VALUES (?, {marks})", rows=rows)
    async with opened(url, table="t") as enricher:
        full, empty = await enricher.lookup_many([1, 2])
        assert full == dict(zip(names, (value for _, _, value in VALUES), strict=True))
        assert empty == dict.fromkeys(names)
        assert pa.Table.from_pylist([full, empty], enricher.schema()).to_pylist() == [full, empty]


MISFITS: list[tuple[str, Any, str]] = [
    ("INTEGER", "seven", "'seven' (a text), which does not fit"),
    ("INTEGER", 1.5, "no whole number"),
    ("REAL", "much", "'much' (a text), which does not fit"),
    ("NUMERIC(4, 2)", 1.234, "1.234 (a number), which does not fit"),
    ("TEXT", b"x", "a text is needed"),
    ("BOOLEAN", 2, "true, false, 1 or 0"),
    ("BLOB", "x", "bytes are needed"),
    ("DATE", "29.2.2024", "a date is needed"),
    ("DATETIME", "2024-02-29 12:00:00+01:00", "without a zone"),
]


@pytest.mark.parametrize(("kind", "stored", "says"), MISFITS)
async def test_a_value_that_does_not_fit_is_an_error_of_its_key(
    path: Path, url: str, kind: str, stored: Any, says: str
) -> None:
    rows = [("good", None), ("bad", stored)]
    in_sqlite(path, f"CREATE TABLE t (id TEXT, v {kind})", "INSERT INTO t VALUES (?, ?)", rows=rows)
    async with opened(url, table="t") as enricher:
        error = await failure(enricher, "good", "bad")
        assert "SqlEnricher(table='t'), key 'bad': the column 'v' holds" in str(error)
        assert says in str(error)
        assert isinstance(error, ResultError)
        assert (error.retryable, error.any_key) == (False, False)
        assert await enricher.lookup("good") == {"v": None}


async def test_hostile_names_are_quoted(path: Path, url: str) -> None:
    names = ['a"; DROP TABLE t; --', "select", "a.b", "%s", ":keys", "[x]", "ü `"]
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    columns = ", ".join(f"{name} INTEGER" for name in quoted)
    in_sqlite(
        path, f"CREATE TABLE {quoted[0]} (id INTEGER, {columns})", f"INSERT INTO {quoted[0]} VALUES (1,2,3,4,5,6,7,8)"
    )
    async with opened(url, table=[names[0]]) as enricher:
        assert await enricher.lookup(1) == dict(zip(names, range(2, 9), strict=True))
    async with opened(url, table=["main", names[0]], key=names[4], columns=[names[1], "id"]) as enricher:
        assert await enricher.lookup(6) == {"select": 3, "id": 1}
    async with opened(url, table=[names[0]], key=[names[0], names[3]], columns=["id"]) as enricher:
        assert await enricher.lookup_many([(2, 5), (2, 6)]) == [{"id": 1}, None]


INSERT = "INSERT INTO t VALUES (?, 2, 7)"


@pytest.mark.parametrize("key", ["id", ["id", "two"]])
async def test_a_batch_beyond_the_limit_of_parameters_takes_several_statements(path: Path, url: str, key: Any) -> None:
    count = MOST_OF_SQLITE + 10
    in_sqlite(
        path,
        "CREATE TABLE t (id INTEGER PRIMARY KEY, two INTEGER, v INTEGER)",
        "INSERT INTO t VALUES (?, 2, 7)",
        rows=[(0,), (count - 1,)],
    )
    async with opened(url, table="t", key=key, columns=["v"], max_batch=count) as enricher:
        keys: list[Any] = [*range(count)] if key == "id" else [(number, 2) for number in range(count)]
        found = await enricher.lookup_many(keys)
        assert [place for place, row in enumerate(found) if row] == [0, count - 1]


async def test_a_wrong_statement_or_table_is_an_error_that_names_what_there_is(path: Path, url: str) -> None:
    in_sqlite(path, "CREATE TABLE planes (id INTEGER, seats INTEGER, odd TIME)")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"table": "plane"}, "table='plane'.* there is no such table; .*planes"),
        ({"table": "planes", "columns": ["seat"]}, "no column 'seat'; .*seats"),
        ({"table": "planes", "key": "ident"}, "no column 'ident'"),
        ({"table": "planes"}, "no counterpart for the columns 'odd' of type TIME"),
        ({"table": "planes", "schema": "id int, seat int"}, "refuses the statement .*no such column: planes.seat"),
        ({"query": "SELECT id FROM plane WHERE id IN :keys", "schema": "id int, s int"}, "no such table: plane"),
        ({"query": "SELECT id FROM planes WHERE id IN :keys", "schema": "id int, s int"}, "there is no column 's'"),
        (
            {"query": "SELECT id, 1 AS s, 2 AS s FROM planes WHERE id IN :keys", "schema": "id int, s int"},
            "2 columns 's'; name them apart",
        ),
        ({"query": "DELETE FROM planes WHERE id IN :keys", "schema": "id int, s int"}, "returns no rows"),
        ({"query": "SELEC id WHERE id IN :keys", "schema": "id int, s int"}, "syntax error"),
    ]
    for options, says in cases:
        with pytest.raises(ConfigurationError, match=says) as raised:
            SqlEnricher(url, **({"key": "id"} | options)).schema()
        assert "sqlalche.me" not in told(raised.value)


def test_a_wrong_path_is_an_error_and_makes_no_file(path: Path, url: str, capfd: pytest.CaptureFixture[str]) -> None:
    for wrong in ("sqlite+aiosqlite:////no/such/directory/x.db", f"{url}.wrong", "sqlite+aiosqlite:///no.db"):
        with pytest.raises(ConfigurationError, match=r"there is no file '.*' on this machine, in .* has four slashes"):
            SqlEnricher(wrong, table="planes", key="id").schema()
    assert not Path(f"{path}.wrong").exists()
    # What is no database cannot be opened, and no thread of the driver says more.
    with pytest.raises(ConfigurationError, match="file of the database cannot be opened"):
        SqlEnricher(f"sqlite+aiosqlite:///{path.parent}", table="t", key="id").schema()
    assert capfd.readouterr().err == ""


async def test_a_query_that_changes_its_keys_is_an_error(path: Path, url: str) -> None:
    in_sqlite(path, "CREATE TABLE t (id TEXT, v INTEGER)", "INSERT INTO t VALUES ('a', 1)")
    for key, says in (("upper(id)", "the key 'A', which was not asked for"), ("NULL", "the key None")):
        query = f"SELECT {key} AS id, v FROM t WHERE id IN :keys"
        async with opened(url, query=query, schema="id string, v int") as enricher:
            assert says in str(await failure(enricher, "a"))


async def test_rows_whose_key_differs_for_spark_are_not_found_in_a_table(path: Path, url: str) -> None:
    in_sqlite(path, "CREATE TABLE t (id TEXT COLLATE NOCASE, v INTEGER)", "INSERT INTO t VALUES ('a', 1), ('A', 2)")
    async with opened(url, table="t") as enricher:
        assert await enricher.lookup_many(["a", "A", "b"]) == [{"v": 1}, {"v": 2}, None]
    in_sqlite(path, "DELETE FROM t WHERE v = 1")
    async with opened(url, table="t") as enricher:
        assert await enricher.lookup("a") is None


async def test_X12_SQLite_pads_no_char_so_blanks_at_the_end_count(path: Path, url: str) -> None:
    in_sqlite(path, "CREATE TABLE t (id CHAR(4), v INTEGER)", "INSERT INTO t VALUES ('ab', 1), ('cd  ', 2)")
    async with opened(url, table="t") as it:
        assert await it.lookup_many(["ab", "ab  ", "cd", "cd  "]) == [{"v": 1}, None, None, {"v": 2}]


async def test_types_can_be_named_and_a_key_without_type_takes_any(path: Path, url: str) -> None:
    in_sqlite(path, "CREATE TABLE t (id, v)", "INSERT INTO t VALUES (1, '2.50'), ('one', '3.00')")
    with pytest.raises(ConfigurationError, match="schema="):
        SqlEnricher(url, table="t", key="id").schema()
    async with opened(url, table="t", schema="v decimal(5,2)") as enricher:
        assert enricher.key_schema() == pa.schema([("id", pa.null())])
        assert await enricher.lookup_many([1, "one", 2]) == [{"v": Decimal("2.50")}, {"v": Decimal("3.00")}, None]


async def test_a_locked_database_is_retryable(path: Path, url: str) -> None:
    in_sqlite(path, "CREATE TABLE t (id INTEGER, v INTEGER)", "INSERT INTO t VALUES (1, 2)")
    async with opened(url + "?timeout=0.01", table="t") as enricher:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            error = await failure(enricher, 1)
            assert (error.retryable, error.any_key) == (True, True)
            assert "could not get a lock (database is locked" in str(error)
            other.execute("ROLLBACK")
        assert await enricher.lookup(1) == {"v": 2}


SLOW = """
    SELECT id, (
        WITH RECURSIVE n (i) AS (SELECT id UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000) SELECT count(*) FROM n
    ) AS v FROM t WHERE id IN :keys
"""
"""Takes minutes for a row, and no time without one."""


async def gone(before: set[threading.Thread]) -> None:
    """Wait until the threads that were started since then have ended."""
    for thread in threads() - before:
        await asyncio.to_thread(thread.join, 5)
        assert not thread.is_alive()


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon or "aiosqlite" in repr(thread)}


async def test_X7_a_cancelled_lookup_stops_its_statement_and_leaves_no_thread(path: Path, url: str) -> None:
    in_sqlite(path, "CREATE TABLE t (id INTEGER)", "INSERT INTO t VALUES (1)")
    before = threads()
    async with opened(url, query=SLOW, schema="id int, v bigint", pool_size=1) as enricher:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await enricher.lookup(1)
        # The only place of the pool is free again.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await enricher.lookup(1)
    await gone(before)


async def test_X7_a_query_that_is_slow_without_keys_is_stopped_on_the_driver(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "QUESTION_TIMEOUT", 0.05)
    in_sqlite(path, "CREATE TABLE t (id INTEGER)", "INSERT INTO t VALUES (1)")
    before = threads()
    query = SLOW.replace("id IN :keys", "1 OR id IN :keys")
    with pytest.raises(ConfigurationError, match=r"did not answer in time \(no answer within 0.05 s"):
        SqlEnricher(url, query=query, key="id", schema="id int, v bigint").schema()
    await gone(before)


async def test_X7_cancelled_lookups_lose_no_place_in_the_pool(path: Path, url: str) -> None:
    rows = [(number, number) for number in range(50)]
    in_sqlite(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER)", "INSERT INTO t VALUES (?, ?)", rows=rows)
    before = threads()
    async with opened(url, table="t", pool_size=2) as enricher:
        await helpers.cancelled_at_any_turn(enricher, lambda number: {"v": number}, rounds=30)
    await gone(before)


async def test_a_table_can_be_kept_in_memory(path: Path, url: str) -> None:
    in_sqlite(
        path, "CREATE TABLE t (id INTEGER, v TEXT)", "INSERT INTO t VALUES (1, 'a'), (1, 'b'), (NULL, 'c'), (2, 'd')"
    )
    async with helpers.opened(TableEnricher(SqlEnricher(url, table="t", key="id"), key="id")) as table:
        assert await table.lookup_many([1, 2, 3]) == [[{"v": "a"}, {"v": "b"}], {"v": "d"}, None]
    async with opened(url, query="SELECT id, v FROM t WHERE id IN :keys", schema="id int, v string") as enricher:
        with pytest.raises(ConfigurationError, match="a query takes keys"):
            await enricher.rows()


def test_X5_no_secret_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    url = "mysql+aiomysql://me:s3cret-Pw@127.0.0.1:1/shop?ssl_key=s3cret-Pw"
    enricher = SqlEnricher(url, table="t", key="id", connect_args={"init_command": "s3cret-Pw"})
    assert repr(enricher) == "SqlEnricher('mysql+aiomysql://127.0.0.1:1/shop', table='t', key=['id'])"
    pytest.importorskip("aiomysql")
    with pytest.raises(ConfigurationError, match="not reachable") as raised:
        enricher.schema()
    assert "s3cret" not in told(raised.value) + caplog.text

    def function() -> str:
        return url

    assert b"s3cret" not in cloudpickle.dumps(SqlEnricher(lambda: os.environ["NO_SUCH_URL"], table="t", key="id"))
    assert "function" in repr(SqlEnricher(function, table="t", key="id"))
    with pytest.raises(ConfigurationError, match="environment variable 'NO_SUCH_URL'"):
        SqlEnricher(lambda: os.environ["NO_SUCH_URL"], table="t", key="id").schema()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"url": 7}, "of type int"),
        ({"url": "sqlite:///x.db"}, r"'sqlite' is not asynchronous; .* as in sqlite\+aiosqlite"),
        ({"url": "mysql://u:s3cret@h/x"}, r"as in mysql\+aiomysql"),
        ({"url": "oracle+nothing://u:s3cret@h/x"}, "does not know the dialect 'oracle.nothing'"),
        ({"url": "s3cret"}, "cannot be read"),
        ({"url": "jdbc:mysql://h:3306/x?user=u&password=s3cret"}, "it is a URL for JDBC: leave out `jdbc:`"),
        ({"url": "mysql+aiomysql://u:s3cret@a@h/x"}, "two ways"),
        ({"url": "mysql+aiomysql://u:s3cret/a@h/x"}, "two ways"),
        ({"url": "mysql+aiomysql://u:s3cret#a@h/x"}, "holds a #"),
        ({"url": lambda host: host}, "which takes arguments"),
        ({"connect_args": "s3cret"}, "connect_args is of type str"),
        ({"connect_args": {1: "s3cret"}}, "by name"),
        ({"table": None}, "exactly one of them"),
        ({"query": "SELECT 1"}, "exactly one of them"),
        ({"table": None, "query": "SELECT id FROM t", "schema": "id int"}, "with the parameters none"),
        ({"table": None, "query": "SELECT id FROM t WHERE id IN :ids", "schema": "id int"}, "the parameters :ids"),
        ({"table": None, "query": "SELECT id FROM t WHERE id IN :keys"}, "must name the columns of the result"),
        ({"table": None, "query": 7}, "it must be SQL"),
        ({"key": None}, "key is required: a column name"),
        ({"schema": "a array<int>"}, "a database does not return"),
    ],
)
def test_wrong_arguments_are_configuration_errors(arguments: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as raised:
        SqlEnricher(**{"url": "sqlite+aiosqlite:///x.db", "table": "t", "key": "id"} | arguments)
    assert "s3cret" not in str(raised.value)


async def test_a_driver_that_is_not_installed_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"the driver of 'mssql\+aioodbc' is not installed"):
        SqlEnricher("mssql+aioodbc://u:s3cret@h/x", table="t", key="id").schema()


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("raise ImportError('libodbc.so.2: cannot open shared object file')", "(libodbc.so.2: cannot open shared"),
        ("import no_such_pyodbc", "(No module named 'no_such_pyodbc')"),
        ("from os import no_such_name", "(cannot import name 'no_such_name' from 'os'"),
    ],
)
async def test_a_driver_that_is_installed_and_broken_is_not_called_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, words: str
) -> None:
    (tmp_path / "aioodbc.py").write_text(broken)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match=r"the driver of 'mssql\+aioodbc' cannot be imported") as raised:
        SqlEnricher("mssql+aioodbc://u:s3cret@h/x", table="t", key="id").schema()
    assert words in str(raised.value)
    assert "not installed" not in str(raised.value)


def test_L8_a_connection_that_is_cut_says_nothing_to_a_loop_that_is_closed(path: Path, url: str) -> None:
    """pytest raises what the thread of a connection raises."""
    in_sqlite(path, "CREATE TABLE t (id TEXT, v INTEGER)")

    async def connect_and_cut() -> None:
        session = await connections.Database(url, None, 10.0).connect()
        session.terminate()

    for _ in range(10):
        asyncio.run(connect_and_cut())
    for thread in threading.enumerate():
        if "_connection_worker_thread" in thread.name:
            thread.join(10)
            assert not thread.is_alive()
