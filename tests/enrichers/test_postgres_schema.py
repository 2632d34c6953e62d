"""What `PostgresEnricher` finds out on the driver: names, types, and what is wrong."""

from __future__ import annotations

import socket
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import asyncpg
import pyarrow as pa
import pytest

from asyncio_operator import ConfigurationError
from enrichers import PostgresEnricher
from enrichers.postgres.describe import Selection, describe
from tests.enrichers.conftest import Database

TYPES: dict[pa.DataType, list[str]] = {
    pa.int16(): ["int2"],
    pa.int32(): ["int4", "serial"],
    pa.int64(): ["int8"],
    pa.float32(): ["float4"],
    pa.float64(): ["float8"],
    pa.decimal128(38, 18): ["numeric", "numeric(100,50)"],
    pa.decimal128(10, 2): ["numeric(10,2)"],
    pa.decimal128(5, 0): ["numeric(5)", "numeric(3,-2)"],
    pa.decimal128(5, 5): ["numeric(3,5)"],
    pa.decimal128(38, 38): ["numeric(38,38)"],
    pa.decimal128(38, 10): ["numeric(50,10)"],
    pa.decimal128(38, 0): ["numeric(40,0)"],
    pa.decimal128(9, 4): ["price", "dear"],
    pa.string(): ["text", "varchar", "varchar(3)", "char(3)", "name", '"char"', "uuid", "json", "jsonb", "mood"],
    pa.bool_(): ["bool"],
    pa.date32(): ["date"],
    pa.timestamp("us"): ["timestamp", "timestamp(0)"],
    pa.timestamp("us", tz="UTC"): ["timestamptz"],
    pa.binary(): ["bytea"],
    pa.list_(pa.int32()): ["int4[]", "int4[3][3]", "numbers"],
    pa.list_(pa.string()): ["text[]", "varchar(3)[]", "uuid[]", "mood[]", "jsonb[]"],
    pa.list_(pa.decimal128(10, 2)): ["numeric(10,2)[]"],
    pa.list_(pa.decimal128(9, 4)): ["price[]"],
    pa.list_(pa.timestamp("us", tz="UTC")): ["timestamptz[]"],
}

MORE_TYPES = """
    CREATE TYPE mood AS ENUM ('sad', 'ok');
    CREATE DOMAIN price AS numeric(9,4);
    CREATE DOMAIN dear AS price CHECK (VALUE > 100);
    CREATE DOMAIN numbers AS int[];
"""


def problem_with(dsn: str, **options: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        PostgresEnricher(dsn, **options).schema()
    return caught.value


@pytest.mark.parametrize("form", ["table", "query"])
async def test_every_type_has_its_column(database: Database, form: str) -> None:
    """Also in a query: asyncpg does not tell precision and scale."""
    types = [(name, arrow) for arrow, names in TYPES.items() for name in names]
    columns = ", ".join(f"c{number} {name}" for number, (name, _) in enumerate(types))
    await database.execute(f"{MORE_TYPES}; CREATE TABLE t (id int8, {columns})")
    source = {"table": "t"} if form == "table" else {"query": "SELECT * FROM t WHERE id = ANY ($1)"}
    schema = PostgresEnricher(database.dsn, key="id", **source).schema()  # type: ignore[arg-type]
    assert schema == pa.schema([(f"c{number}", arrow) for number, (_, arrow) in enumerate(types)])


async def test_a_computed_numeric_of_a_query_has_the_free_size(database: Database) -> None:
    query = "SELECT k AS id, 1.5 * k AS a, (1.5 * k)::numeric(7,3) AS b FROM unnest($1::int[]) AS k"
    schema = PostgresEnricher(database.dsn, query=query, key="id").schema()
    assert schema.types == [pa.decimal128(38, 18), pa.decimal128(7, 3)]


@pytest.mark.parametrize("name", ["json", "jsonb", "int4[]", '"char"'])
async def test_X4_a_key_of_a_type_that_cannot_be_compared_is_refused(database: Database, name: str) -> None:
    await database.execute(f"CREATE TABLE t (k {name}, v int)")
    text = str(problem_with(database.dsn, table="t", key="k"))
    assert "key column 'k'" in text
    assert "query" in text


async def test_views_and_tables_of_other_schemas_work(database: Database) -> None:
    await database.execute("CREATE TABLE t (a int, b text); CREATE VIEW v AS SELECT a, upper(b) AS u FROM t")
    assert PostgresEnricher(database.dsn, table="v", key="a").schema().names == ["u"]
    bare = database.server.dsn
    assert PostgresEnricher(bare, table=f"{database.name}.t", key="a").schema().names == ["b"]
    assert PostgresEnricher(bare, table=[database.name, "t"], key="a").schema().names == ["b"]


async def test_X4_an_unknown_column_is_named_with_the_nearest(database: Database) -> None:
    await database.execute('CREATE TABLE planes (tailnum text, manufacturer text, "Year" int)')
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"key": "tailnumb"}, "'tailnumb'", "'tailnum'"),
        ({"key": "TAILNUM"}, "'TAILNUM'", "'tailnum'"),
        ({"key": "tailnum", "columns": ["manufactorer"]}, "'manufactorer'", "'manufacturer'"),
        ({"key": "tailnum", "columns": ["year"]}, "'year'", "'Year'"),
        ({"key": "zzz"}, "'zzz'", "there are tailnum, manufacturer, Year"),
    ]
    for options, wrong, near in cases:
        text = str(problem_with(database.dsn, table="planes", **options))
        assert wrong in text
        assert near in text
    query = "SELECT * FROM planes WHERE tailnum = ANY ($1)"
    assert "'tailnum'" in str(problem_with(database.dsn, query=query, key="tailnun"))


async def test_X4_an_unknown_table_or_schema_is_named_with_the_nearest(database: Database) -> None:
    await database.execute("CREATE TABLE planes (tailnum text, v int)")
    missing = problem_with(database.dsn, table="plane", key="tailnum")
    assert '"plane"' in str(missing)
    assert "did you mean 'planes'" in str(missing)
    assert isinstance(missing.__cause__, asyncpg.UndefinedTableError)
    assert f"'{database.name}.planes'" in str(problem_with(database.dsn, table=f"{database.name}.plane", key="tailnum"))
    assert '"nowhere"."planes"' in str(problem_with(database.dsn, table="nowhere.planes", key="tailnum"))


async def test_X4_missing_privileges_are_found_on_the_driver(database: Database) -> None:
    role = f"poor_{database.name}"
    await database.execute(f"CREATE TABLE t (id int, v int, secret int); CREATE ROLE {role} LOGIN PASSWORD 'x'")
    try:
        await database.execute(f"GRANT USAGE ON SCHEMA {database.name} TO {role}; GRANT SELECT (id, v) ON t TO {role}")
        dsn = database.with_path(database.server.socket_dsn(user=role))
        problem = problem_with(dsn, table="t", key="id")
        assert "privileges do not suffice" in str(problem)
        assert isinstance(problem.__cause__, asyncpg.InsufficientPrivilegeError)
        assert PostgresEnricher(dsn, table="t", key="id", columns=["v"]).schema().names == ["v"]
    finally:
        await database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize(
    ("query", "key", "expected"),
    [
        ("SELEC 1", "id", "syntax error"),
        ("SELECT 1 AS id WHERE 1 = ANY(%s)", "id", "is '%s' a parameter? Here they are $1, $2"),
        ("SELECT 1 AS id WHERE 1 = ANY(%(ids)s)", "id", "is '%(ids)s' a parameter?"),
        ("SELECT 1 AS id WHERE 1 = ANY(:ids)", "id", "is ':ids' a parameter?"),
        ("SELECT 1 AS id WHERE 1 = ?", "id", "is '?' a parameter?"),
        ("SELECT 1 AS id WHERE 1 = {key}", "id", "is '{key}' a parameter?"),
        ("SELECT * FROM t WHERE id = $1", "id", "$1 is taken for integer, but it must be an array"),
        ("SELECT * FROM t", "id", "takes 0 parameters, but there are 1 key columns"),
        ("SELECT * FROM t WHERE id = ANY ($1) AND v = ANY ($2)", "id", "takes 2 parameters"),
        ("SELECT * FROM t WHERE id = ANY ($1)", ["id", "v"], "takes 1 parameters, but there are 2 key columns"),
        ("SELECT id, v, v FROM t WHERE id = ANY ($1)", "id", "2 columns 'v'"),
        ("SELECT id FROM t WHERE id = ANY ($1)", "id", "no column besides the key"),
        ("SELECT id, v FROM t WHERE v = ANY ($1)", "id", "$1 is taken for date[]"),
        ("SELECT *, $1 FROM t", "id", "$1 is taken for text"),
        *(
            (query, "id", "the query is no SELECT, or it writes something; it must be one statement that gives rows")
            for query in (
                "DELETE FROM t WHERE id = ANY ($1)",
                "INSERT INTO t (id) VALUES ($1)",
                "INSERT INTO t (id) SELECT unnest($1::int[]) RETURNING id, v",
                "WITH new AS (INSERT INTO t (id) SELECT unnest($1::int[]) RETURNING *) SELECT * FROM new",
                "MERGE INTO t USING t AS u ON t.id = ANY ($1) WHEN MATCHED THEN DO NOTHING",
                "SELECT * INTO u FROM t WHERE id = ANY ($1)",
                *("SHOW work_mem", "BEGIN", ";"),
            )
        ),
        ("SELECT * FROM t WHERE id = ANY ($1); SELECT 1", "id", "the query is more than one statement; it must be one"),
        ("SELECT 1 AS id, 2 AS v; DROP TABLE t", "id", "the query is more than one statement"),
        # What gives rows and only reads is a query.
        ("VALUES (1, 2)", "column1", "takes 0 parameters"),
        ("TABLE t", "id", "takes 0 parameters"),
        ("WITH u AS (SELECT * FROM t) SELECT * FROM u;", "id", "takes 0 parameters"),
        ("SELECT id, v FROM t ; ", "id", "takes 0 parameters"),
        ("SELECT id, v FROM t -- a remark;", "id", "takes 0 parameters"),
    ],
)
async def test_X4_a_wrong_query_is_found_on_the_driver(database: Database, query: str, key: Any, expected: str) -> None:
    await database.execute("CREATE TABLE t (id int, v date, w int)")
    problem = problem_with(database.dsn, query=query, key=key)
    assert expected in str(problem)
    assert query[:20] in str(problem)
    assert await database.fetch("SELECT * FROM t") == []


async def test_an_asyncpg_that_does_not_show_modifiers_costs_precision_and_breaks_nothing(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    class Opaque:
        """A connection with what is public of it."""

        def __init__(self, connection: asyncpg.Connection) -> None:
            self.prepare, self.fetch, self.fetchrow = connection.prepare, connection.fetch, connection.fetchrow

    await database.execute("CREATE TABLE t (id int, n numeric(10,2), v text)")
    of_table = Selection(("t",), None, ("id",), None, "t", database.dsn)
    of_query = Selection(None, "SELECT * FROM t WHERE id = ANY ($1)", ("id",), None, "query", database.dsn)
    connection = await asyncpg.connect(database.dsn)
    known = await describe(Opaque(connection), of_table)
    # The catalog has those of a table.
    assert known.schema.types == [pa.decimal128(10, 2), pa.string()]
    assert "precision" not in caplog.text
    statement = await describe(Opaque(connection), of_query)
    await connection.close()
    assert statement.schema.types == [pa.decimal128(38, 18), pa.string()]
    assert statement.guarded
    assert "does not show the precision and scale" in caplog.text


async def test_X4_an_error_on_the_driver_comes_without_the_frames_of_other_threads(database: Database) -> None:
    await database.execute("CREATE TABLE t (id int, v int)")
    wrong: list[dict[str, Any]] = [{"table": "tt"}, {"table": "t", "columns": ["w"]}, {"query": "SELEC"}]
    for options in wrong:
        told = "".join(traceback.format_exception(problem_with(database.dsn, key="id", **options)))
        assert "asyncpg/" not in told
        assert told.count("  File ") <= 5


async def test_columns_that_nobody_asked_for_may_be_of_any_type_and_stand_there_twice(database: Database) -> None:
    query = "SELECT k AS id, 1 AS v, interval '1 s' AS i, 2 AS x, 3 AS x FROM unnest($1::int[]) AS k"
    assert PostgresEnricher(database.dsn, query=query, key="id", columns=["v"]).schema().names == ["v"]


async def test_X4_a_database_that_is_not_there_and_wrong_credentials_are_named(database: Database) -> None:
    server = database.server
    for dsn, expected, cause in [
        (server.socket_dsn("nowhere"), '"nowhere" does not exist', asyncpg.InvalidCatalogNameError),
        (server.tcp_dsn(password="hunter2"), "refuses the credentials", asyncpg.InvalidPasswordError),
        (server.tcp_dsn(user="nobody", password="hunter2"), "refuses the credentials", asyncpg.InvalidPasswordError),
    ]:
        problem = problem_with(dsn, table="t", key="id")
        assert expected in str(problem)
        assert isinstance(problem.__cause__, cause)
        assert "hunter2" not in "".join(traceback.format_exception(problem))


def test_X4_a_server_that_is_not_there_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        problem = problem_with(f"postgresql://u:hunter2@127.0.0.1:{port}/shop", table="t", key="id")
    assert f"127.0.0.1:{port}/shop" in str(problem)
    assert "not reachable" in str(problem)
    assert isinstance(problem.__cause__, OSError)
    assert "hunter2" not in "".join(traceback.format_exception(problem))


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where somebody listens and never speaks."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_X4_a_server_that_does_not_answer_is_given_up_after_the_connect_timeout(silent_port: int) -> None:
    dsn = f"postgresql://u:hunter2@127.0.0.1:{silent_port}/shop"
    problem = problem_with(dsn, table="t", key="id", connect_timeout=0.2)
    assert "did not answer in time" in str(problem)
    assert isinstance(problem.__cause__, TimeoutError)


async def test_schema_works_inside_a_running_loop_and_leaves_nothing_behind(database: Database) -> None:
    await database.execute("CREATE TABLE t AS SELECT 1 AS id, 2 AS v")
    marked = f"{database.dsn}&application_name={database.name}"
    before = threading.active_count()
    assert PostgresEnricher(marked, table="t", key="id").schema().names == ["v"]
    assert threading.active_count() == before
    sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1"
    while (await database.fetch(sql, database.name))[0][0]:  # the server sees a closed connection a little later
        pass


async def test_the_answer_is_remembered_and_travels(database: Database) -> None:
    await database.execute("CREATE TABLE t AS SELECT 1 AS id, 2 AS v")
    enricher = PostgresEnricher(database.dsn, table="t", key="id")
    first = enricher.schema()
    await database.execute("DROP TABLE t")
    assert enricher.schema() is first
    assert enricher.key_schema().names == ["id"]


async def test_nothing_is_written_and_a_query_is_not_run(database: Database) -> None:
    await database.execute("CREATE SEQUENCE s; CREATE TABLE t (id int, v int)")
    query = "SELECT k AS id, nextval('s') AS v FROM unnest($1::int[] || 1) AS k"
    PostgresEnricher(database.dsn, query=query, key="id").schema()
    assert (await database.fetch("SELECT is_called FROM s"))[0][0] is False
    read_only = f"{database.dsn}&default_transaction_read_only=on"
    assert PostgresEnricher(read_only, table="t", key="id").schema().names == ["v"]
