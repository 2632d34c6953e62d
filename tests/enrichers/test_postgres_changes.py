"""A column that gets another type while a job runs: one error, by rows and by columns, for few keys and for many."""

from __future__ import annotations

from typing import Any

import pytest

from asyncio_operator import EnricherError
from tests.enrichers.conftest import Database
from tests.enrichers.test_postgres_columns import in_columns

CHANGES = [
    ("int", "1", "bigint", "integer", "bigint"),
    ("int", "1", "smallint", "integer", "smallint"),
    ("bigint", "1", "double precision", "bigint", "double precision"),
    ("double precision", "1", "bigint", "double precision", "bigint"),
    ("real", "1", "double precision", "real", "double precision"),
    ("int", "1", "text", "integer", "text"),
    ("text", "'1'", "int USING v::int", "text", "integer"),
    ("text", "'1'", "varchar(5)", "text", "character varying"),
    ("char(3)", "'1'", "text", "character", "text"),
    ("numeric(10,2)", "1", "double precision", "numeric", "double precision"),
    ("numeric(10,2)", "1", "int", "numeric", "integer"),
    ("date", "'2020-01-01'", "timestamp", "date", "timestamp without time zone"),
    ("timestamp", "'2020-01-01 12:00'", "date", "timestamp without time zone", "date"),
    ("timestamptz", "'2020-01-01'", "timestamp", "timestamp with time zone", "timestamp without time zone"),
    ("timestamp", "'2020-01-01'", "timestamptz", "timestamp without time zone", "timestamp with time zone"),
    ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "text", "uuid", "text"),
    ("json", "'1'", "jsonb", "json", "jsonb"),
    ("bool", "true", "int USING v::int", "boolean", "integer"),
    ("bytea", "'a'", "text USING v::text", "bytea", "text"),
    ("int", "1", "int[] USING ARRAY[v]", "integer", "integer[]"),
    ("int[]", "'{1}'", "int USING v[1]", "integer[]", "integer"),
    ("int[]", "'{1}'", "bigint[]", "integer[]", "bigint[]"),
    ("text[]", "'{1}'", "text USING v::text", "text[]", "text"),
    ("int", "1", "interval USING '1 day'", "integer", "interval"),
    ("int", "1", "bool USING true", "integer", "boolean"),
    ("price", "1", "numeric(9,4)", "price", "numeric"),
]

FORMS: dict[str, dict[str, Any]] = {
    "table": {"table": "t"},
    "query": {"query": "SELECT * FROM t WHERE id = ANY ($1)"},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("kind", "literal", "changed", "before", "after"), CHANGES)
async def test_A2_X12_a_changed_type_is_the_same_error_for_few_keys_and_for_many(
    database: Database, form: str, kind: str, literal: str, changed: str, before: str, after: str
) -> None:
    await database.execute(f"CREATE DOMAIN price AS numeric(9,4); CREATE TABLE t (id int, n int, v {kind})")
    await database.execute(f"INSERT INTO t SELECT i, i, {literal} FROM generate_series(1, 200) AS i")
    counts = (1, 10, 100)
    async with database.enricher(key="id", **FORMS[form]) as enricher:
        for count in counts:  # the statements are prepared
            assert len(await in_columns(enricher, range(1, count + 1))) == count
        await database.execute(f"ALTER TABLE t ALTER v TYPE {changed}")
        said = set()
        for count in counts:
            keys = range(1, count + 1)
            for answer in (enricher.lookup_many, lambda keys: in_columns(enricher, keys)):
                with pytest.raises(EnricherError) as caught:
                    await answer(keys)
                said.add(str(caught.value))
                assert (caught.value.retryable, caught.value.any_key) == (False, True)
        [words] = said
        assert f"the type of the column 'v' has changed from {before} to {after}; start the job again" in words


async def test_A2_X12_a_key_that_changes_its_type_is_named_too(database: Database) -> None:
    await database.execute("CREATE TABLE t AS SELECT i AS id, i AS v FROM generate_series(1, 200) AS i")
    async with database.enricher(table="t", key="id") as enricher:
        await database.execute("ALTER TABLE t ALTER id TYPE bigint")
        for count in (1, 10, 100):
            with pytest.raises(EnricherError, match="column 'id' has changed from integer to bigint"):
                await in_columns(enricher, range(count))


async def test_A2_X12_a_column_that_the_server_casts_may_change(database: Database) -> None:
    await database.execute("CREATE TABLE t AS SELECT i AS id, i AS v FROM generate_series(1, 200) AS i")
    async with database.enricher(table="t", key="id", columns={"v": "double"}) as enricher:
        await database.execute("ALTER TABLE t ALTER v TYPE text")
        for count in (1, 10, 100):
            assert await in_columns(enricher, range(1, count + 1)) == [[{"v": float(i)}] for i in range(1, count + 1)]


@pytest.mark.parametrize("form", FORMS)
async def test_X12_a_value_of_more_digits_than_the_column_had_is_the_same_error_everywhere(
    database: Database, form: str
) -> None:
    await database.execute("CREATE TABLE t (id int, v numeric(10,2)); ALTER TABLE t ADD PRIMARY KEY (id)")
    await database.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 200) AS i")
    async with database.enricher(key="id", **FORMS[form]) as enricher:
        await database.execute("ALTER TABLE t ALTER v TYPE numeric(12,4); UPDATE t SET v = 1.2345 WHERE id = 1")
        for count in (1, 10, 100):
            with pytest.raises(
                EnricherError, match=r"key 1: the column 'v' holds 1.2345, which does not fit decimal"
            ) as caught:
                await in_columns(enricher, range(1, count + 1))
            assert (caught.value.retryable, caught.value.any_key) == (False, False)


@pytest.mark.parametrize("count", [1, 100])
async def test_X12_a_query_gives_columns_by_their_names_whatever_stands_before_them(
    database: Database, count: int
) -> None:
    await database.execute("CREATE TABLE t AS SELECT i AS id, i AS a, -i AS b FROM generate_series(1, 200) AS i")
    query = "SELECT * FROM t WHERE id = ANY ($1)"
    async with database.enricher(query=query, key="id", columns=["b"]) as enricher:
        await database.execute("ALTER TABLE t DROP a; ALTER TABLE t ADD a int DEFAULT 7")
        assert (await in_columns(enricher, range(1, count + 1)))[0] == [{"b": -1}]
        await database.execute("ALTER TABLE t DROP b; ALTER TABLE t ADD c int DEFAULT 8")
        with pytest.raises(EnricherError, match=r"column t\.b does not exist"):
            await in_columns(enricher, range(1, count + 1))
